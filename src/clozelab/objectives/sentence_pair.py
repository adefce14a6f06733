"""Objectives over a pair of texts: next-sentence prediction and sentence-order prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from clozelab.contracts import Blocks, Corrupted, Hidden, Targets
from clozelab.objectives.objective import Weighted, Widths

if TYPE_CHECKING:
    from clozelab.objectives.heads.vocabulary import PairHead


@dataclass(frozen=True)
class NextSentence(Weighted):
    """Predicts whether B follows A in the text (BERT §3.1, task 2): 0 next, 1 random.

    The classifier reads the pooled first token, and the objective owns the pooler.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"next", "token_vectors"})
    reads: ClassVar[tuple[str, ...]] = ("at",)

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable parameters of the head, by part."""
        width = encoder.hidden_size
        return {"pooler": width * width + width, "classifier": 2 * width + 2}

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """The label of each pair, at its [CLS]: the first token, or a stream's last."""
        assert blocks.labels is not None, "blocks without pairs have no labels"
        first = np.zeros(len(blocks), dtype=np.int64)
        at = first if blocks.reverse is None else blocks.lengths - 1
        return Targets(np.arange(len(blocks) + 1), {"at": at, "labels": blocks.labels})

    def build(self, encoder: Widths, vocabulary: int) -> PairHead:
        """The head with fresh weights."""
        from clozelab.objectives.heads.vocabulary import PairHead

        return PairHead(encoder)

    def training_flops(
        self, encoder: Any, vocabulary: int, *, length: float, predicted: float
    ) -> float:
        """The operations of the pooler and of two classes; there are no logits."""
        return float(6 * encoder.hidden_size * (encoder.hidden_size + 2) * predicted)


@dataclass(frozen=True)
class SentenceOrder(NextSentence):
    """Predicts whether A and B were swapped (ALBERT §3.1): 0 in order, 1 swapped."""

    needs: ClassVar[frozenset[str]] = frozenset({"order", "token_vectors"})

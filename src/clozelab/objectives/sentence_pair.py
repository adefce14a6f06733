"""Objectives over a pair of texts: next-sentence prediction and sentence-order prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clozelab.contracts import Blocks, Corrupted, Hidden, Targets
from clozelab.objectives.targets import pairs
from clozelab.objectives.widths import Weighted, Widths, pair

if TYPE_CHECKING:
    from clozelab.objectives.heads.pair import PairHead


@dataclass(frozen=True)
class NextSentence(Weighted):
    """Does B follow A in the text (BERT §3.1, task 2)? Two classes: 0 next, 1 random.

    The classifier reads the pooled first token, and the objective owns the pooler.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"next", "token_vectors"})

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable parameters of the head, by part."""
        return pair(encoder)

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """What is predicted in some blocks."""
        return pairs(blocks)

    def build(self, encoder: Widths, vocabulary: int) -> PairHead:
        """The head with fresh weights."""
        from clozelab.objectives.heads.pair import PairHead

        return PairHead(encoder)


@dataclass(frozen=True)
class SentenceOrder(NextSentence):
    """Were A and B swapped (ALBERT §3.1)? Two classes: 0 in order, 1 swapped."""

    needs: ClassVar[frozenset[str]] = frozenset({"order", "token_vectors"})

"""Next-sentence prediction: does B follow A in the text (BERT §3.1, task 2)?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from clozelab.objectives.heads import Widths, check_weight, pair


@dataclass(frozen=True)
class NextSentence:
    """Two classes from the pooled first token: 0 next, 1 random. It owns the pooler."""

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset({"next", "token_vectors"})

    weight: float = 1.0

    def __post_init__(self) -> None:
        check_weight(self.weight)

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable numbers of the head, by part."""
        return pair(encoder)

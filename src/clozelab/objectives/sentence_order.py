"""Sentence-order prediction: were A and B swapped (ALBERT §3.1)?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from clozelab.objectives.heads import Widths, check_weight, pair


@dataclass(frozen=True)
class SentenceOrder:
    """Two classes from the pooled first token: 0 in order, 1 swapped. It owns the pooler."""

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset({"order", "token_vectors"})

    weight: float = 1.0

    def __post_init__(self) -> None:
        check_weight(self.weight)

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable numbers of the head, by part."""
        return pair(encoder)

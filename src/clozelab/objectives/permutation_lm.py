"""Permutation language modelling: targets in random order, each from those before (XLNet §2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from clozelab.objectives.widths import Course, Widths, check_weight


@dataclass(frozen=True)
class PermutationLm:
    """Cross-entropy of the query stream at the targets, through the tied table and a bias."""

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset({"targets", "order_of_prediction", "two_streams"})

    weight: float = 1.0
    course: Course = ()

    def __post_init__(self) -> None:
        check_weight(self.weight, self.course)

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable numbers of the head, by part."""
        return {"bias": vocabulary}

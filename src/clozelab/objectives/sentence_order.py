"""Sentence-order prediction: were A and B swapped (ALBERT §3.1)?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clozelab.contracts import Blocks, Corrupted, Hidden, Targets
from clozelab.objectives.targets import pairs
from clozelab.objectives.widths import Course, Widths, check_weight, pair

if TYPE_CHECKING:
    from clozelab.objectives.heads.pair import PairHead


@dataclass(frozen=True)
class SentenceOrder:
    """Two classes from the pooled first token: 0 in order, 1 swapped. It owns the pooler."""

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset({"order", "token_vectors"})

    weight: float = 1.0
    course: Course = ()

    def __post_init__(self) -> None:
        check_weight(self.weight, self.course)

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable numbers of the head, by part."""
        return pair(encoder)

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """What is predicted in some blocks."""
        return pairs(blocks)

    def build(self, encoder: Widths, vocabulary: int) -> PairHead:
        """The head with fresh weights."""
        from clozelab.objectives.heads.pair import PairHead

        return PairHead(encoder)

"""Masked language modelling: predict the hidden tokens (BERT §3.1, task 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clozelab.contracts import Blocks, Corrupted, Hidden, Targets
from clozelab.objectives.targets import chosen
from clozelab.objectives.widths import Course, Tied, Widths, check_weight, transform

if TYPE_CHECKING:
    from clozelab.objectives.heads.vocabulary import VocabularyHead


@dataclass(frozen=True)
class MaskedLm:
    """Cross-entropy at the chosen positions, through BERT's head and the tied embedding table."""

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset({"targets", "token_vectors"})

    weight: float = 1.0
    course: Course = ()

    def __post_init__(self) -> None:
        check_weight(self.weight, self.course)

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable numbers of the head, by part."""
        return transform(encoder, vocabulary)

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """What is predicted in some blocks."""
        return chosen(blocks, hidden, corrupted)

    def build(self, encoder: Tied, vocabulary: int) -> VocabularyHead:
        """The head with fresh weights."""
        from clozelab.objectives.heads.vocabulary import VocabularyHead

        return VocabularyHead(encoder, vocabulary)

"""Masked language modelling: predict the hidden tokens (BERT §3.1, task 1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from clozelab.contracts import Blocks, Corrupted, Hidden, Targets
from clozelab.objectives.targets import chosen
from clozelab.objectives.widths import LATER, Tied, Weighted, Widths, table, transform

if TYPE_CHECKING:
    from clozelab.objectives.heads.vocabulary import VocabularyHead


@dataclass(frozen=True)
class MaskedLm(Weighted):
    """Cross-entropy at the chosen positions, through BERT's head and the embedding table."""

    needs: ClassVar[frozenset[str]] = frozenset({"targets", "token_vectors"})
    language_model: ClassVar[Literal["masked", "causal", "permutation"] | None] = "masked"

    # To the embedding table; false: the head has a table of its own.
    tied: bool = field(default=True, metadata=LATER)

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable parameters of the head, by part."""
        return transform(encoder, vocabulary) | table(encoder, vocabulary, tied=self.tied)

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """What is predicted in some blocks."""
        return chosen(blocks, hidden, corrupted)

    def build(self, encoder: Tied, vocabulary: int) -> VocabularyHead:
        """The head with fresh weights."""
        from clozelab.objectives.heads.vocabulary import VocabularyHead

        return VocabularyHead(encoder, vocabulary, tied=self.tied)

"""Causal language modelling: every token from those to its left (GPT; BERT §5.1's ablation)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from clozelab.contracts import Blocks, Corrupted, Hidden, Targets
from clozelab.objectives.targets import following
from clozelab.objectives.widths import LATER, Tied, Weighted, Widths, table, transform

if TYPE_CHECKING:
    from clozelab.objectives.heads.vocabulary import PlainHead, VocabularyHead


@dataclass(frozen=True)
class CausalLm(Weighted):
    """Cross-entropy at every position through the embedding table.

    `head = "plain"` is GPT's, the table alone; "transform" is BERT's dense, norm and bias, so
    that a left-to-right ablation differs from BERT in nothing else.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"causal_blocks", "token_vectors"})
    language_model: ClassVar[Literal["masked", "causal", "permutation"] | None] = "causal"

    head: Literal["plain", "transform"] = "plain"
    # To the embedding table; false: the head has a table of its own.
    tied: bool = field(default=True, metadata=LATER)

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable parameters of the head, by part."""
        counts = transform(encoder, vocabulary) if self.head == "transform" else {}
        return counts | table(encoder, vocabulary, tied=self.tied)

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """What is predicted in some blocks."""
        return following(blocks)

    def build(self, encoder: Tied, vocabulary: int) -> PlainHead | VocabularyHead:
        """The head with fresh weights."""
        from clozelab.objectives.heads.vocabulary import PlainHead, VocabularyHead

        kind = PlainHead if self.head == "plain" else VocabularyHead
        return kind(encoder, vocabulary, tied=self.tied)

"""Causal language modelling: every token from those to its left (GPT; BERT §5.1's ablation)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from clozelab.contracts import Blocks, Corrupted, Hidden, Targets
from clozelab.objectives.targets import following
from clozelab.objectives.widths import Course, Tied, Widths, check_weight, transform

if TYPE_CHECKING:
    from clozelab.objectives.heads.vocabulary import PlainHead, VocabularyHead


@dataclass(frozen=True)
class CausalLm:
    """Cross-entropy at every position through the tied table.

    `head = "plain"` is GPT's, without parameters; "transform" is BERT's dense, norm and bias, so
    that a left-to-right ablation differs from BERT in nothing else.
    """

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset({"causal_blocks", "token_vectors"})

    weight: float = 1.0
    course: Course = ()
    head: Literal["plain", "transform"] = "plain"

    def __post_init__(self) -> None:
        check_weight(self.weight, self.course)

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable numbers of the head, by part."""
        return transform(encoder, vocabulary) if self.head == "transform" else {}

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """What is predicted in some blocks."""
        return following(blocks)

    def build(self, encoder: Tied, vocabulary: int) -> PlainHead | VocabularyHead:
        """The head with fresh weights."""
        from clozelab.objectives.heads.vocabulary import PlainHead, VocabularyHead

        return PlainHead() if self.head == "plain" else VocabularyHead(encoder, vocabulary)

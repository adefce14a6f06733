"""A language model each way: every word from its left, and from its right (ELMo §3.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from clozelab.contracts import Blocks, Corrupted, Hidden, Targets
from clozelab.errors import UserError
from clozelab.objectives.targets import around_words
from clozelab.objectives.widths import Weighted, Widths
from clozelab.ranges import PositiveInt

if TYPE_CHECKING:
    from clozelab.objectives.heads.words import WordHead


@dataclass(frozen=True)
class BidirectionalLm(Weighted):
    """Cross-entropy in both directions through one softmax over words, which is not tied.

    `words` is how many the softmax knows, `samples` how many of them stand for all in a step of
    training; an evaluation uses them all. Targets, and their places, count words.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"words", "two_directions"})

    words: PositiveInt = 793471
    samples: PositiveInt = 8192

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples > self.words:
            raise UserError(f"samples = {self.samples}: must be from 1 to words = {self.words}")

    def with_words(self, most: int) -> BidirectionalLm:
        """The same with a softmax over at most so many words."""
        words = min(self.words, most)
        return replace(self, words=words, samples=min(self.samples, words))

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable parameters of the head, by part."""
        return {"words": self.words * encoder.width, "bias": self.words}

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """What is predicted in some blocks."""
        return around_words(blocks, self.words)

    def build(self, encoder: Widths, vocabulary: int) -> WordHead:
        """The head with fresh weights."""
        from clozelab.objectives.heads.words import WordHead

        return WordHead(encoder, self.words, samples=self.samples)

"""Language models: a token from what is left of its block, from its left, or in random order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import numpy as np

from clozelab.contracts import Blocks, Corrupted, Hidden, Targets
from clozelab.errors import UserError
from clozelab.objectives.objective import (
    Tied,
    Weighted,
    Widths,
    chosen,
    following,
    head_parameters,
)
from clozelab.packed import sums
from clozelab.ranges import PositiveInt, between

if TYPE_CHECKING:
    from clozelab.objectives.heads.vocabulary import PlainHead
    from clozelab.objectives.heads.words import WordHead

_MULTIPLE = 8  # slots in a block: so that shapes rarely change, and suit a device


@dataclass(frozen=True)
class _TableObjective(Weighted):
    """What has logits by a product with a table over the vocabulary."""

    # To the embedding table; false: the head has a table of its own. Recipes name it only then, so
    # that what was recorded before there was such a field is still the same recipe.
    tied: bool = field(default=True, metadata={"later": True})

    @property
    def head_kind(self) -> Literal["plain", "transform", "queries"]:
        """A table alone, BERT's head (§3.1: dense to the table's width, norm, bias) or XLNet's."""
        return "transform"

    def built_as(self, other: Self) -> Self:
        """With a table of its own where the other has one."""
        return replace(self, tied=self.tied and other.tied)

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable parameters of the head, by part."""
        counts = head_parameters(encoder, vocabulary)
        if self.head_kind != "transform":
            counts = {} if self.head_kind == "plain" else {"bias": counts["bias"]}
        return counts | ({} if self.tied else {"table": vocabulary * encoder.embedding_size})

    def build(self, encoder: Tied, vocabulary: int) -> PlainHead:
        """The head with fresh weights."""
        from clozelab.objectives.heads.vocabulary import HEADS

        return HEADS[self.head_kind](encoder, vocabulary, tied=self.tied)


@dataclass(frozen=True)
class MaskedLm(_TableObjective):
    """The hidden tokens (BERT §3.1, task 1), through BERT's head and the embedding table.

    `weighting = "inverse_rate"` divides each loss by the share of its block that is hidden, and
    their sum by all tokens that may be: where every share is as likely as any other, the mean is a
    bound on the negative log-likelihood of a token (MDLM, arXiv:2406.07524). `shift = 1` predicts a
    token one place earlier, as a causal language model does (arXiv:2410.24159, Figure 1).
    """

    needs: ClassVar[frozenset[str]] = frozenset({"targets", "token_vectors"})
    language_model: ClassVar[Literal["masked", "causal", "permutation"] | None] = "masked"

    weighting: Literal["even", "inverse_rate"] = field(default="even", metadata={"later": True})
    # How many places before a token the state lies that predicts it.
    shift: Annotated[int, between(0, 1, "must be 0 or 1")] = field(
        default=0, metadata={"later": True}
    )

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """What is predicted in some blocks."""
        targets = chosen(blocks, hidden, corrupted, shift=self.shift)
        if self.weighting == "even":
            return targets
        counts = np.diff(targets.starts)
        weights = np.repeat(sums(~blocks.fixed, blocks.starts) / np.maximum(counts, 1), counts)
        return replace(targets, columns={**targets.columns, "weights": weights})


@dataclass(frozen=True)
class CausalLm(_TableObjective):
    """Every token from those to its left (GPT; BERT §5.1's ablation), through the embedding table.

    `head = "plain"` is GPT's, the table alone; "transform" is BERT's dense, norm and bias, so
    that a left-to-right ablation differs from BERT in nothing else. "shared" is the head of
    masked_lm, beside which it is trained in blocks that are read causally.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"causal_blocks", "token_vectors"})
    language_model: ClassVar[Literal["masked", "causal", "permutation"] | None] = "causal"

    head: Literal["plain", "transform", "shared"] = "plain"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head == "shared" and not self.tied:
            raise UserError('tied = false: has no effect with head = "shared"; set it of masked_lm')

    @property
    def head_of(self) -> str | None:
        """That of masked_lm, where it is shared."""
        return "masked_lm" if self.head == "shared" else None

    @property
    def head_kind(self) -> Literal["plain", "transform", "queries"]:
        """As the recipe says; one that is shared is BERT's."""
        return "transform" if self.head == "shared" else self.head

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable parameters of the head, by part."""
        return {} if self.head_of else super().parameters(encoder, vocabulary)

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """What is predicted in some blocks."""
        return following(blocks)


@dataclass(frozen=True)
class PermutationLm(_TableObjective):
    """Targets in random order, each from those before, by the query stream (XLNet §2.2-2.3)."""

    needs: ClassVar[frozenset[str]] = frozenset({"targets", "order_of_prediction", "two_streams"})
    language_model: ClassVar[Literal["masked", "causal", "permutation"] | None] = "permutation"
    head_kind: ClassVar[Literal["queries"]] = "queries"

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """What is predicted in some blocks, the same number of slots T in each.

        So the columns are rectangles [B, T], laid flat: the encoder's queries. Slots that are left
        over ask at the block's first place and are ignored.
        """
        at = hidden.positions
        rows = blocks.rows[at]
        counts = np.bincount(rows, minlength=len(blocks))
        most = -(-int(counts.max(initial=0)) // _MULTIPLE) * _MULTIPLE
        slots = max(1, min(most, int(blocks.lengths.max(initial=0))))
        slot = np.arange(len(at)) - (np.cumsum(counts) - counts)[rows]
        positions = np.zeros((len(blocks), slots), dtype=np.int64)
        labels = np.full((len(blocks), slots), Targets.IGNORED, dtype=np.int64)
        positions[rows, slot] = blocks.positions[at]
        labels[rows, slot] = blocks.ids[at]
        columns = {"queries": positions.reshape(-1), "labels": labels.reshape(-1)}
        return Targets(np.arange(len(blocks) + 1) * slots, columns)


@dataclass(frozen=True)
class BidirectionalLm(Weighted):
    """Every word from its left and from its right (ELMo §3.1), through one softmax over words.

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
        return {"words": self.words * encoder.hidden_size, "bias": self.words}

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """At every word the next and the one before; from `words` on they are unknown words."""
        spelled = blocks.words
        assert spelled is not None, "blocks of tokens have no words"
        numbers = np.where(spelled.ids < self.words, spelled.ids, 0).astype(np.int64)
        first, last = spelled.starts[:-1], spelled.starts[1:] - 1
        some = first <= last
        following, before = np.roll(numbers, -1), np.roll(numbers, 1)
        following[last[some]] = before[first[some]] = Targets.IGNORED
        lengths = np.diff(spelled.starts)
        places = np.arange(len(numbers)) - np.repeat(first, lengths)
        columns = {"at": places, "labels": following, "back_labels": before}
        return Targets(spelled.starts, columns)

    def build(self, encoder: Widths, vocabulary: int) -> WordHead:
        """The head with fresh weights."""
        from clozelab.objectives.heads.words import WordHead

        return WordHead(encoder, self.words, samples=self.samples)

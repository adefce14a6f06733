"""Language models: masked, causal, permutation (XLNet) and bidirectional (ELMo)."""

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

_MULTIPLE = 8  # of a block's slots, so that shapes rarely change


@dataclass(frozen=True)
class _TableObjective(Weighted):
    """An objective whose logits are a product with a table over the vocabulary."""

    # To the embedding table; false: the head has a table of its own. Recipes name it only then, so
    # that those recorded before there was this field are unchanged.
    tied: bool = field(default=True, metadata={"later": True})

    @property
    def head_kind(self) -> Literal["plain", "transform", "queries"]:
        """A table alone, BERT's head (§3.1: dense to the table's width, norm, bias) or XLNet's."""
        return "transform"

    def built_as(self, other: Self) -> Self:
        """The same objective, with a table of its own if the other has one."""
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
    """Predicts the masked tokens (BERT §3.1, task 1), by BERT's head and the embedding table.

    `weighting = "inverse_rate"` divides each loss by the mask rate of its block, and their sum by
    all tokens that could be masked: if mask rates are uniformly distributed, the mean is a bound on
    the negative log-likelihood per token (MDLM, arXiv:2406.07524). `shift = 1` predicts a token at
    the position before it, as a causal language model does (arXiv:2410.24159, Figure 1).
    """

    needs: ClassVar[frozenset[str]] = frozenset({"targets", "token_vectors"})
    reads: ClassVar[tuple[str, ...]] = ("at",)
    language_model: ClassVar[Literal["masked", "causal", "permutation"] | None] = "masked"

    weighting: Literal["even", "inverse_rate"] = field(default="even", metadata={"later": True})
    # How many positions before a token its prediction is made.
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
    """Predicts every token from those to its left (GPT; BERT §5.1's ablation), by the tied table.

    `head = "plain"` is GPT's, the table alone; "transform" is BERT's dense, norm and bias, so
    that a left-to-right ablation differs from BERT in nothing else. "shared" is the head of
    masked_lm, for recipes in which some blocks are read causally.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"causal_blocks", "token_vectors"})
    reads: ClassVar[tuple[str, ...]] = ("at",)
    language_model: ClassVar[Literal["masked", "causal", "permutation"] | None] = "causal"

    head: Literal["plain", "transform", "shared"] = "plain"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head == "shared" and not self.tied:
            raise UserError('tied = false: has no effect with head = "shared"; set it in masked_lm')

    @property
    def head_of(self) -> str | None:
        """The objective whose head is shared, or None."""
        return "masked_lm" if self.head == "shared" else None

    @property
    def head_kind(self) -> Literal["plain", "transform", "queries"]:
        """The recipe's; a shared head is BERT's."""
        return "transform" if self.head == "shared" else self.head

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable parameters of the head, by part."""
        return {} if self.head_of else super().parameters(encoder, vocabulary)

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """What is predicted in some blocks."""
        return following(blocks)


@dataclass(frozen=True)
class PermutationLm(_TableObjective):
    """Predicts targets in random order, each from those before, by queries (XLNet §2.2-2.3)."""

    needs: ClassVar[frozenset[str]] = frozenset({"targets", "order_of_prediction", "two_streams"})
    language_model: ClassVar[Literal["masked", "causal", "permutation"] | None] = "permutation"
    head_kind: ClassVar[Literal["queries"]] = "queries"

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """The targets of the blocks, with the same number of slots T in each.

        So the columns are flattened [B, T] arrays, the encoder's queries. Unused slots have the
        block's first position and are ignored.
        """
        at = hidden.positions
        rows = blocks.rows[at]
        counts = np.bincount(rows, minlength=len(blocks))
        rounded = -(-int(counts.max(initial=0)) // _MULTIPLE) * _MULTIPLE
        slots = max(1, min(rounded, int(blocks.lengths.max(initial=0))))
        slot = np.arange(len(at)) - (np.cumsum(counts) - counts)[rows]
        positions = np.zeros((len(blocks), slots), dtype=np.int64)
        labels = np.full((len(blocks), slots), Targets.IGNORED, dtype=np.int64)
        positions[rows, slot] = blocks.positions[at]
        labels[rows, slot] = blocks.ids[at]
        columns = {"queries": positions.reshape(-1), "labels": labels.reshape(-1)}
        return Targets(np.arange(len(blocks) + 1) * slots, columns)


@dataclass(frozen=True)
class BidirectionalLm(Weighted):
    """Predicts every word from its left and from its right (ELMo §3.1), by a softmax over words.

    `words` is the size of the softmax, `samples` how many words are sampled in a training step; an
    evaluation uses them all. Positions of targets count words.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"words", "two_directions"})
    reads: ClassVar[tuple[str, ...]] = ("at",)

    words: PositiveInt = 793471
    samples: PositiveInt = 8192

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples > self.words:
            raise UserError(f"samples = {self.samples}: must be from 1 to words = {self.words}")

    def with_words(self, most: int) -> BidirectionalLm:
        """The same objective with a softmax over at most `most` words."""
        words = min(self.words, most)
        return replace(self, words=words, samples=min(self.samples, words))

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable parameters of the head, by part."""
        return {"words": self.words * encoder.hidden_size, "bias": self.words}

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """At every word the next word and the one before; ids from `words` on are unknown words."""
        spelled = blocks.words
        assert spelled is not None, "blocks of tokens have no words"
        numbers = np.where(spelled.ids < self.words, spelled.ids, 0).astype(np.int64)
        first, last = spelled.starts[:-1], spelled.starts[1:] - 1
        nonempty = first <= last
        following, before = np.roll(numbers, -1), np.roll(numbers, 1)
        following[last[nonempty]] = before[first[nonempty]] = Targets.IGNORED
        lengths = np.diff(spelled.starts)
        positions = np.arange(len(numbers)) - np.repeat(first, lengths)
        columns = {"at": positions, "labels": following, "back_labels": before}
        return Targets(spelled.starts, columns)

    def build(self, encoder: Widths, vocabulary: int) -> WordHead:
        """The head with fresh weights."""
        from clozelab.objectives.heads.words import WordHead

        return WordHead(encoder, self.words, samples=self.samples)

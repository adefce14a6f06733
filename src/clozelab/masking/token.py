"""Strategies that hide single tokens: evenly, by rarity, at a rate of each block's own, or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from clozelab.contracts import Blocks, Bools, Hidden, Ints, Vocabulary
from clozelab.errors import UserError
from clozelab.keys import randint, uniform
from clozelab.masking.units import (
    Cap,
    Over,
    Rated,
    block_draws,
    budget,
    content,
    counted,
    draws,
    lowest,
    refuse_with_coins,
    smallest,
)
from clozelab.ranges import Part


@dataclass(frozen=True)
class Token(Rated):
    """Hide single tokens, each as likely as any other (BERT §3.1, RoBERTa §4.1).

    `count` is the rule for how many: "round" (BERT) rounds rate · length to the nearest integer,
    "floor" takes floor(rate · length + U), U uniform in [0, 1), as fairseq does, but at least one,
    which fairseq does not see to; "bernoulli" (transformers) tosses a coin for every token, so
    that a block may hide none. `specials` lets specials be hidden, as in fairseq.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"targets"})

    count: Literal["round", "floor", "bernoulli"] = "round"
    over: Over = "length"
    cap: Cap | None = None  # the most tokens to hide in a block
    specials: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count == "bernoulli":
            refuse_with_coins(self.cap, self.over)

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        """Choose tokens; see `Masking`."""
        free = np.ones_like(blocks.fixed) if self.specials else ~blocks.fixed
        if self.count == "bernoulli":
            chosen = free & (uniform(draws(blocks, key, 0)) < self.mask_rate)
            return _single(np.flatnonzero(chosen))
        return _evenly(blocks, key, free, counts=self._wanted(blocks, key))

    def _wanted(self, blocks: Blocks, key: int) -> Ints:
        if self.count == "round":
            return budget(blocks, self.mask_rate, over=self.over, cap=self.cap)
        extra = uniform(block_draws(blocks, key, 0))
        count = counted(blocks, self.over)
        wanted = np.maximum(1, np.floor(self.mask_rate * count + extra).astype(np.int64))
        return wanted if self.cap is None else np.minimum(self.cap, wanted)


@dataclass(frozen=True)
class Rarity(Rated):
    """Hide tokens with weight count^(−smoothing), without replacement (DistilBERT's training code).

    The number hidden is exact. `scope = "batch"` draws over all blocks at once, as the published
    code did: a block may then hide far more or less than its share, and its mask depends on its
    batch-mates.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"targets"})

    smoothing: float = 0.7  # 0: every token alike, 1: rare ones by the inverse of their count
    scope: Literal["block", "batch"] = "block"

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        """Choose tokens; see `Masking`."""
        if vocabulary.counts is None:
            raise UserError(
                "masking rarity needs how often each token occurs: give it a corpus (--corpus DIR)"
            )
        free = np.flatnonzero(~blocks.fixed)
        counts = np.maximum(vocabulary.counts[blocks.ids[free]], 1).astype(np.float64)
        # The smallest of exponentials with rates w is a draw in proportion to w; and so on down.
        waits = -np.log1p(-uniform(draws(blocks, key, 0, free))) * counts**self.smoothing
        lengths, sizes = blocks.lengths, content(blocks)
        if self.scope == "batch":
            lengths, sizes = np.array([len(blocks.ids)]), np.array([len(free)])
        wanted = np.ceil(self.mask_rate * lengths - 1e-9).astype(np.int64)
        return _single(free[lowest(waits, sizes, counts=wanted, fill=np.inf)])


@dataclass(frozen=True)
class UniformRate(Part):
    """Hide a share of each block that is drawn for it, uniform in (0, 1] (arXiv:2406.07524).

    Of the n tokens that may be hidden, k are: each k from 1 to n is as likely as any other, and so
    is each token.
    """

    # Differs from MDLM, which tosses a coin for each token at a rate t, so that t is the share on
    # average alone. The bound is the same with less variance (LLaDA, arXiv:2502.09992 §2.4), and no
    # block is without a target.

    provides: ClassVar[frozenset[str]] = frozenset({"targets"})

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        """Choose tokens; see `Masking`."""
        available = content(blocks)
        counts = np.minimum(1 + randint(block_draws(blocks, key, 0), available), available)
        return _evenly(blocks, key, ~blocks.fixed, counts=counts)


@dataclass(frozen=True)
class NoMasking(Part):
    """Hide nothing: for objectives that predict every token from one side (GPT, ELMo)."""

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        """Choose nothing; see `Masking`."""
        return _single(np.empty(0, dtype=np.int64))


def _evenly(blocks: Blocks, key: int, free: Bools, *, counts: Ints) -> Hidden:
    """So many of each block's free tokens, or all it has, each as likely as any other."""
    keys, places = draws(blocks, key, 0), blocks.positions
    chosen = smallest(keys, places, blocks.lengths, counts=counts, among=free)
    return _single(np.flatnonzero(chosen))


def _single(chosen: Ints) -> Hidden:
    """Tokens as spans of one each."""
    return Hidden(np.stack([chosen, chosen + 1], axis=1))

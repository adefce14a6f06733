"""Strategies that mask single tokens: uniformly, by rarity, at a random rate, or none."""

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
    """Mask single tokens uniformly (BERT §3.1, RoBERTa §4.1).

    `count` is the rule for how many: "round" (BERT) rounds rate · length to the nearest integer,
    "floor" takes floor(rate · length + U), U uniform in [0, 1), as fairseq does, but at least one,
    unlike fairseq; "bernoulli" (transformers) draws for every token, so that a block may have none.
    `specials` allows special tokens to be masked, as in fairseq.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"targets"})

    count: Literal["round", "floor", "bernoulli"] = "round"
    over: Over = "length"
    cap: Cap | None = None  # the most masked tokens of a block
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
            return _single_spans(np.flatnonzero(chosen))
        return _choose_uniformly(blocks, key, free, counts=self._wanted(blocks, key))

    def _wanted(self, blocks: Blocks, key: int) -> Ints:
        if self.count == "round":
            return budget(blocks, self.mask_rate, over=self.over, cap=self.cap)
        extra = uniform(block_draws(blocks, key, 0))
        count = counted(blocks, self.over)
        wanted = np.maximum(1, np.floor(self.mask_rate * count + extra).astype(np.int64))
        return wanted if self.cap is None else np.minimum(self.cap, wanted)


@dataclass(frozen=True)
class Rarity(Rated):
    """Mask tokens with weight count^(−smoothing), without replacement (DistilBERT's training code).

    The number is exact. `scope = "batch"` draws over all blocks at once, as the published code did:
    a block may then have far more or fewer than its share, and its mask depends on the other blocks
    of the batch.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"targets"})

    smoothing: float = 0.7  # 0: all tokens equally, 1: by the inverse of their count
    scope: Literal["block", "batch"] = "block"

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        """Choose tokens; see `Masking`."""
        if vocabulary.counts is None:
            raise UserError("masking rarity needs the token counts; give a corpus (--corpus DIR)")
        free = np.flatnonzero(~blocks.fixed)
        counts = np.maximum(vocabulary.counts[blocks.ids[free]], 1).astype(np.float64)
        # The smallest of exponentials with rates w is a draw in proportion to w; likewise the next.
        waits = -np.log1p(-uniform(draws(blocks, key, 0, free))) * counts**self.smoothing
        lengths, sizes = blocks.lengths, content(blocks)
        if self.scope == "batch":
            lengths, sizes = np.array([len(blocks.ids)]), np.array([len(free)])
        wanted = np.ceil(self.mask_rate * lengths - 1e-9).astype(np.int64)
        return _single_spans(free[lowest(waits, sizes, counts=wanted, fill=np.inf)])


@dataclass(frozen=True)
class UniformRate(Part):
    """Mask each block at a rate drawn for it, uniform in (0, 1] (arXiv:2406.07524).

    Of the n tokens that may be masked, k are: k is uniform from 1 to n, and so is the choice of
    tokens.
    """

    # Differs from MDLM, which masks each token with probability t, so that t is the share only on
    # average. The bound is the same with less variance (LLaDA, arXiv:2502.09992 §2.4), and no block
    # is without a target.

    provides: ClassVar[frozenset[str]] = frozenset({"targets"})

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        """Choose tokens; see `Masking`."""
        available = content(blocks)
        counts = np.minimum(1 + randint(block_draws(blocks, key, 0), available), available)
        return _choose_uniformly(blocks, key, ~blocks.fixed, counts=counts)


@dataclass(frozen=True)
class NoMasking(Part):
    """Mask nothing: for objectives that predict every token from one side (GPT, ELMo)."""

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        """Choose nothing; see `Masking`."""
        return _single_spans(np.empty(0, dtype=np.int64))


def _choose_uniformly(blocks: Blocks, key: int, free: Bools, *, counts: Ints) -> Hidden:
    """`counts` of each block's free tokens, or all it has, chosen uniformly."""
    keys, positions = draws(blocks, key, 0), blocks.positions
    chosen = smallest(keys, positions, blocks.lengths, counts=counts, among=free)
    return _single_spans(np.flatnonzero(chosen))


def _single_spans(chosen: Ints) -> Hidden:
    """The chosen tokens as spans of length 1."""
    return Hidden(np.stack([chosen, chosen + 1], axis=1))

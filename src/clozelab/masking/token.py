"""Strategies that hide single tokens: evenly (BERT, RoBERTa), by rarity (DistilBERT), or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from clozelab.contracts import Blocks, Hidden, Ints, Vocabulary
from clozelab.errors import UserError
from clozelab.keys import uniform
from clozelab.masking.units import (
    Cap,
    Over,
    Rated,
    block_draws,
    budget,
    draws,
    lowest,
    refuse_cap,
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
            refuse_cap(self.cap)

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        """Choose tokens; see `Masking`."""
        free = np.arange(len(blocks.ids)) if self.specials else np.flatnonzero(~blocks.fixed)
        keys = draws(blocks, key, 0)[free]
        if self.count == "bernoulli":
            return _single(free[uniform(keys) < self.mask_rate])
        rows, places = blocks.rows[free], blocks.positions[free]
        available = np.bincount(rows, minlength=len(blocks))
        counts = np.minimum(self._wanted(blocks, key), available)
        return _single(free[smallest(keys, rows, places, counts=counts)])

    def _wanted(self, blocks: Blocks, key: int) -> Ints:
        if self.count == "round":
            return budget(blocks, self.mask_rate, over=self.over, cap=self.cap)
        extra = uniform(block_draws(blocks, key, 0))
        wanted = np.maximum(1, np.floor(self.mask_rate * blocks.lengths + extra).astype(np.int64))
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
        waits = -np.log1p(-uniform(draws(blocks, key, 0)[free])) * counts**self.smoothing
        rows, places, sizes = blocks.rows[free], blocks.positions[free], blocks.lengths
        if self.scope == "batch":
            rows, places = np.zeros_like(free), np.arange(len(free))
            sizes = np.array([len(blocks.ids)])
        wanted = np.ceil(self.mask_rate * sizes - 1e-9).astype(np.int64)
        return _single(free[lowest(waits, rows, places, counts=wanted, fill=np.inf)])


@dataclass(frozen=True)
class NoMasking(Part):
    """Hide nothing: for objectives that predict every token from one side (GPT, ELMo)."""

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        """Choose nothing; see `Masking`."""
        return _single(np.empty(0, dtype=np.int64))


def _single(chosen: Ints) -> Hidden:
    """Tokens as spans of one each."""
    return Hidden(np.stack([chosen, chosen + 1], axis=1))

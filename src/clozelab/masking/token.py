"""Token masking: single tokens, under the three count rules in use (BERT §3.1, RoBERTa §4.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from clozelab.contracts import Blocks, Hidden, Ints, Vocabulary
from clozelab.keys import uniform
from clozelab.masking.units import (
    Cap,
    MaskRate,
    Over,
    block_draws,
    budget,
    draws,
    refuse_cap,
    smallest,
)
from clozelab.ranges import Checked


@dataclass(frozen=True)
class Token(Checked):
    """Hide single tokens, each as likely as any other.

    `count` is the rule for how many: "round" (BERT) rounds rate · length to the nearest integer,
    "floor" takes floor(rate · length + U), U uniform in [0, 1), as fairseq does, but at least one,
    which fairseq does not see to; "bernoulli" (transformers) tosses a coin for every token, so
    that a block may hide none. `specials` lets specials be hidden, as in fairseq.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"targets"})
    needs: ClassVar[frozenset[str]] = frozenset()

    rate: MaskRate = 0.15  # share of the tokens to hide
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
        open_ = np.ones_like(blocks.fixed) if self.specials else ~blocks.fixed
        free = np.flatnonzero(open_)
        keys = draws(blocks, key, 0)[free]
        if self.count == "bernoulli":
            chosen = free[uniform(keys) < self.rate]
        else:
            wanted = self._wanted(blocks, key)
            rows, places = blocks.rows[free], blocks.places[free]
            available = np.bincount(rows, minlength=len(blocks))
            counts = np.minimum(wanted, available)
            chosen = free[smallest(keys, rows, places, counts=counts)]
        return Hidden(np.stack([chosen, chosen + 1], axis=1))

    def _wanted(self, blocks: Blocks, key: int) -> Ints:
        if self.count == "round":
            return budget(blocks, self.rate, over=self.over, cap=self.cap)
        extra = uniform(block_draws(blocks, key, 0))
        wanted = np.maximum(1, np.floor(self.rate * blocks.lengths + extra).astype(np.int64))
        return wanted if self.cap is None else np.minimum(self.cap, wanted)

"""Knowledge masking: phrases and named entities all or nothing (ERNIE 1.0 §3.2)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np

from clozelab.contracts import Blocks, Bools, Hidden, Ints, Mark, UserError, Vocabulary
from clozelab.keys import mix, unit
from clozelab.masking.units import (
    Over,
    block_draws,
    budget,
    check_cap,
    check_rate,
    divide,
    draws,
    spans,
    take,
    whole,
)

LEVELS = {"character": 0, "word": Mark.WORD, "phrase": Mark.PHRASE, "entity": Mark.ENTITY}


@dataclass(frozen=True)
class Knowledge:
    """Hide units of one level, the level drawn for each block by the weights `levels`.

    At level "character" every token is a unit; elsewhere a token outside any unit is one by
    itself. `choose = "budget"` takes units up to the budget, "bernoulli" tosses a coin for each
    unit, as the published code did; `pick = "epoch"` draws one level for a whole epoch, its other
    habit. `stages` turns the levels into a curriculum: shares of the run, in the levels' order.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"targets", "spans"})
    needs: ClassVar[frozenset[str]] = frozenset()

    rate: float = 0.15
    levels: dict[str, float] = field(
        default_factory=lambda: {"character": 1.0, "phrase": 1.0, "entity": 1.0}
    )
    choose: Literal["budget", "bernoulli"] = "budget"
    over: Over = "length"
    cap: int | None = None
    pick: Literal["block", "epoch"] = "block"
    stages: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_rate(self.rate)
        check_cap(self.cap, counted=self.choose == "budget")
        for name in self.levels:
            if name not in LEVELS:
                raise UserError(f"levels.{name}: unknown; the levels are {', '.join(LEVELS)}")
        if not self.levels or min(self.levels.values()) < 0 or sum(self.levels.values()) <= 0:
            raise UserError("levels: give at least one level a weight above 0")
        if self.stages and len(self.stages) != len(self.levels):
            raise UserError(f"stages: give one share for each of {', '.join(self.levels)}")
        if self.stages and (min(self.stages) < 0 or sum(self.stages) <= 0):
            raise UserError("stages: shares are at least 0, and some are above 0")
        if self.stages and not next(iter(self.levels.values())):
            raise UserError("stages: the first level stands alone at first: weigh it above 0")

    def stage(self, progress: float) -> Knowledge:
        """The strategy at a point of the run: stage k draws from the first k levels only."""
        if not self.stages:
            return self
        ends = np.cumsum(self.stages) / sum(self.stages)
        reached = 1 + int(np.searchsorted(ends[:-1], progress, side="right"))
        levels = dict(list(self.levels.items())[:reached])
        return replace(self, levels=levels, stages=())

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        """Choose units; see `Masking`."""
        units = divide(blocks, self._begins(blocks, key))
        keys = draws(blocks, key, 0)[units.first]
        if self.choose == "bernoulli":
            groups = np.full(len(blocks.ids), -1, dtype=np.int64)
            free = ~blocks.fixed
            picked = np.where(unit(keys) < self.rate, np.arange(len(keys)), -1)
            groups[free] = picked[units.of[free]]
            return Hidden(spans(blocks, groups))
        wanted = budget(blocks, self.rate, over=self.over, cap=self.cap)
        return Hidden(whole(blocks, units, take(units, wanted, keys), wanted=wanted))

    def _begins(self, blocks: Blocks, key: int) -> Bools:
        """[N] the tokens that begin a unit of their block's level."""
        bits = np.array([LEVELS[name] for name in self.levels], dtype=np.uint8)
        bit = bits[self.picked(blocks, key)][blocks.rows]
        return np.asarray((bit == 0) | ((blocks.marks & bit) != 0))

    def picked(self, blocks: Blocks, key: int) -> Ints:
        """[B] which of `levels` each block uses."""
        share = np.cumsum(np.array(list(self.levels.values())))
        if self.pick == "epoch":
            draw = np.repeat(unit(mix(key, 0)), len(blocks))
        else:
            draw = unit(block_draws(blocks, key, 0))
        return np.asarray(np.searchsorted(share[:-1], draw * share[-1], side="right"))

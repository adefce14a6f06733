"""Knowledge masking: whole phrases and named entities (ERNIE 1.0 §3.2)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np

from clozelab.contracts import Blocks, Bools, Hidden, Ints, Keys, Mark, Vocabulary
from clozelab.errors import UserError
from clozelab.keys import mix, randint, uniform
from clozelab.masking.units import (
    Cap,
    Over,
    Rated,
    Units,
    block_draws,
    budget,
    divide,
    draws,
    refuse_with_coins,
    spans,
)
from clozelab.ranges import NonNegativeFloat

LEVELS = {"character": 0, "word": Mark.SEGMENT, "phrase": Mark.PHRASE, "entity": Mark.ENTITY}


@dataclass(frozen=True)
class Knowledge(Rated):
    """Mask units of one level, which is drawn for each block by the weights `levels`.

    At level "character" every token is a unit, at "word" a segmenter's word; elsewhere a token
    outside any unit is one by itself. `choose = "budget"` masks as many tokens as the budget says
    on average and every unit of a block with the same probability, however long it is: the units
    are placed on a circle in random order, and those that begin inside a window are masked. So a
    block misses its budget by less than its longest unit, and one with a unit longer than its
    budget may have no masks. "bernoulli" draws for each unit, and `pick = "epoch"` draws one level
    for a whole epoch, both as the published code did. `stages` turns the levels into a curriculum:
    shares of the run, in the levels' order.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"targets", "spans"})

    levels: dict[str, float] = field(
        default_factory=lambda: {"character": 1.0, "phrase": 1.0, "entity": 1.0}
    )
    choose: Literal["budget", "bernoulli"] = "budget"
    over: Over = "length"
    cap: Cap | None = None  # the most tokens to hide in a block
    pick: Literal["block", "epoch"] = "block"
    stages: tuple[NonNegativeFloat, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.choose == "bernoulli":
            refuse_with_coins(self.cap, self.over)
        for name in self.levels:
            if name not in LEVELS:
                raise UserError(f"levels.{name}: is unknown; choose from {', '.join(LEVELS)}")
        if not self.levels or min(self.levels.values()) < 0 or sum(self.levels.values()) <= 0:
            raise UserError("levels: give at least one level a weight above 0")
        if self.stages and len(self.stages) != len(self.levels):
            raise UserError(f"stages: give one share for each of {', '.join(self.levels)}")
        if self.stages and not sum(self.stages):
            raise UserError("stages: give at least one a share above 0")
        if self.stages and not next(iter(self.levels.values())):
            raise UserError(
                "stages: the first level is used alone at first; give it a weight above 0"
            )

    @property
    def units(self) -> tuple[str, ...]:
        """The units that a corpus must have: those of the levels with a weight."""
        drawn = (name for name, weight in self.levels.items() if weight)
        return tuple("segment" if name == "word" else name for name in drawn if LEVELS[name])

    def stage(self, progress: float) -> Knowledge:
        """The strategy at a point of the run: stage k draws from the first k levels only."""
        now = super().stage(progress)
        if not self.stages:
            return now
        ends = np.cumsum(self.stages) / sum(self.stages)
        reached = 1 + int(np.searchsorted(ends[:-1], progress, side="right"))
        levels = dict(list(self.levels.items())[:reached])
        return replace(now, levels=levels, stages=())

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        """Choose units; see `Masking`."""
        units = divide(blocks, self.begins(blocks, key))
        keys = draws(blocks, key, 0, units.first)
        if self.choose == "bernoulli":
            chosen = np.asarray(uniform(keys) < self.mask_rate)
        else:
            wanted = budget(blocks, self.mask_rate, over=self.over, cap=self.cap)
            chosen = _in_window(units, keys, wanted=wanted, turns=block_draws(blocks, key, 1))
        groups = np.full(len(blocks.ids), -1, dtype=np.int64)
        free = ~blocks.fixed
        groups[free] = np.where(chosen, np.arange(len(chosen)), -1)[units.of[free]]
        return Hidden(spans(blocks, groups))

    def begins(self, blocks: Blocks, key: int) -> Bools:
        """[N] the tokens that begin a unit of their block's level."""
        bits = np.array([LEVELS[name] for name in self.levels], dtype=np.uint8)
        bit = bits[self.picked(blocks, key)][blocks.rows]
        return np.asarray((bit == 0) | ((blocks.marks & bit) != 0))

    def picked(self, blocks: Blocks, key: int) -> Ints:
        """[B] which of `levels` each block uses."""
        share = np.cumsum(np.array(list(self.levels.values())))
        if self.pick == "epoch":
            draw = np.repeat(uniform(mix(key, 0)), len(blocks))
        else:
            draw = uniform(block_draws(blocks, key, 0))
        return np.asarray(np.searchsorted(share[:-1], draw * share[-1], side="right"))


def _in_window(units: Units, keys: Keys, *, wanted: Ints, turns: Keys) -> Bools:
    """[U] whether each unit begins inside a window of `wanted` tokens on its block's circle.

    A unit begins anywhere on the circle with the same probability, so each is masked in
    wanted / tokens of all draws. If every unit is one token, the random order is enough, and the
    choice is that of token masking.
    """
    order = np.lexsort((keys, units.rows))
    sizes = units.sizes[order]
    before = np.cumsum(sizes) - sizes
    positions = np.empty_like(before)
    positions[order] = before
    tokens = np.bincount(units.rows, weights=units.sizes, minlength=len(wanted)).astype(np.int64)
    positions -= (np.cumsum(tokens) - tokens)[units.rows]
    rotation = np.where(tokens == units.counts, 0, randint(turns, tokens))
    return np.asarray((positions - rotation[units.rows]) % tokens[units.rows] < wanted[units.rows])

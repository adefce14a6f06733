"""What the strategies share: draws per block, the budget, units of text, and the greedy choice.

Blocks of different lengths are laid into rectangles (blocks × units), and all blocks take their
n-th step together: a batch costs as many numpy calls as its slowest block has steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Literal, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clozelab.contracts import Array, Blocks, Bools, Ints, Keys
from clozelab.course import Course, check_course, factor_at
from clozelab.errors import UserError
from clozelab.keys import mix
from clozelab.packed import ranges
from clozelab.ranges import Part, at_least, inside

MaskRate = Annotated[
    float, inside(0, 1, "hide more than none and less than all, for instance 0.15")
]
Cap = Annotated[int, at_least(1, "leave it out, or allow at least one prediction")]
Over = Literal["length", "content"]  # the rate is a share of all tokens, or of those not special
T = TypeVar("T", bound=np.generic)

_DRAWS = 8  # draws a strategy may make for one position
_PLACE_BITS = 16  # low bits of a key that hold its place in a rectangle; more where it is wider
_LAST = np.uint64(0xFFFFFFFFFFFFFFFF)  # sorts behind every key


@dataclass(frozen=True)
class Rated(Part):
    """A strategy that hides a share of the tokens, which may change over the run."""

    mask_rate: MaskRate = 0.15  # share of the tokens to hide
    # (share of the run, factor of the rate), linear in between; recipes name it only if they have
    # one.
    course: Course = field(default=(), metadata={"later": True}, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_course(self.course)
        for _, factor in self.course:
            if not 0 < factor * self.mask_rate < 1:
                raise UserError(
                    f"course: a factor of {factor} makes mask_rate = {self.mask_rate} one of"
                    f" {factor * self.mask_rate:g}; hide more than none and less than all"
                )

    def stage(self, progress: float) -> Self:
        """The strategy at a point of the run, which has no course any more."""
        if not self.course:
            return self
        rate = self.mask_rate * factor_at(self.course, progress)
        return replace(self, mask_rate=rate, course=())


def draws(blocks: Blocks, key: int, draw: int, at: Ints | None = None) -> Keys:
    """[N] one key per token, for the strategy's draw number `draw`; or of those `at` [K] alone."""
    by_block = mix(key, blocks.numbers)
    if at is None:
        return mix(np.repeat(by_block, blocks.lengths), blocks.positions * _DRAWS + draw)
    return mix(by_block[blocks.rows[at]], blocks.positions[at] * _DRAWS + draw)


def block_draws(blocks: Blocks, key: int, counter: ArrayLike) -> Keys:
    """[B] one key per block; counters here never meet those of positions."""
    return mix(mix(key, blocks.numbers) ^ np.uint64(0x5851F42D4C957F2D), counter)


def content(blocks: Blocks) -> Ints:
    """[B] tokens of each block that may be hidden."""
    return blocks.lengths - np.bincount(blocks.rows[blocks.fixed], minlength=len(blocks))


def budget(blocks: Blocks, rate: float, *, over: Over, cap: int | None) -> Ints:
    """[B] how many tokens to hide: round(rate · count), halves to even as Python rounds.

    At least one, at most `cap`; `over` says whether specials count, as they do in BERT's code.
    """
    wanted: Ints = np.maximum(1, np.rint(rate * counted(blocks, over)).astype(np.int64))
    return wanted if cap is None else np.minimum(cap, wanted)


def counted(blocks: Blocks, over: Over) -> Ints:
    """[B] the tokens of each block that a rate is a share of."""
    return blocks.lengths if over == "length" else content(blocks)


def refuse_with_coins(cap: int | None, over: Over) -> None:
    """Refuse what would not be heeded where a coin is tossed for each token."""
    if cap is not None:
        raise UserError(f"cap = {cap}: a coin for each token knows no cap: leave it out")
    if over != "length":
        raise UserError(f"over = {over}: a coin for each token counts none: leave it out")


def grid(sizes: Ints, values: NDArray[T], *, width: int, fill: object) -> NDArray[T]:
    """Packed rows as a rectangle, each filled up to the width."""
    out = np.full((len(sizes), width), fill, dtype=values.dtype)
    out[np.arange(width) < sizes[:, None]] = values
    return out


def lowest(values: Array, sizes: Ints, *, counts: Ints, fill: object) -> Bools:
    """Which elements of packed rows have the counts[row] lowest values of their row.

    `fill` is above them all.
    """
    width = int(sizes.max(initial=1))
    square = grid(sizes, values, width=width, fill=fill)
    square.sort(axis=1)
    limit = square[np.arange(len(counts)), np.clip(counts, 1, width) - 1]
    return np.less_equal(values, np.repeat(limit, sizes)) & np.repeat(counts > 0, sizes)


def smallest(keys: Keys, columns: Ints, sizes: Ints, *, counts: Ints, among: Bools) -> Bools:
    """Which of some elements of packed rows have the counts[row] smallest keys of their row."""
    untied = _untied(keys, columns, _places(int(sizes.max(initial=1)) - 1))
    untied[~among] = _LAST
    return lowest(untied, sizes, counts=counts, fill=_LAST) & among


def _places(last: int) -> np.uint64:
    """The bits of a key that hold a column, up to the last one."""
    return np.uint64((1 << max(_PLACE_BITS, last.bit_length())) - 1)


def _untied(keys: Keys, columns: Ints, places: np.uint64) -> Keys:
    """Keys whose low bits are the column, so that those of a row never tie."""
    untied = keys & ~places
    untied |= columns.astype(np.uint64)
    return untied


def inverse_lengths(longest: int, *, reverse: bool = False) -> Ints:
    """Running sum of integer weights in the proportions 1/1 : 1/2 : … : 1/longest, exactly."""
    lengths = np.arange(1, longest + 1)
    weights = int(np.lcm.reduce(lengths)) // lengths
    return np.cumsum(weights[::-1] if reverse else weights)


@dataclass(frozen=True)
class Units:
    """Some blocks divided into units: words, phrases, or single tokens.

    `of` gives each token its unit (specials belong to none), `stretch` the number of a unit's
    unbroken stretch between specials, which no run of units may leave.
    """

    of: Ints  # [N] unit of each token; meaningless where fixed
    rows: Ints  # [U] block
    sizes: Ints  # [U] tokens
    first: Ints  # [U] first token
    stretch: Ints  # [U]
    counts: Ints  # [B] units in each block

    @cached_property
    def columns(self) -> Ints:
        """[U] number inside the block."""
        return ranges(np.zeros_like(self.counts), self.counts)


def divide(blocks: Blocks, begins: Bools, *, joins_over_specials: bool = False) -> Units:
    """Units from the tokens that begin one.

    A token that begins none joins its left neighbour, unless that is special or of another block:
    then it opens a unit. Published code joined it to the last unit before the special
    (`joins_over_specials`).
    """
    free = ~blocks.fixed
    broken = np.zeros(len(free), dtype=bool)
    broken[1:] = blocks.fixed[:-1]
    broken[blocks.starts[:-1]] = True  # a block is never empty
    broken &= free
    alone = broken
    if joins_over_specials:  # a unit must already exist in the block to be joined
        before: Ints = np.cumsum(free, dtype=np.int64) - free
        alone = before == before[blocks.starts[:-1]][blocks.rows]
    opens = free & (begins | alone)
    of = np.cumsum(opens) - 1
    first = np.flatnonzero(opens)
    rows = blocks.rows[first]
    counts = np.bincount(rows, minlength=len(blocks))
    sizes = np.bincount(of[free], minlength=len(first))
    stretch: Ints = np.cumsum(broken, dtype=np.int64)
    return Units(of, rows, sizes, first, stretch[first], counts)


def take(
    units: Units, wanted: Ints, keys: Keys, *, lengths: Ints | None = None, straddle: bool = False
) -> Ints:
    """Visit units in random order and take those that fit; returns each unit's run, or −1.

    From each visited unit a run of `lengths` units is tried, cut at specials (unless `straddle`)
    and shortened until it fits the budget; a run that meets a taken unit is skipped. Where no
    unit of a block fits, nothing of that block is taken.
    """
    blocks, width = len(wanted), int(units.counts.max(initial=0))
    longest = 1 if lengths is None else int(lengths.max(initial=1))
    edge = width + longest - 1
    places = _places(max(width - 1, 0))
    untied = _untied(keys, units.columns, places)
    order = grid(units.counts, untied, width=width, fill=_LAST)
    order.sort(axis=1)
    visits = (order & places).astype(np.int64)
    size = grid(units.counts, units.sizes, width=edge + 1, fill=0)
    stretch = grid(units.counts, units.stretch, width=edge + 1, fill=-1)
    run = np.full((blocks, edge + 1), -1, dtype=np.int64)
    drawn = np.ones(len(units.first), dtype=np.int64) if lengths is None else lengths
    tries = grid(units.counts, drawn, width=edge + 1, fill=1)

    left = wanted.copy()
    active = np.flatnonzero((left > 0) & (units.counts > 0))
    for visit in range(width):
        at = visits[active, visit]
        tokens, length = np.zeros((2, len(active)), dtype=np.int64)
        alive, clear = np.ones((2, len(active)), dtype=bool)
        for step in range(longest):
            here = np.minimum(at + step, edge)
            alive &= (step < tries[active, at]) & (here < units.counts[active])
            if not straddle:
                alive &= stretch[active, here] == stretch[active, at]
            grown = tokens + size[active, here]
            alive &= grown <= left[active]
            clear &= ~alive | (run[active, here] < 0)
            tokens = np.where(alive, grown, tokens)
            length += alive
        taken = np.flatnonzero(clear & (length > 0))
        for step in range(longest):
            part = taken[length[taken] > step]
            run[active[part], at[part] + step] = visit
        left[active[taken]] -= tokens[taken]
        active = active[(left[active] > 0) & (visit + 1 < units.counts[active])]
        if not len(active):
            break
    return run[units.rows, units.columns]


def spans(blocks: Blocks, groups: Ints) -> Ints:
    """[·, 2] the maximal runs of tokens of one group, inside one block; group −1 is not hidden."""
    chosen = groups >= 0
    same = np.zeros(len(groups) + 1, dtype=bool)  # as the token before
    same[1:-1] = chosen[1:] & (groups[1:] == groups[:-1])
    same[blocks.starts] = False
    begin, last = np.flatnonzero(chosen & ~same[:-1]), np.flatnonzero(chosen & ~same[1:])
    return np.stack([begin, last + 1], axis=1)


def whole(blocks: Blocks, units: Units, run: Ints, *, wanted: Ints) -> Ints:
    """[·, 2] spans of the taken runs of units; a block that took none gives its shortest unit.

    That last resort keeps the promise that something is hidden: the unit is cut to the budget.
    """
    groups = np.full(len(blocks.ids), -1, dtype=np.int64)
    free = ~blocks.fixed
    if len(run):
        groups[free] = run[units.of[free]]
    hides = np.zeros(len(blocks), dtype=bool)
    hides[blocks.rows[groups >= 0]] = True
    for row in np.flatnonzero(~hides & (units.counts > 0)):  # rare: every unit over the budget
        members = np.flatnonzero(units.rows == row)
        pick = members[np.argmin(units.sizes[members])]
        groups[np.flatnonzero(free & (units.of == pick))[: wanted[row]]] = 0
    return spans(blocks, groups)

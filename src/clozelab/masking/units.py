"""What the strategies share: keyed draws, the budget, units of text, and the greedy choice.

Blocks of different lengths are padded to rectangles (blocks × units), and all blocks take their
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

MaskRate = Annotated[float, inside(0, 1, "must be above 0 and below 1, for instance 0.15")]
Cap = Annotated[int, at_least(1, "leave it out, or allow at least one prediction")]
Over = Literal["length", "content"]  # the rate is a share of all tokens, or of those not special
T = TypeVar("T", bound=np.generic)

_DRAWS = 8  # draws a strategy may make for one position
_COLUMN_BITS = 16  # low bits of a key that hold its column in a rectangle; more if it is wider
_LAST = np.uint64(0xFFFFFFFFFFFFFFFF)  # sorts after every key


@dataclass(frozen=True)
class Rated(Part):
    """A strategy that masks a share of the tokens, which may change over the run."""

    mask_rate: MaskRate = 0.15  # share of the tokens to mask
    # (share of the run, factor of the rate), linear in between; recipes name it only if they have
    # one.
    course: Course = field(default=(), metadata={"later": True}, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_course(self.course)
        for _, factor in self.course:
            if not 0 < factor * self.mask_rate < 1:
                raise UserError(
                    f"course: a factor of {factor} turns mask_rate = {self.mask_rate} into"
                    f" {factor * self.mask_rate:g}; it must stay above 0 and below 1"
                )

    def stage(self, progress: float) -> Self:
        """The strategy at a point of the run, with a constant rate."""
        if not self.course:
            return self
        rate = self.mask_rate * factor_at(self.course, progress)
        return replace(self, mask_rate=rate, course=())


def draws(blocks: Blocks, key: int, draw: int, at: Ints | None = None) -> Keys:
    """[N] one key per token, for the strategy's draw number `draw`; or only for those `at` [K]."""
    by_block = mix(key, blocks.numbers)
    if at is None:
        return mix(np.repeat(by_block, blocks.lengths), blocks.positions * _DRAWS + draw)
    return mix(by_block[blocks.rows[at]], blocks.positions[at] * _DRAWS + draw)


def block_draws(blocks: Blocks, key: int, counter: ArrayLike) -> Keys:
    """[B] one key per block, never equal to a key of a token."""
    return mix(mix(key, blocks.numbers) ^ np.uint64(0x5851F42D4C957F2D), counter)


def content(blocks: Blocks) -> Ints:
    """[B] how many tokens of each block may be masked."""
    return blocks.lengths - np.bincount(blocks.rows[blocks.fixed], minlength=len(blocks))


def budget(blocks: Blocks, rate: float, *, over: Over, cap: int | None) -> Ints:
    """[B] how many tokens to mask: round(rate · count), halves to even as Python rounds.

    At least one, at most `cap`; `over` says whether special tokens count, as in BERT's code.
    """
    wanted: Ints = np.maximum(1, np.rint(rate * counted(blocks, over)).astype(np.int64))
    return wanted if cap is None else np.minimum(cap, wanted)


def counted(blocks: Blocks, over: Over) -> Ints:
    """[B] the number of tokens of each block that the rate is a share of."""
    return blocks.lengths if over == "length" else content(blocks)


def refuse_with_coins(cap: int | None, over: Over) -> None:
    """Refuse settings that have no effect if each token is drawn independently."""
    for name, value, default in (("cap", cap, None), ("over", over, "length")):
        if value != default:
            raise UserError(
                f"{name} = {value}: has no effect when each token is drawn on its own; leave it out"
            )


def grid(sizes: Ints, values: NDArray[T], *, width: int, fill: object) -> NDArray[T]:
    """Packed rows as a rectangle, each padded to the width."""
    out = np.full((len(sizes), width), fill, dtype=values.dtype)
    out[np.arange(width) < sizes[:, None]] = values
    return out


def lowest(values: Array, sizes: Ints, *, counts: Ints, fill: object) -> Bools:
    """Whether each element of packed rows is among the counts[row] lowest of its row.

    `fill` must be above all values.
    """
    width = int(sizes.max(initial=1))
    square = grid(sizes, values, width=width, fill=fill)
    square.sort(axis=1)
    limit = square[np.arange(len(counts)), np.clip(counts, 1, width) - 1]
    return np.less_equal(values, np.repeat(limit, sizes)) & np.repeat(counts > 0, sizes)


def smallest(keys: Keys, columns: Ints, sizes: Ints, *, counts: Ints, among: Bools) -> Bools:
    """Whether each element has one of the counts[row] smallest keys `among` those of its row."""
    unique = _with_columns(keys, columns, _column_mask(int(sizes.max(initial=1)) - 1))
    unique[~among] = _LAST
    return lowest(unique, sizes, counts=counts, fill=_LAST) & among


def _column_mask(last: int) -> np.uint64:
    """A bit mask for the low bits of a key that hold a column, up to the last column."""
    return np.uint64((1 << max(_COLUMN_BITS, last.bit_length())) - 1)


def _with_columns(keys: Keys, columns: Ints, column_mask: np.uint64) -> Keys:
    """The keys with the column as their low bits, so that no two of a row are equal."""
    unique = keys & ~column_mask
    unique |= columns.astype(np.uint64)
    return unique


def inverse_lengths(longest: int, *, reverse: bool = False) -> Ints:
    """The cumulative sum of integer weights exactly proportional to 1/1, 1/2, …, 1/longest.

    From 43 on they exceed 64 bits.
    """
    lengths = np.arange(1, longest + 1)
    weights = int(np.lcm.reduce(lengths)) // lengths
    return np.cumsum(weights[::-1] if reverse else weights)


@dataclass(frozen=True)
class Units:
    """Blocks divided into units: words, phrases, or single tokens.

    `of` is the unit of each token (special tokens have none), `stretch` the number of a unit's
    stretch between special tokens, which no run of units may leave.
    """

    of: Ints  # [N] unit of each token; meaningless where fixed
    rows: Ints  # [U] block
    sizes: Ints  # [U] tokens
    first: Ints  # [U] first token
    stretch: Ints  # [U]
    counts: Ints  # [B] units in each block

    @cached_property
    def columns(self) -> Ints:
        """[U] the index of each unit in its block."""
        return ranges(np.zeros_like(self.counts), self.counts)


def divide(blocks: Blocks, begins: Bools, *, joins_over_specials: bool = False) -> Units:
    """The units of blocks, given which tokens begin one.

    A token that begins none joins its left neighbour, unless that is special or of another block:
    then it opens a unit. Published code joined it to the last unit before the special token
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
    """Choose units greedily in random order; returns the number of each unit's run, or −1.

    From each visited unit a run of `lengths` units is tried, cut at special tokens (unless
    `straddle`) and shortened until it fits the budget `wanted`; a run that overlaps a chosen unit
    is skipped. If no unit of a block fits, none of that block is chosen.
    """
    blocks, width = len(wanted), int(units.counts.max(initial=0))
    longest = 1 if lengths is None else int(lengths.max(initial=1))
    edge = width + longest - 1
    column_mask = _column_mask(max(width - 1, 0))
    unique = _with_columns(keys, units.columns, column_mask)
    order = grid(units.counts, unique, width=width, fill=_LAST)
    order.sort(axis=1)
    visits = (order & column_mask).astype(np.int64)
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
    """[·, 2] the maximal runs of tokens of one group in a block; group −1 is not masked."""
    chosen = groups >= 0
    same = np.zeros(len(groups) + 1, dtype=bool)  # group as the previous token
    same[1:-1] = chosen[1:] & (groups[1:] == groups[:-1])
    same[blocks.starts] = False
    begin, last = np.flatnonzero(chosen & ~same[:-1]), np.flatnonzero(chosen & ~same[1:])
    return np.stack([begin, last + 1], axis=1)


def whole(blocks: Blocks, units: Units, run: Ints, *, wanted: Ints) -> Ints:
    """[·, 2] the spans of the chosen runs of units; of a block without any, its shortest unit.

    That unit is cut to the budget: so every block has a masked token.
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

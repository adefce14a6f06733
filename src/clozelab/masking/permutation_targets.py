"""XLNet's partial prediction: short spans, one per context of K times its length (§2.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from clozelab.contracts import Blocks, Bools, Hidden, Ints, Keys, Mark, Vocabulary
from clozelab.keys import mix, randint, weighted
from clozelab.masking.units import MaskRate, Rated, inverse_lengths, smallest, spans
from clozelab.packed import ranges
from clozelab.ranges import PositiveInt, between


@dataclass(frozen=True)
class PermutationTargets(Rated):
    """Choose the targets of a permutation language model; the input is not changed.

    In each half of a block a cursor advances: draw n ≤ `longest` with P(n) ∝ 1/n, place a span of n
    at a word start inside a context of n · `context` tokens, continue after that context; then add
    single tokens up to the goal of rate · length. `unit = "piece"` takes n pieces, as the published
    code did, "word" n words. Choices that fall on special tokens are dropped and not replaced.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"targets", "order_of_prediction"})

    mask_rate: MaskRate = 0.1667  # share of the tokens to predict
    longest: Annotated[int, between(1, 20, "spans have 1 to 20 words or pieces")] = 5
    context: PositiveInt = 6
    unit: Literal["word", "piece"] = "word"

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        """Choose targets and a factorisation order; see `Masking`."""
        halves, goals = _Halves(blocks, key), self._goals(blocks)
        chosen = self._natural(halves, goals)
        self._add_single_tokens(halves, chosen, goals)
        groups = np.where(halves.flat(chosen) & ~blocks.fixed, 0, -1)
        return Hidden(spans(blocks, groups), order=halves.order())

    def _goals(self, blocks: Blocks) -> Ints:
        """[2B] how many to choose in each half; of an odd number the first half gets one more."""
        total = (self.mask_rate * blocks.lengths).astype(np.int64)
        return np.stack([total - total // 2, total // 2], axis=1).reshape(-1)

    def _natural(self, halves: _Halves, goals: Ints) -> Bools:
        """[2B, width] the spans at word starts, all halves in parallel; in text order."""
        width = halves.begins.shape[1]
        chosen = np.zeros((len(goals), width), dtype=bool)
        next_start = _next_starts(halves.begins, halves.sizes)
        table = inverse_lengths(self.longest)
        count, cursor = np.zeros_like(goals), np.zeros_like(goals)
        active = np.flatnonzero((goals > 0) & (halves.sizes > 0))
        step = 0
        while len(active):
            keys = halves.keys[active]
            n = 1 + weighted(mix(keys, 2 * step), table)
            n = np.minimum(n, goals[active] - count[active])
            room = n * self.context
            left = randint(mix(keys, 2 * step + 1), room)
            begin = next_start[active, np.minimum(cursor[active] + left, width)]
            end = self._end(next_start, active, begin, n)
            fits = end < halves.sizes[active]
            active, begin, end = active[fits], begin[fits], end[fits]
            end = np.minimum(end, begin + goals[active] - count[active])
            size = end - begin
            chosen[np.repeat(active, size), ranges(begin, size)] = True
            count[active] += size
            cursor[active] = end + (room - left)[fits]
            unfinished = (count[active] < goals[active]) & (cursor[active] < halves.sizes[active])
            active = active[unfinished]
            step += 1
        return chosen

    def _end(self, next_start: Ints, rows: Ints, begin: Ints, n: Ints) -> Ints:
        """Where spans of n pieces or words end; past the half if it is too short."""
        if self.unit == "piece":
            return begin + n
        end = begin
        for word in range(self.longest):
            after = next_start[rows, np.minimum(end + 1, next_start.shape[1] - 1)]
            end = np.where(word < n, after, end)
        return end

    def _add_single_tokens(self, halves: _Halves, chosen: Bools, goals: Ints) -> None:
        """Add random single positions until each half has its goal."""
        rows, width = chosen.shape
        columns = np.arange(width)
        keys = mix(halves.keys[:, None] ^ np.uint64(0xA5A5A5A5), columns)
        missing = goals - chosen.sum(axis=1)
        chosen |= smallest(
            keys.reshape(-1),
            np.tile(columns, rows),
            np.full(rows, width),
            counts=missing,
            among=(halves.inside & ~chosen).reshape(-1),
        ).reshape(chosen.shape)


class _Halves:
    """The halves of all blocks as rows of a rectangle, in text order (reversed rows flipped)."""

    def __init__(self, blocks: Blocks, key: int) -> None:
        first = (blocks.lengths + 1) // 2
        self.sizes: Ints = np.stack([first, blocks.lengths - first], axis=1).reshape(-1)
        half = 2 * blocks.rows + (blocks.positions >= first[blocks.rows])
        begin = np.stack([np.zeros_like(first), first], axis=1).reshape(-1)
        column = blocks.positions - begin[half]
        begins = (blocks.marks & Mark.WORD) != 0
        width = int(self.sizes.max(initial=1))
        reverse = np.zeros(len(blocks), bool) if blocks.reverse is None else blocks.reverse
        reversed_ = np.repeat(reverse, 2)
        column = np.where(reversed_[half], self.sizes[half] - 1 - column, column)
        # Marks are in reading order; in a reversed row the word's first token is the one after
        # the token that begins the word when read backwards.
        shifted = np.where(reversed_[half], column + 1, column)
        inside = shifted < self.sizes[half]
        self.begins: Bools = np.zeros((len(self.sizes), width), dtype=bool)
        self.begins[half[inside], shifted[inside]] = begins[inside]
        self.begins[reversed_ & (self.sizes > 0), 0] = True
        self.inside: Bools = np.arange(width) < self.sizes[:, None]
        self.keys: Keys = mix(np.repeat(mix(key, blocks.numbers), 2), np.tile([0, 1], len(blocks)))
        self._half, self._column = half, column

    def flat(self, chosen: Bools) -> Bools:
        """[N] the values of the rectangle at the packed tokens."""
        return np.asarray(chosen[self._half, self._column])

    def order(self) -> Ints:
        """[N] each token's rank in a random permutation of its half."""
        keys = mix(self.keys ^ np.uint64(0x0DDE5), 0)[:, None]
        square = mix(keys, np.arange(self.inside.shape[1])[None, :])
        square = np.where(self.inside, square >> np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF))
        rank, ranks = np.empty(square.shape, dtype=np.int64), np.arange(square.shape[1])[None, :]
        np.put_along_axis(rank, np.argsort(square, axis=1, kind="stable"), ranks, axis=1)
        return np.asarray(rank[self._half, self._column])


def _next_starts(begins: Bools, sizes: Ints) -> Ints:
    """[rows, width + 1] the first word start at or after each column; the half's size if none."""
    rows, width = begins.shape
    at = np.where(begins, np.arange(width), width + 1)
    nearest: Ints = np.minimum.accumulate(at[:, ::-1], axis=1)[:, ::-1]
    out = np.concatenate([nearest, np.full((rows, 1), width + 1)], axis=1)
    return np.asarray(np.minimum(out, sizes[:, None]))

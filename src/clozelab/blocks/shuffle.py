"""A shuffle by keys, of more than fits into memory.

Keys of different numbers differ (`keys.mix` is a bijection), so a shuffle is a sort by key. One
pass distributes the units over buckets by the upper bits of their keys; then each bucket is sorted
in memory. The order does not depend on the buckets.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from clozelab.blocks.planned import PlanPieces
from clozelab.contracts import Array, Documents, Ints, PlanStretch
from clozelab.keys import mix
from clozelab.packed import offsets, ranges

_BUCKET = 1 << 20  # units and parts that are sorted at a time: some tens of megabytes
_PIECE = 1 << 20  # parts distributed at a time, and some more per bucket, so that reads stay long
_PORTIONS = 256  # at most, into which a shuffle is divided


@dataclass(frozen=True)
class UnitTable:
    """The units to shuffle, of one or several parts; a part is a run of the store's tokens."""

    count: int
    # (p, q) → first tokens of parts p, …, q - 1, then an end; None: part p is token p
    tokens: Callable[[int, int], Ints] | None = None
    bounds: Ints | None = None  # [U + 1] first part of each unit; None: a unit is one part
    values: Callable[[int, int], Ints] | None = None  # (p, q) → a number for each of these parts

    @property
    def parts(self) -> int:
        """The number of parts of all units."""
        return self.count if self.bounds is None else int(self.bounds[-1])

    def read(self, first: int, last: int) -> Shuffled:
        """The units from `first` up to `last`, in the order of the store."""
        numbers = np.arange(first, last + 1)
        bounds = numbers if self.bounds is None else np.asarray(self.bounds[first : last + 1])
        first, last = int(bounds[0]), int(bounds[-1])
        tokens = np.asarray(self.tokens(first, last)) if self.tokens else bounds
        values = self.values and self.values(first, last)
        return Shuffled(numbers[:-1], np.diff(bounds), tokens[:-1], np.diff(tokens), values)

    def cut(self, parts: int) -> list[int]:
        """Where to cut the units, in the order of the store, into pieces of about `parts` parts."""
        firsts = [0]
        while firsts[-1] < self.count:
            last = firsts[-1] + parts
            if self.bounds is not None:
                end = self.bounds[firsts[-1]] + parts
                last = int(np.searchsorted(self.bounds, end, side="right")) - 1
            firsts.append(min(max(last, firsts[-1] + 1), self.count))
        return firsts


@dataclass(frozen=True)
class Shuffled:
    """Units in some order, with their parts."""

    numbers: Ints  # [U]
    counts: Ints  # [U] parts of each
    starts: Ints  # [P] first token of each part
    sizes: Ints  # [P] tokens
    values: Ints | None = None  # [P]

    def by(self, order: Ints) -> Shuffled:
        """The same units in another order."""
        counts = self.counts[order]
        part = ranges((np.cumsum(self.counts) - self.counts)[order], counts)
        values = None if self.values is None else self.values[part]
        return Shuffled(self.numbers[order], counts, self.starts[part], self.sizes[part], values)


def sentences_of(
    documents: Documents, values: Callable[[int, int], Ints] | None = None
) -> UnitTable:
    """Documents as units of sentences."""
    return UnitTable(
        len(documents),
        lambda first, last: documents.sentences[first : last + 1],
        documents.documents,
        values,
    )


def single_sentences(documents: Documents) -> UnitTable:
    """Each sentence as a unit."""
    units = sentences_of(documents)
    return replace(units, count=len(documents.sentences) - 1, bounds=None)


def whole_documents(documents: Documents) -> UnitTable:
    """Documents as units of one part."""
    return UnitTable(
        len(documents),
        lambda first, last: documents.sentences[documents.documents[first : last + 1]],
    )


def permutation(count: int, key: int, pieces: PlanPieces) -> Iterator[Ints]:
    """The numbers below `count` in the order of their keys, some at a time."""
    shuffle = Shuffle(UnitTable(count), key, pieces)

    def make(number: int) -> Iterator[PlanStretch]:
        for shuffled in shuffle.portion(number):
            yield PlanStretch({"numbers": shuffled.numbers}, {})

    portions = pieces.all_pieces("order", len(shuffle), make)
    pieces.drop(shuffle.name)
    return (np.asarray(piece.columns["numbers"], dtype=np.int64) for piece in portions)


@dataclass(frozen=True)
class Shuffle:
    """The units in the order of their keys, in portions: all at once, or by buckets.

    The units are distributed over buckets when the first bucket is asked for: a piece of the store
    becomes one piece, in which the units of a bucket are contiguous.
    """

    units: UnitTable
    key: int
    pieces: PlanPieces
    name: str = "dealt"  # of the stage

    @cached_property
    def bits(self) -> int:
        """How many upper bits of the keys number the buckets."""
        buckets = -(-(self.units.count + self.units.parts) // _BUCKET)
        return 0 if self.pieces.in_memory else min(max(buckets - 1, 0).bit_length(), 16)

    def __len__(self) -> int:
        return min(1 << self.bits, _PORTIONS)

    def portion(self, number: int) -> Iterator[Shuffled]:
        """Yield the units of the buckets of a portion."""
        if not self.bits:
            units = self.units.read(0, self.units.count)
            yield units.by(np.argsort(mix(self.key, units.numbers)))
            return
        size = (1 << self.bits) // len(self)
        yield from map(self._bucket, range(number * size, (number + 1) * size))

    def __iter__(self) -> Iterator[Shuffled]:
        for number in range(len(self)):
            yield from self.portion(number)

    @cached_property
    def _distributed(self) -> list[PlanStretch]:
        firsts = self.units.cut(_PIECE + (_PIECE >> 10 << self.bits))

        def make(number: int) -> list[PlanStretch]:
            return [self._distribute(self.units.read(firsts[number], firsts[number + 1]))]

        return list(self.pieces.all_pieces(self.name, len(firsts) - 1, make))

    def _distribute(self, units: Shuffled) -> PlanStretch:
        """The units sorted by bucket, with the offsets of the buckets."""
        bucket = (mix(self.key, units.numbers) >> np.uint64(64 - self.bits)).astype(np.uint16)
        sorted_units = units.by(np.argsort(bucket, kind="stable"))
        edges = offsets(np.bincount(bucket, minlength=1 << self.bits))
        before = offsets(sorted_units.counts)
        columns: dict[str, Array] = {
            "numbers": sorted_units.numbers.astype(np.min_scalar_type(self.units.count)),
            "edges": edges,
            "part_edges": before[edges],
        }
        if self.units.bounds is not None:
            columns["counts"] = sorted_units.counts.astype(np.uint32)
        if self.units.tokens is not None:
            columns["starts"] = _take(sorted_units.starts, before[:-1])
            columns["sizes"] = sorted_units.sizes.astype(np.int32)
        if sorted_units.values is not None:
            columns["values"] = sorted_units.values.astype(np.int32)
        return PlanStretch(columns, {})

    def _bucket(self, number: int) -> Shuffled:
        """The units of one bucket, sorted by their keys."""

        def rows(name: str, edges: str) -> Ints:
            some = [
                dealt.columns[name][slice(*dealt.columns[edges][number : number + 2].tolist())]
                for dealt in self._distributed
            ]
            return np.concatenate(some).astype(np.int64)

        numbers = rows("numbers", "edges")
        single = np.ones_like(numbers)
        counts = single if self.units.bounds is None else rows("counts", "edges")
        first, sizes = numbers, single
        if self.units.tokens is not None:
            first, sizes = rows("starts", "edges"), rows("sizes", "part_edges")
        values = rows("values", "part_edges") if self.units.values else None
        before = np.cumsum(sizes) - sizes
        first = first - _take(before, np.cumsum(counts) - counts)
        bucket = Shuffled(numbers, counts, np.repeat(first, counts) + before, sizes, values)
        return bucket.by(np.argsort(mix(self.key, numbers)))


def _take(values: Ints, indices: Ints) -> Ints:
    """The values at indices; an index past the end, of a unit without parts, gives any value."""
    return np.append(values, 0)[indices]


def release(*arrays: Any) -> None:
    """Release the pages of memory-mapped arrays; they are read again when needed."""
    _advise("MADV_DONTNEED", arrays)


def read_at_random(*arrays: Any) -> None:
    """Turn off the kernel's readahead for memory-mapped arrays."""
    _advise("MADV_RANDOM", arrays)


def _advise(advice: str, arrays: Iterable[Any]) -> None:
    for array in arrays:
        while isinstance(array, np.ndarray):
            array = array.base
        if isinstance(array, mmap.mmap) and hasattr(mmap, advice):
            array.madvise(getattr(mmap, advice))

"""A shuffle by keys of more than memory holds, and arrays that grow on the disk.

Keys of different numbers differ (`keys.mix` is a bijection), so a shuffle is a sort by key. One
pass deals the units into buckets by the upper bits of their keys; then each bucket is sorted in
memory. The order does not depend on the buckets.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np

from clozelab.contracts import Array, Documents, Ints
from clozelab.keys import mix
from clozelab.packed import offsets, ranges

_BUCKET = 1 << 20  # units and parts that are sorted at a time: some tens of megabytes
_PIECE = 1 << 20  # parts that are dealt at a time, and for each bucket some more: writes stay long


@dataclass(frozen=True)
class UnitTable:
    """What is shuffled: units of one or several parts, each part a run of the store's tokens."""

    count: int
    tokens: Callable[[int, int], Ints]  # (p, q) → first tokens of parts p, …, q - 1, then an end
    bounds: Ints | None = None  # [U + 1] first part of each unit; None: a unit is one part
    values: Callable[[int, int], Ints] | None = None  # (p, q) → a number for each of these parts

    @property
    def parts(self) -> int:
        """Parts of all units."""
        return self.count if self.bounds is None else int(self.bounds[-1])

    def read(self, first: int, last: int) -> Shuffled:
        """The units from `first` up to `last`, as they lie in the store."""
        numbers = np.arange(first, last + 1)
        bounds = numbers if self.bounds is None else np.asarray(self.bounds[first : last + 1])
        tokens = np.asarray(self.tokens(int(bounds[0]), int(bounds[-1])))
        values = self.values and self.values(int(bounds[0]), int(bounds[-1]))
        return Shuffled(numbers[:-1], np.diff(bounds), tokens[:-1], np.diff(tokens), values)

    def pieces(self, parts: int) -> Iterator[Shuffled]:
        """All units as they lie in the store, about so many parts at a time."""
        first = 0
        while first < self.count:
            last = first + parts
            if self.bounds is not None:
                end = self.bounds[first] + parts
                last = int(np.searchsorted(self.bounds, end, side="right")) - 1
            last = min(max(last, first + 1), self.count)
            yield self.read(first, last)
            first = last


@dataclass(frozen=True)
class Shuffled:
    """Some units, in an order, with their parts."""

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
    """Each sentence for itself."""
    units = sentences_of(documents)
    return replace(units, count=len(documents.sentences) - 1, bounds=None)


def whole_documents(documents: Documents) -> UnitTable:
    """Documents as units of one part."""
    return UnitTable(
        len(documents),
        lambda first, last: documents.sentences[documents.documents[first : last + 1]],
    )


def permutation(count: int, key: int, folder: Path | None = None) -> Iterator[Ints]:
    """The numbers below `count` in the order of their keys, some at a time."""
    units = UnitTable(count, lambda first, last: np.arange(first, last + 1))
    return (shuffled.numbers for shuffled in shuffle(units, key, folder))


def shuffle(units: UnitTable, key: int, folder: Path | None = None) -> Iterator[Shuffled]:
    """Units in the order of their keys: all at once, or by buckets that lie in a folder."""
    buckets = -(-(units.count + units.parts) // _BUCKET)
    bits = min((buckets - 1).bit_length(), 16) if folder is not None else 0
    if bits:
        yield from _by_buckets(units, key, bits, folder)
        return
    whole = units.read(0, units.count)
    yield whole.by(np.argsort(mix(key, whole.numbers)))


def _by_buckets(units: UnitTable, key: int, bits: int, folder: Path | None) -> Iterator[Shuffled]:
    """Deal the units into buckets, then sort each bucket."""
    unit_bounds, part_bounds = _bucket_bounds(units, key, bits)
    with TemporaryFile(dir=folder) as one, TemporaryFile(dir=folder) as other:
        heads = _Buckets(one, unit_bounds, dtype=np.int64, width=3)
        parts = _Buckets(other, part_bounds, dtype=np.int32, width=1 + bool(units.values))
        for piece in units.pieces(_PIECE + (_PIECE >> 10 << bits)):
            bucket = _buckets(key, piece.numbers, bits)
            dealt = piece.by(np.argsort(bucket, kind="stable"))
            edges = offsets(np.bincount(bucket, minlength=1 << bits))
            before = offsets(dealt.counts)
            heads.add(edges, dealt.numbers, dealt.counts, _at(dealt.starts, before[:-1]))
            columns = [dealt.sizes] if dealt.values is None else [dealt.sizes, dealt.values]
            parts.add(before[edges], *columns)
        for number in range(1 << bits):
            numbers, counts, first = heads.read(number)
            sizes, *values = parts.read(number)
            before = np.cumsum(sizes) - sizes
            first = first - _at(before, np.cumsum(counts) - counts)
            bucket = Shuffled(numbers, counts, np.repeat(first, counts) + before, sizes, *values)
            yield bucket.by(np.argsort(mix(key, numbers)))


def _at(values: Ints, places: Ints) -> Ints:
    """The values at some places; past the end, where units without parts stand, any."""
    return np.append(values, 0)[places]


class _Buckets:
    """Rows of numbers in a nameless file, those of a bucket in one stretch."""

    def __init__(self, file: IO[bytes], bounds: Ints, *, dtype: type, width: int) -> None:
        self.file, self.bounds, self.filled = file, bounds, bounds[:-1].copy()
        self.dtype, self.width = np.dtype(dtype), width

    def add(self, edges: Ints, *columns: Ints) -> None:
        """Add rows that are sorted by bucket; `edges` says where those of each begin."""
        rows = np.stack(columns, axis=1).astype(self.dtype)
        for number in np.flatnonzero(np.diff(edges)).tolist():
            self._seek(self.filled[number])
            self.file.write(rows[edges[number] : edges[number + 1]].data)
        self.filled += np.diff(edges)

    def read(self, number: int) -> Ints:
        """[width, rows] of one bucket."""
        first, last = self.bounds[number : number + 2].tolist()
        self._seek(first)
        count = (last - first) * self.width
        rows = np.frombuffer(self.file.read(count * self.dtype.itemsize), dtype=self.dtype)
        return np.array(rows.reshape(-1, self.width).T, dtype=np.int64, order="C")

    def _seek(self, row: int) -> None:
        self.file.seek(int(row) * self.width * self.dtype.itemsize)


def _bucket_bounds(units: UnitTable, key: int, bits: int) -> tuple[Ints, Ints]:
    """Where the units and the parts of each bucket begin, then the ends."""
    heads, parts = np.zeros((2, 1 << bits), dtype=np.int64)
    for first in range(0, units.count, _PIECE):
        numbers = np.arange(first, min(first + _PIECE, units.count))
        bucket = _buckets(key, numbers, bits)
        heads += np.bincount(bucket, minlength=1 << bits)
        if units.bounds is not None:
            counts = np.diff(units.bounds[first : first + len(numbers) + 1])
            parts += np.bincount(bucket, counts, minlength=1 << bits).astype(np.int64)
    return offsets(heads), offsets(heads if units.bounds is None else parts)


def _buckets(key: int, numbers: Ints, bits: int) -> Any:
    return (mix(key, numbers) >> np.uint64(64 - bits)).astype(np.uint16)


class Growing:
    """An array that grows: in memory, or in a nameless file of a folder."""

    def __init__(self, dtype: type, folder: Path | None) -> None:
        self.dtype = np.dtype(dtype)
        self._file = None if folder is None else TemporaryFile(dir=folder)  # noqa: SIM115
        self._arrays: list[Any] = []

    def append(self, values: Array) -> None:
        """Add some values at the end."""
        values = np.ascontiguousarray(values, dtype=self.dtype)
        if self._file is None:
            self._arrays.append(values)
        else:
            self._file.write(values.data)

    def array(self) -> Any:
        """All that was added; the array must not grow any more."""
        if self._file is None:
            whole, *others = self._arrays or [np.zeros(0, dtype=self.dtype)]
            return np.concatenate([whole, *others]) if others else whole
        with self._file:  # which is gone with the last array that is mapped of it
            self._file.flush()
            if not self._file.tell():
                return np.zeros(0, dtype=self.dtype)
            return np.asarray(np.memmap(self._file, dtype=self.dtype, mode="r"))


def release(*arrays: Any) -> None:
    """Give the pages of mapped arrays back to the kernel; they come again when they are read."""
    for array in arrays:
        while isinstance(array, np.ndarray):
            array = array.base
        if isinstance(array, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            array.madvise(mmap.MADV_DONTNEED)

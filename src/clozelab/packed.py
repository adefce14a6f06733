"""Arithmetic on packed arrays: many runs of different lengths, one after another."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clozelab.contracts import Bools, Ints, Keys

T = TypeVar("T", bound=np.generic)


def ranges(starts: ArrayLike, sizes: Ints) -> Ints:
    """Concatenated ranges: starts[0], starts[0] + 1, … (sizes[0] numbers), then starts[1], …"""
    before = np.cumsum(sizes) - sizes
    first = np.asarray(starts, dtype=np.int64) - before
    numbers = np.repeat(first, sizes)
    numbers += np.arange(len(numbers))
    return numbers


def offsets(sizes: ArrayLike) -> Ints:
    """The offsets of runs of these sizes: where each begins, then where the last ends."""
    return np.concatenate([[0], np.cumsum(np.asarray(sizes, dtype=np.int64))])


def contains(table: Keys, keys: Keys) -> Bools:
    """Whether each key is in a sorted table."""
    if not len(table):
        return np.zeros(len(keys), dtype=bool)
    at = np.minimum(np.searchsorted(table, keys), len(table) - 1)
    return np.asarray(table[at] == keys)


def look_up(table: Keys, values: NDArray[T], keys: Keys, *, default: int) -> NDArray[T]:
    """The value of each key in a sorted table, or the default."""
    answers = np.full(len(keys), default, dtype=values.dtype)
    known = contains(table, keys)
    answers[known] = values[np.searchsorted(table, keys[known])]
    return answers


def sums(values: ArrayLike, starts: Ints) -> Ints:
    """The sum of each run's values; `starts` ends with the last run's end; runs may be empty."""
    running = offsets(values)
    return np.asarray(running[starts[1:]] - running[starts[:-1]])

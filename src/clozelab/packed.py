"""Arithmetic on packed arrays: many runs of different lengths, one after another."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from clozelab.contracts import Ints


def ranges(starts: ArrayLike, sizes: Ints) -> Ints:
    """starts[0], starts[0] + 1, … for sizes[0] numbers, then starts[1], …: ranges end to end."""
    before = np.cumsum(sizes) - sizes
    first = np.asarray(starts, dtype=np.int64) - before
    return np.repeat(first, sizes) + np.arange(int(sizes.sum()))


def offsets(sizes: ArrayLike) -> Ints:
    """Where each of some runs begins, then where the last ends."""
    return np.concatenate([[0], np.cumsum(np.asarray(sizes, dtype=np.int64))])


def sums(values: ArrayLike, starts: Ints) -> Ints:
    """The sum of each run's values; `starts` closes with the end, and runs may be empty."""
    running = offsets(values)
    return np.asarray(running[starts[1:]] - running[starts[:-1]])

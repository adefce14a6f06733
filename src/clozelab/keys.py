"""Random draws without generator state: every draw is a 64-bit hash of a key.

A draw depends only on (seed, purpose, copy, block, position, draw), in wrapping 64-bit integer
arithmetic, so that workers, ranks, batch shapes, resuming and devices cannot change it. The
mixing function is the finaliser of SplitMix64 over a Weyl sequence.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import ArrayLike

from clozelab.contracts import Ints, Keys

_WEYL = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def mix(key: ArrayLike, counter: ArrayLike) -> Keys:
    """A new key from a key and a counter (both broadcast); uniform over 64 bits."""
    # In place, since a batch has many keys. A scalar would warn that it wraps; arrays do not.
    steps = np.asarray(counter).astype(np.uint64)
    steps += np.uint64(1)
    steps *= _WEYL
    x = np.asarray(steps + np.asarray(key, dtype=np.uint64))
    x ^= x >> np.uint64(30)
    x *= _FIRST
    x ^= x >> np.uint64(27)
    x *= _SECOND
    x ^= x >> np.uint64(31)
    return x


def root(seed: int, purpose: str) -> int:
    """The key of everything drawn for one purpose under one seed."""
    digest = blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@lru_cache
def key(seed: int, purpose: str, copy: int) -> int:
    """The key of one copy (an epoch's masks, a variant of the pairs) of a purpose's draws."""
    return int(mix(root(seed, purpose), copy))


def randint(keys: Keys, bound: ArrayLike) -> Ints:
    """Integers uniform in [0, bound): the key's upper 32 bits scaled, so bounds stay under 2³²."""
    scaled = (keys >> np.uint64(32)) * np.asarray(bound).astype(np.uint64)
    return (scaled >> np.uint64(32)).astype(np.int64)


def uniform(keys: Keys) -> np.typing.NDArray[np.float64]:
    """Numbers uniform in [0, 1): the key's upper 53 bits."""
    return (keys >> np.uint64(11)).astype(np.float64) * 2.0**-53


def coin_flips(keys: Keys) -> np.typing.NDArray[np.bool_]:
    """Fair coins: the key's top bit."""
    return (keys >> np.uint64(63)).astype(bool)


def weighted(keys: Keys, cumulative: Ints) -> Ints:
    """Indices drawn in proportion to integer weights, given their running sum."""
    total = np.uint64(cumulative[-1])
    return np.searchsorted(cumulative, _scale(keys, total), side="right").astype(np.int64)


def fold(values: ArrayLike, starts: Ints) -> Keys:
    """One key for each run of values (a word's ids, a pair of words), whatever surrounds it.

    `starts` are the beginnings of the runs, ascending; the last run goes to the end.
    """
    values = np.asarray(values)
    if not len(starts):
        return np.zeros(0, dtype=np.uint64)
    ends = np.append(starts[1:], len(values))
    position = np.arange(len(values)) - np.repeat(starts, ends - starts)
    return mix(np.add.reduceat(mix(values, position), starts), ends - starts)


def _scale(keys: Keys, total: np.uint64) -> Ints:
    """keys · total / 2⁶⁴ without leaving 64 bits: totals up to 2⁶³ (a corpus may exceed 2³²)."""
    low32 = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    high, low = keys >> shift, keys & low32
    total_high, total_low = total >> shift, total & low32
    middle = high * total_low + ((low * total_low) >> shift)
    scaled = (
        high * total_high + (middle >> shift) + ((low * total_high + (middle & low32)) >> shift)
    )
    return np.asarray(scaled).astype(np.int64)

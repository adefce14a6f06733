"""Counter-based dropout: whether an element is dropped is a hash of a seed, its row and its column.

So no mask is stored: the backward pass computes it again, in tiles of any shape. By hand, and not
by Triton's `tl.rand` (Philox), because a tile of a mask costs one hash for each row and each column
and a single multiplication for each element. Any three elements of a mask are independent; four at
the corners of a rectangle are tied only through that multiplication.

Invariant: forward and backward pass the same seed, mask id, rows and columns for an element.
"""

from __future__ import annotations

import triton
import triton.language as tl

RANDOM_RANGE = 2**32  # the random number of an element is uniform in [0, RANDOM_RANGE)


def drop_threshold(dropout: float) -> int:
    """An element is kept if its random number is at least this: dropout · 2³², rounded."""
    return round(dropout * RANDOM_RANGE)


def inverse_keep_prob(dropout: float) -> float:
    """1 / (1 − p), the factor of what is kept, with the p that the rounded threshold really has."""
    return RANDOM_RANGE / (RANDOM_RANGE - drop_threshold(dropout))


@triton.jit
def hash32(x):
    """A hash of 32 bits in which every bit depends on every bit of x."""
    x ^= x >> 16
    x *= 0x21F0AAAD
    x ^= x >> 15
    x *= 0xD35A2D97
    x ^= x >> 15
    return x


@triton.jit
def row_keys(seed, mask_id, rows):
    """A key of 32 bits for each row, from the low half of the seed.

    Masks with the same seed and different ids are independent: one for each block and head.
    """
    half = (seed & 0xFFFFFFFF).to(tl.uint32)
    return hash32(hash32(half ^ mask_id.to(tl.uint32)) + rows.to(tl.uint32))


@triton.jit
def column_keys(seed, mask_id, columns):
    """A key of 32 bits for each column, from the high half of the seed."""
    half = (seed >> 32).to(tl.uint32)
    return hash32(hash32(half + mask_id.to(tl.uint32)) ^ columns.to(tl.uint32))


@triton.jit
def keep_mask(keys_m, keys_n, drop_threshold):
    """True where the element of a row and a column, given by their keys, is kept."""
    return ((keys_m ^ keys_n) * 0x9E3779B1).to(tl.uint32) >= drop_threshold.to(tl.uint32)

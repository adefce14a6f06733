"""Counter-based dropout: whether an element is dropped is a hash of a seed, its row and its column.

So no mask is stored: the backward pass computes it again, in tiles of any shape. By hand, and not
by Triton's `tl.rand` (Philox), because a tile of a mask costs few hashes and a single
multiplication for each element. Any three elements of a mask are independent. Four are tied only
through that multiplication: at the corners of a rectangle, or in a row whose columns share the
parts of their indices.

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
def row_base(seed, mask_id):
    """The base of a mask's row keys, from the low half of the seed.

    Masks with the same seed and different ids are independent: one for each block and head.
    """
    half = (seed & 0xFFFFFFFF).to(tl.uint32)
    return hash32(half ^ mask_id.to(tl.uint32))


@triton.jit
def column_base(seed, mask_id):
    """The base of a mask's column keys, from the high half of the seed."""
    half = (seed >> 32).to(tl.uint32)
    return ~hash32(half + mask_id.to(tl.uint32))


@triton.jit
def row_keys(seed, rows):
    """A key of 32 bits for each row of a tensor that has a seed for itself, so one mask."""
    return hash32(row_base(seed, seed * 0) + rows.to(tl.uint32))


@triton.jit
def column_keys(seed, columns):
    """A key of 32 bits for each column of such a tensor."""
    return hash32(column_base(seed, seed * 0) + columns.to(tl.uint32))


@triton.jit
def tile_keys(base, start, BLOCK: tl.constexpr):
    """A key of 32 bits for each of BLOCK rows or columns from `start` on, a multiple of BLOCK.

    It is the hashes of two parts of an index, combined: of its lowest five bits and of the others.
    So a loop over tiles computes one or two hashes for each tile.
    """
    tl.static_assert(BLOCK % 32 == 0)
    offsets = tl.arange(0, BLOCK)
    first = base + 32 + start // 32
    if BLOCK == 32:
        upper = hash32(first)
    elif BLOCK == 64:
        upper = tl.where(offsets < 32, hash32(first), hash32(first + 1))
    else:
        upper = hash32(first + (offsets >> 5))
    return hash32(base + (offsets & 31)) ^ upper


@triton.jit
def keep_mask(keys_m, keys_n, drop_threshold):
    """True where the element of a row and a column, given by their keys, is kept."""
    return ((keys_m ^ keys_n) * 0x9E3779B1).to(tl.uint32) >= drop_threshold.to(tl.uint32)


@triton.jit
def drop_probs(p, keep):
    """p where it is kept, else 0, for p of at least 0 that is rounded to half precision next.

    With a constant 0 the compiler would select after rounding, which takes more instructions.
    """
    return tl.where(keep, p, tl.minimum(p, 0.0))

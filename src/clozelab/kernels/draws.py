"""Dropout by counter: what is dropped is a function of a seed, a row and a column.

So nothing is drawn ahead or kept: a backward pass asks again. A row and a column each have a
well-mixed key; one multiplication joins them. Any three cells of a mask are independent; four at
the corners of a rectangle are tied only through that multiplication.
"""

from __future__ import annotations

import triton
import triton.language as tl

CELLS = 2**32  # what a draw is out of


def threshold(rate: float) -> int:
    """What a draw must reach to be kept."""
    return round(rate * CELLS)


def scale(rate: float) -> float:
    """What makes up for the dropped, by the rate that the threshold really has."""
    return CELLS / (CELLS - threshold(rate))


@triton.jit
def mixed(x):
    """A 32-bit number whose every bit depends on every bit of x."""
    x ^= x >> 16
    x *= 0x21F0AAAD
    x ^= x >> 15
    x *= 0xD35A2D97
    x ^= x >> 15
    return x


@triton.jit
def row_keys(seed, stream, rows):
    """The key of each row; a stream is a mask of its own."""
    half = (seed & 0xFFFFFFFF).to(tl.uint32)
    return mixed(mixed(half ^ stream.to(tl.uint32)) + rows.to(tl.uint32))


@triton.jit
def column_keys(seed, stream, columns):
    """The key of each column."""
    half = (seed >> 32).to(tl.uint32)
    return mixed(mixed(half + stream.to(tl.uint32)) ^ columns.to(tl.uint32))


@triton.jit
def keep_mask(rows, columns, lost):
    """Whether the cells of some rows and columns, by their keys, are kept."""
    return ((rows ^ columns) * 0x9E3779B1).to(tl.uint32) >= lost.to(tl.uint32)

"""What the attention kernels share: head sizes, the softmax scale, and loads of a head's rows."""

from __future__ import annotations

import math

import triton
import triton.language as tl

HEAD_DIMS = (16, 32, 64, 128)  # sizes of a head that the kernels support


def inverse_sqrt(size: int) -> float:
    """The softmax scale, 1 / √size; size is the head's, times the number of terms of a score."""
    return 1 / math.sqrt(size)


@triton.jit
def load_tile(base, rows, offs_d, end, STRIDE: tl.constexpr):
    """[rows, HEAD_DIM] of one head; rows from `end` on are zero.

    `base` points to row 0 of the head; consecutive rows are STRIDE elements apart.
    """
    ptrs = base + rows[:, None].to(tl.int64) * STRIDE + offs_d[None, :]
    return tl.load(ptrs, mask=(rows < end)[:, None], other=0.0)

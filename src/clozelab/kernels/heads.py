"""What the attention kernels share: head sizes and scale, loads of a head's rows, registers."""

from __future__ import annotations

import math

import triton
import triton.language as tl

HEAD_DIMS = (16, 32, 64, 128)  # sizes of a head that the kernels support


def inverse_sqrt(size: int) -> float:
    """The softmax scale, 1 / √size; size is the head's, times the number of terms of a score."""
    return 1 / math.sqrt(size)


def limit_registers(count: int, head_dim: int) -> dict[str, int]:
    """The option that limits the registers of a thread, where heads are so small that it pays."""
    return {"maxnreg": count} if head_dim <= 64 else {}


@triton.jit
def load_tile(base, rows, offs_d, end, STRIDE: tl.constexpr):
    """[rows, HEAD_DIM] of one head; rows from `end` on are zero.

    `base` points to row 0 of the head; consecutive rows are STRIDE elements apart.
    """
    ptrs = base + rows[:, None].to(tl.int64) * STRIDE + offs_d[None, :]
    return tl.load(ptrs, mask=(rows < end)[:, None], other=0.0)

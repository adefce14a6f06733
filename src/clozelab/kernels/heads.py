"""What attention's kernels have in common: the rows of a head, and what scores are scaled by."""

from __future__ import annotations

import math

import triton
import triton.language as tl


def inverse_root(width: int) -> float:
    """What the scores of heads of a width are multiplied by."""
    return 1 / math.sqrt(width)


WIDTHS = (16, 32, 64, 128)  # of a head, that the kernels can have


@triton.jit
def tile(base, rows, dims, length, STRIDE: tl.constexpr):
    """Some rows of a head, zero past the end."""
    at = base + rows[:, None].to(tl.int64) * STRIDE + dims[None, :]
    return tl.load(at, mask=(rows < length)[:, None], other=0.0)

"""Rotary position embedding (arXiv:2104.09864, §3.2) of packed queries and keys in one pass.

Element i of a head is paired with element i + D / 2 (the "rotate half" layout), and the pair is
rotated by the angle of its token. The inverse rotation, by the negative angle, is the backward
pass. By hand, because queries and keys are rotated where the QKV product wrote them and values are
not moved.

This is not an operator of its own but a step of the operator of attention, which may rotate the
gradients in place because it has made them itself.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

# A tile's columns are pairs of elements: four heads of 64 in each.
TILES = {"BLOCK_N": 128, "BLOCK_M": 16, "num_warps": 4}


@triton.jit
def _rotation_kernel(
    x, out, cos, sin, n_tokens, n_tiles,
    IN_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, N_PAIRS: tl.constexpr,
    HALF_DIM: tl.constexpr, INVERSE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Rotate a tile of [tokens, pairs]; the strides are elements from one token to the next."""
    pair = tl.program_id(0) % n_tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_m = (tl.program_id(0) // n_tiles).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    mask = (offs_m < n_tokens)[:, None] & (pair < N_PAIRS)[None, :]
    angle = offs_m[:, None] * HALF_DIM + (pair % HALF_DIM)[None, :]
    c = tl.load(cos + angle, mask=mask, other=0.0).to(tl.float32)
    s = tl.load(sin + angle, mask=mask, other=0.0).to(tl.float32)
    if INVERSE:
        s = -s
    element = (pair // HALF_DIM * 2 * HALF_DIM + pair % HALF_DIM)[None, :]
    offs = offs_m[:, None] * IN_STRIDE + element
    x1 = tl.load(x + offs, mask=mask, other=0.0).to(tl.float32)
    x2 = tl.load(x + offs + HALF_DIM, mask=mask, other=0.0).to(tl.float32)
    offs = offs_m[:, None] * OUT_STRIDE + element
    dtype = out.dtype.element_ty
    tl.store(out + offs, (x1 * c - x2 * s).to(dtype), mask=mask)
    tl.store(out + offs + HALF_DIM, (x2 * c + x1 * s).to(dtype), mask=mask)


def apply_rotary(
    x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool = False
) -> None:
    """Write the rotated queries and keys of x into `out`, which may be x itself.

    x is [N, 3, H, D] (values are left alone), `out` [N, 2 or 3, H, D], cos and sin [N, D / 2].
    """
    n_tokens, _, heads, head_dim = x.shape
    n_pairs = heads * head_dim  # queries and keys have half of them each
    n_tiles = triton.cdiv(n_pairs, TILES["BLOCK_N"])
    _rotation_kernel[(n_tiles * triton.cdiv(n_tokens, TILES["BLOCK_M"]),)](
        x, out, cos, sin, n_tokens, n_tiles,
        IN_STRIDE=x.stride(0), OUT_STRIDE=out.stride(0), N_PAIRS=n_pairs, HALF_DIM=head_dim // 2,
        INVERSE=inverse, **TILES,
    )  # fmt: skip

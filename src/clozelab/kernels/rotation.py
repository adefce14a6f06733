"""Rotary positions (arXiv:2104.09864, §3.2) of packed queries and keys, all heads in one pass.

Element i of a head is paired with the one half a head on. Angles are those of each token, as
[N, D / 2] cosines and sines. This is no operator by itself: attention has it inside, which alone
knows that the gradients that are turned back are its own to change.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

# Tiles and warps: a tile's columns are pairs, four heads of 64 in each.
TURN = {"COLUMNS": 128, "ROWS": 16, "num_warps": 4}


@triton.jit
def _rotation_turn_kernel(
    x, out, cos, sin, rows, tiles,
    FROM: tl.constexpr, TO: tl.constexpr, PAIRS: tl.constexpr, HALF: tl.constexpr,
    BACK: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """FROM and TO are the elements from one token to the next, there and here."""
    pair = tl.program_id(0) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    row = (tl.program_id(0) // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = (row < rows)[:, None] & (pair < PAIRS)[None, :]
    angle = row[:, None] * HALF + (pair % HALF)[None, :]
    c = tl.load(cos + angle, mask=here, other=0.0).to(tl.float32)
    s = tl.load(sin + angle, mask=here, other=0.0).to(tl.float32)
    if BACK:
        s = -s
    element = (pair // HALF * 2 * HALF + pair % HALF)[None, :]
    cell = row[:, None] * FROM + element
    first = tl.load(x + cell, mask=here, other=0.0).to(tl.float32)
    second = tl.load(x + cell + HALF, mask=here, other=0.0).to(tl.float32)
    cell = row[:, None] * TO + element
    kind = out.dtype.element_ty
    tl.store(out + cell, (first * c - second * s).to(kind), mask=here)
    tl.store(out + cell + HALF, (second * c + first * s).to(kind), mask=here)


def turn(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, *, back: bool = False) -> None:
    """The first two parts of [N, parts, H, D] turned into those of `out`, which may be x."""
    rows, _, heads, width = x.shape
    pairs = heads * width  # queries and keys have half as many each
    tiles = triton.cdiv(pairs, TURN["COLUMNS"])
    _rotation_turn_kernel[(tiles * triton.cdiv(rows, TURN["ROWS"]),)](
        x, out, cos, sin, rows, tiles,
        FROM=x.stride(0), TO=out.stride(0), PAIRS=pairs, HALF=width // 2, BACK=back, **TURN,
    )  # fmt: skip

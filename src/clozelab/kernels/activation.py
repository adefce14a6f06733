"""The activation of a feed-forward layer with the bias before it, and that bias's gradient.

On the way back the gradient is added up over the rows in the pass that makes it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

KINDS = ("gelu", "gelu_tanh", "relu")
# Tiles and warps; backward, stretches share the rows.
FORWARD = {"COLUMNS": 128, "ROWS": 16, "num_warps": 2}
BACKWARD = {"COLUMNS": 128, "ROWS": 32, "num_warps": 8}
STRETCHES = 64


@triton.jit
def _value_and_slope(x, KIND: tl.constexpr):
    if KIND == 0:
        # The normal distribution by formula 7.1.26 of Abramowitz and Stegun, to 1e-7: half the
        # arithmetic of `erf`, which takes longer than the memory does.
        bell = tl.exp2(-0.7213475204444817 * x * x)
        t = 1.0 / (1.0 + 0.2316418882 * tl.abs(x))
        tail = 1.061405429 * t - 1.453152027
        tail = (tail * t + 1.421413741) * t - 0.284496736
        tail = (tail * t + 0.254829592) * t * 0.5 * bell
        below = tl.where(x < 0, tail, 1.0 - tail)
        return x * below, below + x * 0.3989422804014327 * bell
    elif KIND == 1:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        turned = 2.0 * tl.sigmoid(2.0 * inner) - 1.0
        steep = 0.7978845608028654 * (1.0 + 0.134145 * x * x)
        below = 0.5 * (1.0 + turned)
        return x * below, below + 0.5 * x * (1.0 - turned * turned) * steep
    else:
        return tl.maximum(x, 0.0), tl.where(x > 0, 1.0, 0.0)


@triton.jit
def _forward(
    x, bias, out, rows, tiles,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    row = (tl.program_id(0) // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = (row < rows)[:, None] & (column < WIDTH)[None, :]
    cell = row[:, None] * WIDTH + column[None, :]
    b = tl.load(bias + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    seen = tl.load(x + cell, mask=here, other=0.0).to(tl.float32) + b[None, :]
    value, _ = _value_and_slope(seen, KIND)
    tl.store(out + cell, value.to(out.dtype.element_ty), mask=here)


@triton.jit
def _backward(
    by_out, x, bias, by_x, parts, rows, stretch,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    by_bias = tl.zeros((ROWS, COLUMNS), tl.float32)
    begin = tl.program_id(1) * stretch
    for first in range(begin, tl.minimum(begin + stretch, rows), ROWS):
        row = (first + tl.arange(0, ROWS)).to(tl.int64)
        here = (row < rows)[:, None] & inside[None, :]
        cell = row[:, None] * WIDTH + column[None, :]
        seen = tl.load(x + cell, mask=here, other=0.0).to(tl.float32) + b[None, :]
        g = tl.load(by_out + cell, mask=here, other=0.0).to(tl.float32)
        _, slope = _value_and_slope(seen, KIND)
        g *= slope
        tl.store(by_x + cell, g.to(by_x.dtype.element_ty), mask=here)
        by_bias += g
    tl.store(parts + tl.program_id(1) * WIDTH + column, tl.sum(by_bias, 0), mask=inside)


@torch.library.custom_op("clozelab::activate", mutates_args=())
def _activate(x: Tensor, bias: Tensor, kind: int) -> Tensor:
    x = x.contiguous()
    rows, width = x.shape
    out = torch.empty_like(x)
    tiles = triton.cdiv(width, FORWARD["COLUMNS"])
    programs = tiles * triton.cdiv(rows, FORWARD["ROWS"])
    _forward[(programs,)](x, bias, out, rows, tiles, WIDTH=width, KIND=kind, **FORWARD)
    return out


@_activate.register_fake
def _(x, bias, kind):
    return torch.empty_like(x)


@torch.library.custom_op("clozelab::activate_backward", mutates_args=())
def _activate_backward(by_out: Tensor, x: Tensor, bias: Tensor, kind: int) -> tuple[Tensor, Tensor]:
    """Gradients of what went in, and of the bias."""
    by_out, x = by_out.contiguous(), x.contiguous()
    rows, width = x.shape
    by_x = torch.empty_like(x)
    high = BACKWARD["ROWS"]
    stretch = triton.cdiv(triton.cdiv(rows, STRETCHES), high) * high
    stretches = triton.cdiv(rows, stretch)
    parts = x.new_empty((stretches, width), dtype=torch.float32)
    _backward[(triton.cdiv(width, BACKWARD["COLUMNS"]), stretches)](
        by_out, x, bias, by_x, parts, rows, stretch, WIDTH=width, KIND=kind, **BACKWARD
    )
    return by_x, parts.sum(0)


@_activate_backward.register_fake
def _(by_out, x, bias, kind):
    return torch.empty_like(x), x.new_empty(x.shape[1], dtype=torch.float32)


def _keep(ctx, inputs, output):
    x, bias, ctx.kind = inputs
    ctx.save_for_backward(x, bias)


def _return(ctx, by_out):
    x, bias = ctx.saved_tensors
    by_x, by_bias = _activate_backward(by_out, x, bias, ctx.kind)
    return by_x, by_bias.to(bias.dtype), None


_activate.register_autograd(_return, setup_context=_keep)


def activate(x: Tensor, bias: Tensor, kind: str) -> Tensor:
    """activation(x + bias) of [N, W]."""
    return _activate(x, bias, KINDS.index(kind))

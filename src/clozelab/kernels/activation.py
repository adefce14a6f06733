"""The activation of a feed-forward layer with the bias before it, and that bias's gradient.

Of a gated layer (arXiv:2002.05202) the activation of the first half of a row is multiplied by the
second, in the same pass. Nothing is kept but what went in: on the way back the activation is
computed again. There the bias's gradient is added up over the rows in the pass that makes it; there
may be no bias.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

KINDS = ("gelu", "gelu_tanh", "relu", "relu2", "silu")
# Tiles and warps; backward, stretches share the rows. benchmarks/kernels.py times them on an H200;
# unlike those of attention, no sweep of them is recorded.
FORWARD = {"COLUMNS": 128, "ROWS": 16, "num_warps": 2}
BACKWARD = {"COLUMNS": 128, "ROWS": 32, "num_warps": 8}
STRETCHES = 64


@triton.jit
def _biases(bias, column, WIDTH: tl.constexpr, BIASED: tl.constexpr):
    """Those of some columns."""
    if BIASED:
        return tl.load(bias + column, mask=column < WIDTH, other=0.0).to(tl.float32)[None, :]
    else:
        return 0.0


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
    elif KIND == 2:
        return tl.maximum(x, 0.0), tl.where(x > 0, 1.0, 0.0)
    elif KIND == 3:
        above = tl.maximum(x, 0.0)
        return above * above, 2.0 * above
    else:
        share = tl.sigmoid(x)
        return x * share, share * (1.0 + x * (1.0 - share))


@triton.jit
def _activation_forward_kernel(
    x, bias, out, rows, tiles,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, KIND: tl.constexpr,
    GATED: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    row = (tl.program_id(0) // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = (row < rows)[:, None] & (column < WIDTH)[None, :]
    cell = row[:, None] * WIDTH * (1 + GATED) + column[None, :]
    seen = tl.load(x + cell, mask=here, other=0.0).to(tl.float32)
    value, _ = _value_and_slope(seen + _biases(bias, column, WIDTH, BIASED), KIND)
    if GATED:
        gate = tl.load(x + WIDTH + cell, mask=here, other=0.0).to(tl.float32)
        value *= gate + _biases(bias + WIDTH, column, WIDTH, BIASED)
    cell = row[:, None] * WIDTH + column[None, :]
    tl.store(out + cell, value.to(out.dtype.element_ty), mask=here)


@triton.jit
def _activation_backward_kernel(
    by_out, x, bias, by_x, parts, rows, stretch,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, KIND: tl.constexpr,
    GATED: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    b = _biases(bias, column, WIDTH, BIASED)
    if GATED:
        gate_b = _biases(bias + WIDTH, column, WIDTH, BIASED)
    by_bias = tl.zeros((ROWS, COLUMNS), tl.float32)
    by_gate_bias = tl.zeros((ROWS, COLUMNS), tl.float32)
    begin = tl.program_id(1) * stretch
    for first in range(begin, tl.minimum(begin + stretch, rows), ROWS):
        row = (first + tl.arange(0, ROWS)).to(tl.int64)
        here = (row < rows)[:, None] & inside[None, :]
        cell = row[:, None] * WIDTH + column[None, :]
        g = tl.load(by_out + cell, mask=here, other=0.0).to(tl.float32)
        cell = row[:, None] * WIDTH * (1 + GATED) + column[None, :]
        seen = tl.load(x + cell, mask=here, other=0.0).to(tl.float32)
        value, slope = _value_and_slope(seen + b, KIND)
        if GATED:
            gate = tl.load(x + WIDTH + cell, mask=here, other=0.0).to(tl.float32)
            value *= g
            tl.store(by_x + WIDTH + cell, value.to(by_x.dtype.element_ty), mask=here)
            slope *= gate + gate_b
            if BIASED:
                by_gate_bias += value
        g *= slope
        tl.store(by_x + cell, g.to(by_x.dtype.element_ty), mask=here)
        if BIASED:
            by_bias += g
    if BIASED:
        part = parts + tl.program_id(1) * WIDTH * (1 + GATED) + column
        tl.store(part, tl.sum(by_bias, 0), mask=inside)
        if GATED:
            tl.store(part + WIDTH, tl.sum(by_gate_bias, 0), mask=inside)


@torch.library.custom_op("clozelab::activate", mutates_args=())
def _activate(x: Tensor, bias: Tensor | None, kind: int, gated: bool) -> Tensor:
    x = x.contiguous()
    out = _half(x, gated)
    rows, width = out.shape
    tiles = triton.cdiv(width, FORWARD["COLUMNS"])
    programs = tiles * triton.cdiv(rows, FORWARD["ROWS"])
    _activation_forward_kernel[(programs,)](
        x, x if bias is None else bias, out, rows, tiles,
        WIDTH=width, KIND=kind, GATED=gated, BIASED=bias is not None, **FORWARD,
    )  # fmt: skip
    return out


def _half(x: Tensor, gated: bool) -> Tensor:
    """Room for what comes out, which of a gated layer is half of what went in."""
    return x.new_empty((x.shape[0], x.shape[1] // 2)) if gated else torch.empty_like(x)


@_activate.register_fake
def _(x, bias, kind, gated):
    return _half(x, gated)


@torch.library.custom_op("clozelab::activate_backward", mutates_args=())
def _activate_backward(
    by_out: Tensor, x: Tensor, bias: Tensor | None, kind: int, gated: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of what went in, and of the bias, if there is one."""
    by_out, x = by_out.contiguous(), x.contiguous()
    rows, width = by_out.shape
    by_x = torch.empty_like(x)
    high = BACKWARD["ROWS"]
    stretch = triton.cdiv(triton.cdiv(rows, STRETCHES), high) * high
    stretches = triton.cdiv(rows, stretch)
    parts = x.new_empty((0 if bias is None else stretches, x.shape[1]), dtype=torch.float32)
    _activation_backward_kernel[(triton.cdiv(width, BACKWARD["COLUMNS"]), stretches)](
        by_out, x, x if bias is None else bias, by_x, parts, rows, stretch,
        WIDTH=width, KIND=kind, GATED=gated, BIASED=bias is not None, **BACKWARD,
    )  # fmt: skip
    return by_x, parts if bias is None else parts.sum(0)


@_activate_backward.register_fake
def _(by_out, x, bias, kind, gated):
    shape = (0, x.shape[1]) if bias is None else (x.shape[1],)
    return torch.empty_like(x), x.new_empty(shape, dtype=torch.float32)


def _keep(ctx, inputs, output):
    x, bias, ctx.kind, ctx.gated = inputs
    ctx.save_for_backward(x, bias)


def _return(ctx, by_out):
    x, bias = ctx.saved_tensors
    by_x, by_bias = _activate_backward(by_out, x, bias, ctx.kind, ctx.gated)
    return by_x, None if bias is None else by_bias.to(bias.dtype), None, None


_activate.register_autograd(_return, setup_context=_keep)


def activate(x: Tensor, bias: Tensor | None, kind: str, *, gated: bool = False) -> Tensor:
    """activation(x + bias) of [N, W]; gated, of the first half of the columns, times the second."""
    return _activate(x, bias, KINDS.index(kind), gated)

"""The end of half a layer in one pass: x + dropout(h + bias), and its norm.

The norm is a layer norm or one by the root of the mean square; bias and shift may be missing.
Backward, one pass makes the gradients of x and h and adds up those of bias, scale and shift.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from clozelab.kernels.draws import column_keys, keep_mask, row_keys, scale, threshold

HELD = 1024  # numbers that a warp holds, 32 a thread: rows up to this need no exchange of warps
PROGRAMS = 1056  # that share the rows backward: eight for each of an H200's processors


@triton.jit
def _sums_forward_kernel(
    x, h, bias, weight, shift, seed, numbers, total, normal, mean, deviation,
    rows, epsilon, lost, grown,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, DROPS: tl.constexpr,
    NUMBERED: tl.constexpr, BIASED: tl.constexpr, CENTRED: tl.constexpr, SHIFTED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    here = (row < rows)[:, None] & (column < WIDTH)[None, :]
    cell = row[:, None] * WIDTH + column[None, :]
    added = tl.load(h + cell, mask=here, other=0.0).to(tl.float32)
    if BIASED:
        added += tl.load(bias + column, mask=column < WIDTH, other=0.0).to(tl.float32)[None, :]
    if DROPS:
        drawn = tl.load(seed)
        number = row
        if NUMBERED:
            number = tl.load(numbers + row, mask=row < rows, other=0)
        rows_drawn = row_keys(drawn, drawn * 0, number)
        columns_drawn = column_keys(drawn, drawn * 0, column)
        keep = keep_mask(rows_drawn[:, None], columns_drawn[None, :], lost)
        added = tl.where(keep, added * grown, 0.0)
    # What the norm sees is what is kept for the way back: the sum as it is rounded.
    added += tl.load(x + cell, mask=here, other=0.0).to(tl.float32)
    rounded = added.to(total.dtype.element_ty)
    tl.store(total + cell, rounded, mask=here)
    away = tl.where(here, rounded.to(tl.float32), 0.0)
    if CENTRED:
        middle = tl.sum(away, 1) / WIDTH
        away = tl.where(here, away - middle[:, None], 0.0)
        tl.store(mean + row, middle, mask=row < rows)
    scaled = 1.0 / tl.sqrt(tl.sum(away * away, 1) / WIDTH + epsilon)
    tl.store(deviation + row, scaled, mask=row < rows)
    w = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    out = away * scaled[:, None] * w[None, :]
    if SHIFTED:
        out += tl.load(shift + column, mask=column < WIDTH, other=0.0).to(tl.float32)[None, :]
    tl.store(normal + cell, out.to(normal.dtype.element_ty), mask=here)


@triton.jit
def _sums_backward_kernel(
    by_normal, by_total, total, weight, seed, numbers, mean, deviation, by_x, by_h, parts,
    rows, lost, grown,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, PROGRAMS: tl.constexpr,
    DROPS: tl.constexpr, NUMBERED: tl.constexpr, BOTH: tl.constexpr,
    BIASED: tl.constexpr, CENTRED: tl.constexpr, SHIFTED: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    by_weight = tl.zeros((ROWS, BLOCK), tl.float32)
    by_shift = tl.zeros((ROWS, BLOCK), tl.float32)
    by_bias = tl.zeros((ROWS, BLOCK), tl.float32)
    drawn = tl.load(seed)
    columns_drawn = column_keys(drawn, drawn * 0, column)
    for first in range(program * ROWS, rows, PROGRAMS * ROWS):
        row = (first + tl.arange(0, ROWS)).to(tl.int64)
        here = (row < rows)[:, None] & inside[None, :]
        cell = row[:, None] * WIDTH + column[None, :]
        g = tl.load(by_normal + cell, mask=here, other=0.0).to(tl.float32)
        scaled = tl.load(deviation + row, mask=row < rows, other=0.0)
        seen = tl.load(total + cell, mask=here, other=0.0).to(tl.float32)
        if CENTRED:
            seen -= tl.load(mean + row, mask=row < rows, other=0.0)[:, None]
        unit = tl.where(here, seen * scaled[:, None], 0.0)
        by_weight += g * unit
        if SHIFTED:
            by_shift += g
        g = g * w[None, :]
        by_sum = g - unit * (tl.sum(g * unit, 1) / WIDTH)[:, None]
        if CENTRED:
            by_sum -= (tl.sum(g, 1) / WIDTH)[:, None]
        by_sum *= scaled[:, None]
        if BOTH:
            by_sum += tl.load(by_total + cell, mask=here, other=0.0).to(tl.float32)
        tl.store(by_x + cell, by_sum.to(by_x.dtype.element_ty), mask=here)
        if DROPS:
            number = row
            if NUMBERED:
                number = tl.load(numbers + row, mask=row < rows, other=0)
            rows_drawn = row_keys(drawn, drawn * 0, number)
            keep = keep_mask(rows_drawn[:, None], columns_drawn[None, :], lost)
            by_sum = tl.where(keep, by_sum * grown, 0.0)
            tl.store(by_h + cell, by_sum.to(by_h.dtype.element_ty), mask=here)
        if BIASED:
            by_bias += tl.where(here, by_sum, 0.0)
    part = parts + program * (1 + BIASED + SHIFTED) * WIDTH + column
    tl.store(part, tl.sum(by_weight, 0), mask=inside)
    if BIASED:
        tl.store(part + WIDTH, tl.sum(by_bias, 0), mask=inside)
    if SHIFTED:
        tl.store(part + (1 + BIASED) * WIDTH, tl.sum(by_shift, 0), mask=inside)


def _shares(width: int) -> tuple[int, int, int]:
    """The power of two that a row fits in, and the rows and warps of a program."""
    block = triton.next_power_of_2(width)
    return block, max(1, HELD // block), max(1, block // 1024)


@torch.library.custom_op("clozelab::add_norm", mutates_args=())
def _add_norm(
    x: Tensor, h: Tensor, bias: Tensor | None, weight: Tensor, shift: Tensor | None, seed: Tensor,
    numbers: Tensor | None, rate: float, epsilon: float, centred: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """[N, W] sum and norm, and [N] mean and inverse deviation of each row."""
    rows, width = x.shape
    x, h = x.contiguous(), h.contiguous()
    total, normal = torch.empty_like(x), torch.empty_like(x)
    mean, deviation = _row_facts(x, centred)
    block, each, warps = _shares(width)
    _sums_forward_kernel[(triton.cdiv(rows, each),)](
        x, h, weight if bias is None else bias, weight, weight if shift is None else shift, seed,
        seed if numbers is None else numbers, total, normal, mean, deviation, rows, epsilon,
        threshold(rate), scale(rate),
        WIDTH=width, BLOCK=block, ROWS=each, DROPS=rate > 0, NUMBERED=numbers is not None,
        BIASED=bias is not None, CENTRED=centred, SHIFTED=shift is not None, num_warps=warps,
    )  # fmt: skip
    return total, normal, mean, deviation


def _row_facts(x: Tensor, centred: bool) -> tuple[Tensor, Tensor]:
    """Room for the mean, where there is one, and the inverse deviation of each row."""
    rows = x.shape[0]
    mean = x.new_empty(rows if centred else 0, dtype=torch.float32)
    return mean, x.new_empty(rows, dtype=torch.float32)


@_add_norm.register_fake
def _(x, h, bias, weight, shift, seed, numbers, rate, epsilon, centred):
    return torch.empty_like(x), torch.empty_like(x), *_row_facts(x, centred)


@torch.library.custom_op("clozelab::add_norm_backward", mutates_args=())
def _add_norm_backward(
    by_normal: Tensor, by_total: Tensor | None, total: Tensor, weight: Tensor, seed: Tensor,
    numbers: Tensor | None, mean: Tensor, deviation: Tensor, rate: float, biased: bool,
    shifted: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x and h (if something is dropped), and of scale, bias and shift as rows."""
    rows, width = total.shape
    by_normal = by_normal.contiguous()
    by_x = torch.empty_like(total)
    by_h = torch.empty_like(total) if rate > 0 else total.new_empty(0)
    block, each, warps = _shares(width)
    programs = min(PROGRAMS, triton.cdiv(rows, each))
    parts = total.new_empty((programs, 1 + biased + shifted, width), dtype=torch.float32)
    _sums_backward_kernel[(programs,)](
        by_normal, by_normal if by_total is None else by_total.contiguous(), total, weight, seed,
        seed if numbers is None else numbers, mean, deviation, by_x, by_h, parts, rows,
        threshold(rate), scale(rate),
        WIDTH=width, BLOCK=block, ROWS=each, PROGRAMS=programs, DROPS=rate > 0,
        NUMBERED=numbers is not None, BOTH=by_total is not None, BIASED=biased,
        CENTRED=len(mean) > 0, SHIFTED=shifted, num_warps=warps,
    )  # fmt: skip
    return by_x, by_h, parts.sum(0)


@_add_norm_backward.register_fake
def _(by_normal, by_total, total, weight, seed, numbers, mean, deviation, rate, biased, shifted):
    by_h = torch.empty_like(total) if rate > 0 else total.new_empty(0)
    vectors = total.new_empty((1 + biased + shifted, total.shape[1]), dtype=torch.float32)
    return torch.empty_like(total), by_h, vectors


def _keep(ctx, inputs, output):
    _, _, bias, weight, shift, seed, numbers, ctx.rate, _, _ = inputs
    total, _, mean, deviation = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(mean, deviation)
    ctx.save_for_backward(total, weight, seed, numbers, mean, deviation)
    ctx.biased, ctx.shifted = bias is not None, shift is not None


def _return(ctx, by_total, by_normal, *_):
    total, weight, seed, numbers, mean, deviation = ctx.saved_tensors
    inputs = (by_normal, by_total, total, weight, seed, numbers, mean, deviation)
    by_x, by_h, vectors = _add_norm_backward(*inputs, ctx.rate, ctx.biased, ctx.shifted)
    by_weight, *rest = vectors.to(weight.dtype)
    by_bias = rest.pop(0) if ctx.biased else None
    by_shift = rest.pop(0) if ctx.shifted else None
    by_h = by_h if ctx.rate > 0 else by_x
    return by_x, by_h, by_bias, by_weight, by_shift, None, None, None, None, None


_add_norm.register_autograd(_return, setup_context=_keep)


def add_norm(
    x: Tensor, h: Tensor, *, bias: Tensor | None, weight: Tensor, shift: Tensor | None,
    seed: Tensor, rate: float, epsilon: float, centred: bool = True, numbers: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """x + dropout(h + bias), and its norm; `seed` is a 64-bit number on the device.

    `centred` is a layer norm; without it rows are divided by the root of their mean square.
    `numbers` are those of the rows, where x has only some of a tensor's: draws go by them.
    """
    inputs = (x, h, bias, weight, shift, seed, numbers)
    total, normal, _, _ = _add_norm(*inputs, rate, epsilon, centred)
    return total, normal

"""Residual sum, dropout and norm in one pass: y = x + dropout(h + bias), and norm(y).

x is the residual stream, h the output of a half-layer's last matrix product, without its bias. The
norm is a layer norm or an RMS norm; `bias` and `norm_bias` may be missing. All of it is memory
traffic, so each tensor is read or written once in either direction.

Backward is that of a layer norm. With x̂ = (y − mean) · rstd, g = d_normed · weight, and d_y what
reaches y past the norm,

    dx = rstd · (g − x̂ · mean(g · x̂) − mean(g)) + d_y

(an RMS norm has neither mean of y nor mean(g)), and dh is dx through the dropout mask. By hand,
because the compiler needs a second pass over the rows for the gradients of weight and biases: here
every program adds them up over the rows that it has, [programs, vectors, W], and one small sum
over the programs follows. No atomic additions, so the result is the same every time.

Invariant: mean and rstd are those of y as it is stored, in its rounded precision.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from clozelab.kernels.dropout import (
    column_keys,
    drop_threshold,
    inverse_keep_prob,
    keep_mask,
    row_keys,
)

TILE_ELEMENTS = 1024  # of a warp, 32 for each thread: a row up to this is reduced within a warp
MAX_PROGRAMS = 1056  # of the backward pass: eight for each multiprocessor of an H200


@triton.jit
def _sums_forward_kernel(
    x, h, bias, norm_weight, norm_bias, seed_ptr, row_ids, y, normed, mean, rstd,
    n_rows, eps, drop_threshold, inv_keep_prob,
    N_COLS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
    HAS_DROPOUT: tl.constexpr, HAS_ROW_IDS: tl.constexpr, HAS_BIAS: tl.constexpr,
    CENTRED: tl.constexpr, HAS_NORM_BIAS: tl.constexpr,
):  # fmt: skip
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    mask = (offs_m < n_rows)[:, None] & (offs_n < N_COLS)[None, :]
    offs = offs_m[:, None] * N_COLS + offs_n[None, :]
    acc = tl.load(h + offs, mask=mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        acc += tl.load(bias + offs_n, mask=offs_n < N_COLS, other=0.0).to(tl.float32)[None, :]
    if HAS_DROPOUT:
        seed = tl.load(seed_ptr)
        row_id = offs_m
        if HAS_ROW_IDS:
            row_id = tl.load(row_ids + offs_m, mask=offs_m < n_rows, other=0)
        keys_m = row_keys(seed, row_id)
        keys_n = column_keys(seed, offs_n)
        keep = keep_mask(keys_m[:, None], keys_n[None, :], drop_threshold)
        acc = tl.where(keep, acc * inv_keep_prob, 0.0)
    acc += tl.load(x + offs, mask=mask, other=0.0).to(tl.float32)
    # The norm is that of the rounded sum, which is what the backward pass reads.
    rounded = acc.to(y.dtype.element_ty)
    tl.store(y + offs, rounded, mask=mask)
    diff = tl.where(mask, rounded.to(tl.float32), 0.0)
    if CENTRED:
        mean_m = tl.sum(diff, 1) / N_COLS
        diff = tl.where(mask, diff - mean_m[:, None], 0.0)
        tl.store(mean + offs_m, mean_m, mask=offs_m < n_rows)
    rstd_m = 1.0 / tl.sqrt(tl.sum(diff * diff, 1) / N_COLS + eps)
    tl.store(rstd + offs_m, rstd_m, mask=offs_m < n_rows)
    w = tl.load(norm_weight + offs_n, mask=offs_n < N_COLS, other=0.0).to(tl.float32)
    out = diff * rstd_m[:, None] * w[None, :]
    if HAS_NORM_BIAS:
        out += tl.load(norm_bias + offs_n, mask=offs_n < N_COLS, other=0.0).to(tl.float32)[None, :]
    tl.store(normed + offs, out.to(normed.dtype.element_ty), mask=mask)


@triton.jit
def _sums_backward_kernel(
    d_normed, d_y, y, norm_weight, seed_ptr, row_ids, mean, rstd, d_x, d_h, partials,
    n_rows, drop_threshold, inv_keep_prob,
    N_COLS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, N_PROGRAMS: tl.constexpr,
    HAS_DROPOUT: tl.constexpr, HAS_ROW_IDS: tl.constexpr, HAS_D_Y: tl.constexpr,
    HAS_BIAS: tl.constexpr, CENTRED: tl.constexpr, HAS_NORM_BIAS: tl.constexpr,
):  # fmt: skip
    """Each program takes every N_PROGRAMS-th tile of rows and sums the gradients of the vectors."""
    program = tl.program_id(0)
    offs_n = tl.arange(0, BLOCK_N)
    mask_n = offs_n < N_COLS
    w = tl.load(norm_weight + offs_n, mask=mask_n, other=0.0).to(tl.float32)
    d_norm_weight = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    d_norm_bias = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    d_bias = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    seed = tl.load(seed_ptr)
    keys_n = column_keys(seed, offs_n)
    for start_m in range(program * BLOCK_M, n_rows, N_PROGRAMS * BLOCK_M):
        offs_m = (start_m + tl.arange(0, BLOCK_M)).to(tl.int64)
        mask = (offs_m < n_rows)[:, None] & mask_n[None, :]
        offs = offs_m[:, None] * N_COLS + offs_n[None, :]
        g = tl.load(d_normed + offs, mask=mask, other=0.0).to(tl.float32)
        rstd_m = tl.load(rstd + offs_m, mask=offs_m < n_rows, other=0.0)
        diff = tl.load(y + offs, mask=mask, other=0.0).to(tl.float32)
        if CENTRED:
            diff -= tl.load(mean + offs_m, mask=offs_m < n_rows, other=0.0)[:, None]
        x_hat = tl.where(mask, diff * rstd_m[:, None], 0.0)
        d_norm_weight += g * x_hat
        if HAS_NORM_BIAS:
            d_norm_bias += g
        g = g * w[None, :]
        dx = g - x_hat * (tl.sum(g * x_hat, 1) / N_COLS)[:, None]
        if CENTRED:
            dx -= (tl.sum(g, 1) / N_COLS)[:, None]
        dx *= rstd_m[:, None]
        if HAS_D_Y:
            dx += tl.load(d_y + offs, mask=mask, other=0.0).to(tl.float32)
        tl.store(d_x + offs, dx.to(d_x.dtype.element_ty), mask=mask)
        dh = dx
        if HAS_DROPOUT:
            row_id = offs_m
            if HAS_ROW_IDS:
                row_id = tl.load(row_ids + offs_m, mask=offs_m < n_rows, other=0)
            keys_m = row_keys(seed, row_id)
            keep = keep_mask(keys_m[:, None], keys_n[None, :], drop_threshold)
            dh = tl.where(keep, dx * inv_keep_prob, 0.0)
            tl.store(d_h + offs, dh.to(d_h.dtype.element_ty), mask=mask)
        if HAS_BIAS:
            d_bias += tl.where(mask, dh, 0.0)
    partial = partials + program * (1 + HAS_BIAS + HAS_NORM_BIAS) * N_COLS + offs_n
    tl.store(partial, tl.sum(d_norm_weight, 0), mask=mask_n)
    if HAS_BIAS:
        tl.store(partial + N_COLS, tl.sum(d_bias, 0), mask=mask_n)
    if HAS_NORM_BIAS:
        tl.store(partial + (1 + HAS_BIAS) * N_COLS, tl.sum(d_norm_bias, 0), mask=mask_n)


def _tile_shape(width: int) -> tuple[int, int, int]:
    """BLOCK_N, the power of two that a row fits in; BLOCK_M; and the warps of a program."""
    block_n = triton.next_power_of_2(width)
    return block_n, max(1, TILE_ELEMENTS // block_n), max(1, block_n // 1024)


@torch.library.custom_op("clozelab::add_norm", mutates_args=())
def _add_norm(
    x: Tensor, h: Tensor, bias: Tensor | None, norm_weight: Tensor, norm_bias: Tensor | None,
    seed: Tensor, row_ids: Tensor | None, dropout: float, eps: float, centred: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """[N, W] y and normed; [N] mean and rstd of each row of y, in single precision."""
    n_rows, width = x.shape
    x, h = x.contiguous(), h.contiguous()
    y, normed = torch.empty_like(x), torch.empty_like(x)
    mean, rstd = _empty_statistics(x, centred)
    block_n, block_m, warps = _tile_shape(width)
    # A missing tensor is never read; any other is passed in its place.
    _sums_forward_kernel[(triton.cdiv(n_rows, block_m),)](
        x, h, norm_weight if bias is None else bias, norm_weight,
        norm_weight if norm_bias is None else norm_bias, seed,
        seed if row_ids is None else row_ids, y, normed, mean, rstd, n_rows, eps,
        drop_threshold(dropout), inverse_keep_prob(dropout),
        N_COLS=width, BLOCK_N=block_n, BLOCK_M=block_m, HAS_DROPOUT=dropout > 0,
        HAS_ROW_IDS=row_ids is not None, HAS_BIAS=bias is not None, CENTRED=centred,
        HAS_NORM_BIAS=norm_bias is not None, num_warps=warps,
    )  # fmt: skip
    return y, normed, mean, rstd


def _empty_statistics(x: Tensor, centred: bool) -> tuple[Tensor, Tensor]:
    """Uninitialised [N] mean, empty for an RMS norm, and [N] rstd."""
    n_rows = x.shape[0]
    mean = x.new_empty(n_rows if centred else 0, dtype=torch.float32)
    return mean, x.new_empty(n_rows, dtype=torch.float32)


@_add_norm.register_fake
def _(x, h, bias, norm_weight, norm_bias, seed, row_ids, dropout, eps, centred):
    return x.new_empty(x.shape), x.new_empty(x.shape), *_empty_statistics(x, centred)


@torch.library.custom_op("clozelab::add_norm_backward", mutates_args=())
def _add_norm_backward(
    d_normed: Tensor, d_y: Tensor | None, y: Tensor, norm_weight: Tensor, seed: Tensor,
    row_ids: Tensor | None, mean: Tensor, rstd: Tensor, dropout: float, has_bias: bool,
    has_norm_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """[N, W] dx; [N, W] dh, empty without dropout, where it is dx; and [1 to 3, W] the gradients
    of norm_weight, bias and norm_bias, of those that there are.
    """
    n_rows, width = y.shape
    d_normed = d_normed.contiguous()
    d_x = torch.empty_like(y)
    d_h = torch.empty_like(y) if dropout > 0 else y.new_empty(0)
    block_n, block_m, warps = _tile_shape(width)
    n_programs = min(MAX_PROGRAMS, triton.cdiv(n_rows, block_m))
    partials = y.new_empty((n_programs, 1 + has_bias + has_norm_bias, width), dtype=torch.float32)
    _sums_backward_kernel[(n_programs,)](
        d_normed, d_normed if d_y is None else d_y.contiguous(), y, norm_weight, seed,
        seed if row_ids is None else row_ids, mean, rstd, d_x, d_h, partials, n_rows,
        drop_threshold(dropout), inverse_keep_prob(dropout),
        N_COLS=width, BLOCK_N=block_n, BLOCK_M=block_m, N_PROGRAMS=n_programs,
        HAS_DROPOUT=dropout > 0, HAS_ROW_IDS=row_ids is not None, HAS_D_Y=d_y is not None,
        HAS_BIAS=has_bias, CENTRED=len(mean) > 0, HAS_NORM_BIAS=has_norm_bias, num_warps=warps,
    )  # fmt: skip
    return d_x, d_h, partials.sum(0)


@_add_norm_backward.register_fake
def _(
    d_normed, d_y, y, norm_weight, seed, row_ids, mean, rstd, dropout, has_bias, has_norm_bias
):  # fmt: skip
    d_h = torch.empty_like(y) if dropout > 0 else y.new_empty(0)
    d_vectors = y.new_empty((1 + has_bias + has_norm_bias, y.shape[1]), dtype=torch.float32)
    return torch.empty_like(y), d_h, d_vectors


def _setup_context(ctx, inputs, output):
    _, _, bias, norm_weight, norm_bias, seed, row_ids, ctx.dropout, _, _ = inputs
    y, _, mean, rstd = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(mean, rstd)
    ctx.save_for_backward(y, norm_weight, seed, row_ids, mean, rstd)
    ctx.has_bias, ctx.has_norm_bias = bias is not None, norm_bias is not None


def _backward(ctx, d_y, d_normed, *_):
    y, norm_weight, seed, row_ids, mean, rstd = ctx.saved_tensors
    if d_normed is None:  # only the sum is used
        d_normed = torch.zeros_like(y)
    inputs = (d_normed, d_y, y, norm_weight, seed, row_ids, mean, rstd)
    d_x, d_h, d_vectors = _add_norm_backward(*inputs, ctx.dropout, ctx.has_bias, ctx.has_norm_bias)
    d_norm_weight, *d_biases = d_vectors.to(norm_weight.dtype)
    d_bias = d_biases.pop(0) if ctx.has_bias else None
    d_norm_bias = d_biases.pop(0) if ctx.has_norm_bias else None
    d_h = d_h if ctx.dropout > 0 else d_x
    return d_x, d_h, d_bias, d_norm_weight, d_norm_bias, None, None, None, None, None


_add_norm.register_autograd(_backward, setup_context=_setup_context)


def add_norm(
    x: Tensor, h: Tensor, *, bias: Tensor | None, norm_weight: Tensor, norm_bias: Tensor | None,
    seed: Tensor, dropout: float, eps: float, centred: bool = True, row_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """[N, W] y = x + dropout(h + bias), and [N, W] its norm; `seed` is one int64 on the device.

    The norm is a layer norm if `centred`, an RMS norm otherwise. `row_ids` [N] are the
    indices of the rows in a whole tensor of which x holds only some: dropout goes by these.
    """
    inputs = (x, h, bias, norm_weight, norm_bias, seed, row_ids)
    y, normed, _, _ = _add_norm(*inputs, dropout, eps, centred)
    return y, normed

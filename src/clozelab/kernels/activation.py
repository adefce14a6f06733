"""The activation of a feed-forward layer, its bias, gate and dropout in one pass; then its product.

h = dropout(activation(x + bias)), or for a gated layer (GLU variants, arXiv:2002.05202)
dropout(activation(a) · gate), where a and gate are the first and the second half of the columns of
x + bias; and h Wᵀ, the last product of the layer. By hand, so that the bias's gradient needs no
pass of its own, and because `erf` takes longer than the memory traffic.

The product is part of the operator, so that h, a quarter of what the layers of BERT would save, is
not saved: the backward pass computes it again from x in the pass that computes dx, for dW = dyᵀ h.
There a program adds up the bias's gradient over a chunk of rows, [chunks, columns], and one small
sum over the chunks follows. No atomic additions, so the result is the same every time.

Invariant: h is the same, bit for bit, in both passes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from clozelab.kernels.dropout import (
    column_keys,
    drop_threshold,
    inverse_keep_prob,
    keep_mask,
    row_keys,
)

KINDS = ("gelu", "gelu_tanh", "relu", "relu2", "silu")
# Tiles and warps. benchmarks/kernel_times.py times them on an H200; unlike those of attention, no
# sweep of them is recorded.
FORWARD = {"BLOCK_N": 128, "BLOCK_M": 16, "num_warps": 2}
BACKWARD = {"BLOCK_N": 128, "BLOCK_M": 32, "num_warps": 8}
MAX_ROW_CHUNKS = 64  # of the backward pass: a program has one chunk of rows


@triton.jit
def _load_bias(bias, offs_n, N_COLS: tl.constexpr, HAS_BIAS: tl.constexpr):
    """[1, BLOCK_N] a tile of the bias, or 0."""
    if HAS_BIAS:
        return tl.load(bias + offs_n, mask=offs_n < N_COLS, other=0.0).to(tl.float32)[None, :]
    else:
        return 0.0


@triton.jit
def _value_and_derivative(x, KIND: tl.constexpr):
    """The activation of x and its derivative there; KIND is an index of KINDS."""
    if KIND == 0:
        # The normal distribution by formula 7.1.26 of Abramowitz and Stegun, to 1e-7: half the
        # arithmetic of `erf`.
        gaussian = tl.exp2(-0.7213475204444817 * x * x)  # exp(−x² / 2)
        t = 1.0 / (1.0 + 0.2316418882 * tl.abs(x))
        tail = 1.061405429 * t - 1.453152027
        tail = (tail * t + 1.421413741) * t - 0.284496736
        tail = (tail * t + 0.254829592) * t * 0.5 * gaussian
        cdf = tl.where(x < 0, tail, 1.0 - tail)
        return x * cdf, cdf + x * 0.3989422804014327 * gaussian
    elif KIND == 1:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        tanh = 2.0 * tl.sigmoid(2.0 * inner) - 1.0
        d_inner = 0.7978845608028654 * (1.0 + 0.134145 * x * x)
        cdf = 0.5 * (1.0 + tanh)
        return x * cdf, cdf + 0.5 * x * (1.0 - tanh * tanh) * d_inner
    elif KIND == 2:
        return tl.maximum(x, 0.0), tl.where(x > 0, 1.0, 0.0)
    elif KIND == 3:
        relu = tl.maximum(x, 0.0)
        return relu * relu, 2.0 * relu
    else:
        sigmoid = tl.sigmoid(x)
        return x * sigmoid, sigmoid * (1.0 + x * (1.0 - sigmoid))


@triton.jit
def _activation_forward_kernel(
    x, bias, seed_ptr, out, n_rows, n_tiles, drop_threshold, inv_keep_prob,
    N_COLS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, KIND: tl.constexpr,
    GATED: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    """A tile of `out`, which has N_COLS columns; x has twice as many if it is gated."""
    offs_n = tl.program_id(0) % n_tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_m = (tl.program_id(0) // n_tiles).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    mask = (offs_m < n_rows)[:, None] & (offs_n < N_COLS)[None, :]
    offs = offs_m[:, None] * N_COLS * (1 + GATED) + offs_n[None, :]
    a = tl.load(x + offs, mask=mask, other=0.0).to(tl.float32)
    value, _ = _value_and_derivative(a + _load_bias(bias, offs_n, N_COLS, HAS_BIAS), KIND)
    if GATED:
        gate = tl.load(x + N_COLS + offs, mask=mask, other=0.0).to(tl.float32)
        value *= gate + _load_bias(bias + N_COLS, offs_n, N_COLS, HAS_BIAS)
    if HAS_DROPOUT:
        seed = tl.load(seed_ptr)
        keys_m = row_keys(seed, offs_m)
        keys_n = column_keys(seed, offs_n)
        keep = keep_mask(keys_m[:, None], keys_n[None, :], drop_threshold)
        value = tl.where(keep, value * inv_keep_prob, 0.0)
    offs = offs_m[:, None] * N_COLS + offs_n[None, :]
    tl.store(out + offs, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _activation_backward_kernel(
    d_out, x, bias, seed_ptr, d_x, out, partials, n_rows, chunk_rows, drop_threshold, inv_keep_prob,
    N_COLS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, KIND: tl.constexpr,
    GATED: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    """A strip of BLOCK_N columns over the `chunk_rows` rows of a chunk, tile by tile.

    `out` is what the forward pass computed, once more.
    """
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_n = offs_n < N_COLS
    a_bias = _load_bias(bias, offs_n, N_COLS, HAS_BIAS)
    if GATED:
        gate_bias = _load_bias(bias + N_COLS, offs_n, N_COLS, HAS_BIAS)
    d_a_bias = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    d_gate_bias = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    seed = tl.load(seed_ptr)
    keys_n = column_keys(seed, offs_n)
    chunk_start = tl.program_id(1) * chunk_rows
    for start_m in range(chunk_start, tl.minimum(chunk_start + chunk_rows, n_rows), BLOCK_M):
        offs_m = (start_m + tl.arange(0, BLOCK_M)).to(tl.int64)
        mask = (offs_m < n_rows)[:, None] & mask_n[None, :]
        out_offs = offs_m[:, None] * N_COLS + offs_n[None, :]
        do = tl.load(d_out + out_offs, mask=mask, other=0.0).to(tl.float32)
        offs = offs_m[:, None] * N_COLS * (1 + GATED) + offs_n[None, :]
        a = tl.load(x + offs, mask=mask, other=0.0).to(tl.float32)
        value, derivative = _value_and_derivative(a + a_bias, KIND)
        product = value
        if GATED:
            gate = tl.load(x + N_COLS + offs, mask=mask, other=0.0).to(tl.float32) + gate_bias
            product *= gate
            derivative *= gate
        if HAS_DROPOUT:
            keys_m = row_keys(seed, offs_m)
            keep = keep_mask(keys_m[:, None], keys_n[None, :], drop_threshold)
            product = tl.where(keep, product * inv_keep_prob, 0.0)
            do = tl.where(keep, do * inv_keep_prob, 0.0)
        tl.store(out + out_offs, product.to(out.dtype.element_ty), mask=mask)
        if GATED:
            d_gate = value * do
            tl.store(d_x + N_COLS + offs, d_gate.to(d_x.dtype.element_ty), mask=mask)
            if HAS_BIAS:
                d_gate_bias += d_gate
        d_a = do * derivative
        tl.store(d_x + offs, d_a.to(d_x.dtype.element_ty), mask=mask)
        if HAS_BIAS:
            d_a_bias += d_a
    if HAS_BIAS:
        partial = partials + tl.program_id(1) * N_COLS * (1 + GATED) + offs_n
        tl.store(partial, tl.sum(d_a_bias, 0), mask=mask_n)
        if GATED:
            tl.store(partial + N_COLS, tl.sum(d_gate_bias, 0), mask=mask_n)


@torch.library.custom_op("clozelab::activated_product", mutates_args=())
def _activated_product(
    x: Tensor, bias: Tensor | None, weight: Tensor, seed: Tensor, kind: int, gated: bool,
    dropout: float,
) -> Tensor:  # fmt: skip
    x = x.contiguous()
    out = _empty_activated(x, gated)
    n_rows, width = out.shape
    n_tiles = triton.cdiv(width, FORWARD["BLOCK_N"])
    n_programs = n_tiles * triton.cdiv(n_rows, FORWARD["BLOCK_M"])
    _activation_forward_kernel[(n_programs,)](
        x, x if bias is None else bias, seed, out, n_rows, n_tiles, drop_threshold(dropout),
        inverse_keep_prob(dropout), N_COLS=width, KIND=kind, GATED=gated,
        HAS_BIAS=bias is not None, HAS_DROPOUT=dropout > 0, **FORWARD,
    )  # fmt: skip
    return functional.linear(out, weight)


def _empty_activated(x: Tensor, gated: bool) -> Tensor:
    """Uninitialised [N, W]; of a gated layer half as wide as x."""
    return x.new_empty((x.shape[0], x.shape[1] // 2)) if gated else torch.empty_like(x)


@_activated_product.register_fake
def _(x, bias, weight, seed, kind, gated, dropout):
    return x.new_empty((x.shape[0], weight.shape[0]))


@torch.library.custom_op("clozelab::activate_backward", mutates_args=())
def _activate_backward(
    d_out: Tensor, x: Tensor, bias: Tensor | None, seed: Tensor, kind: int, gated: bool,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, and of the bias in single precision, empty if there is none; and what
    the product multiplied."""
    d_out, x = d_out.contiguous(), x.contiguous()
    n_rows, width = d_out.shape
    d_x, out = torch.empty_like(x), torch.empty_like(d_out)
    block_m = BACKWARD["BLOCK_M"]
    chunk_rows = triton.cdiv(max(n_rows, 1), MAX_ROW_CHUNKS * block_m) * block_m
    n_chunks = triton.cdiv(n_rows, chunk_rows)
    partials = x.new_empty((0 if bias is None else n_chunks, x.shape[1]), dtype=torch.float32)
    _activation_backward_kernel[(triton.cdiv(width, BACKWARD["BLOCK_N"]), n_chunks)](
        d_out, x, x if bias is None else bias, seed, d_x, out, partials, n_rows, chunk_rows,
        drop_threshold(dropout), inverse_keep_prob(dropout), N_COLS=width, KIND=kind,
        GATED=gated, HAS_BIAS=bias is not None, HAS_DROPOUT=dropout > 0, **BACKWARD,
    )  # fmt: skip
    return d_x, partials if bias is None else partials.sum(0), out


@_activate_backward.register_fake
def _(d_out, x, bias, seed, kind, gated, dropout):
    shape = (0, x.shape[1]) if bias is None else (x.shape[1],)
    d_bias = x.new_empty(shape, dtype=torch.float32)
    return x.new_empty(x.shape), d_bias, d_out.new_empty(d_out.shape)


def _setup_context(ctx, inputs, output):
    x, bias, weight, seed, ctx.kind, ctx.gated, ctx.dropout = inputs
    ctx.save_for_backward(x, bias, weight, seed)


def _backward(ctx, d_y):
    x, bias, weight, seed = ctx.saved_tensors
    settings = (ctx.kind, ctx.gated, ctx.dropout)
    d_x, d_bias, out = _activate_backward(d_y @ weight, x, bias, seed, *settings)
    d_bias = None if bias is None else d_bias.to(bias.dtype)
    return d_x, d_bias, d_y.mT @ out, None, None, None, None


_activated_product.register_autograd(_backward, setup_context=_setup_context)


def activated_product(
    x: Tensor, bias: Tensor | None, weight: Tensor, kind: str, *, seed: Tensor,
    gated: bool = False, dropout: float = 0.0,
) -> Tensor:  # fmt: skip
    """[N, O] dropout(activation(x + bias)) Wᵀ, with an activation of KINDS and a weight [O, W].

    x is [N, W]; if `gated`, [N, 2 · W]: the activation of the first W columns, times the other W.
    `seed` is one int64 on the device.
    """
    return _activated_product(x, bias, weight, seed, KINDS.index(kind), gated, dropout)

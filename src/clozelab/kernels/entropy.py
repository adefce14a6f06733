"""Cross-entropy over a vocabulary: an online softmax forward, softmax minus one-hot backward.

Forward, a program reads a row of logits once, with a running maximum and sum (arXiv:1805.02867,
§3), and keeps the row's log-sum-exp. Backward reads the logits once more and writes their gradient,
d_loss · (exp(logit − lse) − [column = label]). By hand, because the compiler's kernel reads a row
whose length is not aligned one value at a time. So logits come in rows of a rounded length,
`stride`, which are read whole; columns from `vocab_size` on count as −∞ and have gradient 0.

Unlike attention's, the log-sum-exp here is a natural logarithm.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Columns and rows of a tile, and warps.
FORWARD = {"BLOCK_N": 4096, "num_warps": 8}
BACKWARD = {"BLOCK_N": 1024, "BLOCK_M": 4, "num_warps": 4}
_LOG2E = tl.constexpr(1.4426950408889634)  # exp(x) = exp2(x · log2 e) takes fewer instructions


@triton.jit
def _entropy_forward_kernel(
    logits, labels, losses, lse, argmax, stride, vocab_size, BLOCK_N: tl.constexpr
):
    """One row: its loss, log-sum-exp and first largest column."""
    row = tl.program_id(0)
    row_ptr = logits + row.to(tl.int64) * stride
    best = tl.zeros((), tl.int32)
    m_i = tl.full((), float("-inf"), tl.float32)  # running maximum
    l_i = tl.zeros((BLOCK_N,), tl.float32)  # running sums of exp(x − m_i), one for each lane
    for start_n in range(0, vocab_size, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        x = tl.load(row_ptr + offs_n, mask=offs_n < stride, other=0.0).to(tl.float32)
        x = tl.where(offs_n < vocab_size, x, float("-inf"))
        tile_max, tile_argmax = tl.max(x, 0, return_indices=True)
        best = tl.where(tile_max > m_i, start_n + tile_argmax, best)
        m_new = tl.maximum(m_i, tile_max)
        l_i = l_i * tl.exp2((m_i - m_new) * _LOG2E) + tl.exp2((x - m_new) * _LOG2E)
        m_i = m_new
    row_lse = m_i + tl.log(tl.sum(l_i, 0))
    label = tl.load(labels + row)
    label_logit = tl.load(row_ptr + label, mask=label >= 0, other=0.0).to(tl.float32)
    tl.store(losses + row, tl.where(label >= 0, row_lse - label_logit, 0.0))
    tl.store(lse + row, row_lse)
    tl.store(argmax + row, best.to(tl.int64))


@triton.jit
def _entropy_backward_kernel(
    d_losses, logits, labels, lse, d_logits, n_rows, n_tiles, stride, vocab_size,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """A tile of the logits' gradient."""
    offs_n = tl.program_id(0) % n_tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_m = tl.program_id(0) // n_tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    offs = offs_m.to(tl.int64)[:, None] * stride + offs_n[None, :]
    mask = (offs_m < n_rows)[:, None] & (offs_n < stride)[None, :]
    x = tl.load(logits + offs, mask=mask, other=0.0).to(tl.float32)
    label = tl.load(labels + offs_m, mask=offs_m < n_rows, other=-1)
    d_loss = tl.load(d_losses + offs_m, mask=(offs_m < n_rows) & (label >= 0), other=0.0)
    lse_m = tl.load(lse + offs_m, mask=offs_m < n_rows, other=0.0)
    p = tl.exp2((x - lse_m[:, None]) * _LOG2E)
    p = tl.where((offs_n < vocab_size)[None, :], p, 0.0)
    dx = (p - (offs_n[None, :] == label[:, None]).to(tl.float32)) * d_loss[:, None]
    tl.store(d_logits + offs, dx.to(d_logits.dtype.element_ty), mask=mask)


@torch.library.custom_op("clozelab::entropy", mutates_args=())
def _entropy(logits: Tensor, labels: Tensor, vocab_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """[K] losses, the columns of the largest logits, and the log-sum-exps."""
    logits, labels = logits.contiguous(), labels.contiguous()
    n_rows, stride = logits.shape
    losses, lse = (logits.new_empty(n_rows, dtype=torch.float32) for _ in range(2))
    argmax = torch.empty_like(labels)
    if n_rows:
        _entropy_forward_kernel[(n_rows,)](
            logits, labels, losses, lse, argmax, stride, vocab_size, **FORWARD
        )
    return losses, argmax, lse


@_entropy.register_fake
def _(logits, labels, vocab_size):
    losses, lse = (logits.new_empty(len(logits), dtype=torch.float32) for _ in range(2))
    return losses, labels.new_empty(labels.shape), lse


@torch.library.custom_op("clozelab::entropy_backward", mutates_args=())
def _entropy_backward(
    d_losses: Tensor, logits: Tensor, labels: Tensor, lse: Tensor, vocab_size: int
) -> Tensor:
    d_losses, logits, labels = (x.contiguous() for x in (d_losses, logits, labels))
    n_rows, stride = logits.shape
    d_logits = torch.empty_like(logits)
    n_tiles = triton.cdiv(stride, BACKWARD["BLOCK_N"])
    if n_rows:
        _entropy_backward_kernel[(n_tiles * triton.cdiv(n_rows, BACKWARD["BLOCK_M"]),)](
            d_losses, logits, labels, lse, d_logits, n_rows, n_tiles, stride, vocab_size, **BACKWARD
        )
    return d_logits


@_entropy_backward.register_fake
def _(d_losses, logits, labels, lse, vocab_size):
    return logits.new_empty(logits.shape)


def _setup_context(ctx, inputs, output):
    logits, labels, ctx.vocab_size = inputs
    _, argmax, lse = output
    ctx.mark_non_differentiable(argmax, lse)
    ctx.save_for_backward(logits, labels, lse)


def _backward(ctx, d_losses, *_):
    logits, labels, lse = ctx.saved_tensors
    return _entropy_backward(d_losses, logits, labels, lse, ctx.vocab_size), None, None


_entropy.register_autograd(_backward, setup_context=_setup_context)


def cross_entropy(logits: Tensor, labels: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """[K, at least vocab_size] logits → [K] losses, and [K] argmax, the first of equal ones.

    A label below zero is ignored: its loss is 0, and so is the gradient of its logits.
    """
    losses, argmax, _ = _entropy(logits, labels, vocab_size)
    return losses, argmax

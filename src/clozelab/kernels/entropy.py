"""Cross-entropy over a vocabulary: what the softmax needs in one pass, the gradients in another.

Scores come in rows of a rounded length, which are read whole; columns past the vocabulary count
for nothing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Columns at a time, rows and warps.
FORWARD = {"COLUMNS": 4096, "num_warps": 8}
BACKWARD = {"COLUMNS": 1024, "ROWS": 4, "num_warps": 4}
_LOG2E = tl.constexpr(1.4426950408889634)  # powers of two take fewer instructions


@triton.jit
def _entropy_forward_kernel(
    scores, labels, losses, logs, best, stride, size, COLUMNS: tl.constexpr
):
    row = tl.program_id(0)
    base = scores + row.to(tl.int64) * stride
    place = tl.zeros((), tl.int32)
    top = tl.full((), float("-inf"), tl.float32)
    sums = tl.zeros((COLUMNS,), tl.float32)
    for first in range(0, size, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        x = tl.load(base + column, mask=column < stride, other=0.0).to(tl.float32)
        x = tl.where(column < size, x, float("-inf"))
        peak, where = tl.max(x, 0, return_indices=True)
        place = tl.where(peak > top, first + where, place)
        higher = tl.maximum(top, peak)
        sums = sums * tl.exp2((top - higher) * _LOG2E) + tl.exp2((x - higher) * _LOG2E)
        top = higher
    log = top + tl.log(tl.sum(sums, 0))
    label = tl.load(labels + row)
    mine = tl.load(base + label, mask=label >= 0, other=0.0).to(tl.float32)
    tl.store(losses + row, tl.where(label >= 0, log - mine, 0.0))
    tl.store(logs + row, log)
    tl.store(best + row, place.to(tl.int64))


@triton.jit
def _entropy_backward_kernel(
    by_losses, scores, labels, logs, by_scores, rows, tiles, stride, size,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(0) // tiles * ROWS + tl.arange(0, ROWS)
    cell = row.to(tl.int64)[:, None] * stride + column[None, :]
    here = (row < rows)[:, None] & (column < stride)[None, :]
    x = tl.load(scores + cell, mask=here, other=0.0).to(tl.float32)
    label = tl.load(labels + row, mask=row < rows, other=-1)
    weight = tl.load(by_losses + row, mask=(row < rows) & (label >= 0), other=0.0)
    log = tl.load(logs + row, mask=row < rows, other=0.0)
    share = tl.exp2((x - log[:, None]) * _LOG2E)
    share = tl.where((column < size)[None, :], share, 0.0)
    g = (share - (column[None, :] == label[:, None]).to(tl.float32)) * weight[:, None]
    tl.store(by_scores + cell, g.to(by_scores.dtype.element_ty), mask=here)


@torch.library.custom_op("clozelab::entropy", mutates_args=())
def _entropy(scores: Tensor, labels: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """[K] losses, the best columns, and the logarithms of the sums."""
    scores = scores.contiguous()
    rows, stride = scores.shape
    losses, logs = (scores.new_empty(rows, dtype=torch.float32) for _ in range(2))
    best = torch.empty_like(labels)
    if rows:
        _entropy_forward_kernel[(rows,)](
            scores, labels, losses, logs, best, stride, size, **FORWARD
        )
    return losses, best, logs


@_entropy.register_fake
def _(scores, labels, size):
    losses, logs = (scores.new_empty(len(scores), dtype=torch.float32) for _ in range(2))
    return losses, torch.empty_like(labels), logs


@torch.library.custom_op("clozelab::entropy_backward", mutates_args=())
def _entropy_backward(
    by_losses: Tensor, scores: Tensor, labels: Tensor, logs: Tensor, size: int
) -> Tensor:
    by_losses, scores = by_losses.contiguous(), scores.contiguous()
    rows, stride = scores.shape
    by_scores = torch.empty_like(scores)
    tiles = triton.cdiv(stride, BACKWARD["COLUMNS"])
    if rows:
        _entropy_backward_kernel[(tiles * triton.cdiv(rows, BACKWARD["ROWS"]),)](
            by_losses, scores, labels, logs, by_scores, rows, tiles, stride, size, **BACKWARD
        )
    return by_scores


@_entropy_backward.register_fake
def _(by_losses, scores, labels, logs, size):
    return torch.empty_like(scores)


def _keep(ctx, inputs, output):
    scores, labels, ctx.size = inputs
    _, best, logs = output
    ctx.mark_non_differentiable(best, logs)
    ctx.save_for_backward(scores, labels, logs)


def _return(ctx, by_losses, *_):
    scores, labels, logs = ctx.saved_tensors
    return _entropy_backward(by_losses, scores, labels, logs, ctx.size), None, None


_entropy.register_autograd(_return, setup_context=_keep)


def entropy(scores: Tensor, labels: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """[K, at least `size`] scores → [K] losses, and which column scores highest, the first of any.

    A label below zero asks for nothing: its loss is 0.
    """
    losses, best, _ = _entropy(scores, labels, size)
    return losses, best

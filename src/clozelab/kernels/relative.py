"""XLNet's attention (§2.3, A.1): content, distance and segment scored and hidden in one pass.

Scores by distance come as their product made them, [B, H, R, P]: the cell of row i and column j is
shift(i) + j, so that nothing is moved. Who sees whom follows from two numbers: i sees j exactly if
own(i) > index(j), or if j is i itself. A row that sees nothing attends to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from clozelab.kernels.draws import column_keys, keep_mask, row_keys, scale, threshold
from clozelab.kernels.heads import inverse_root, tile

# Tiles and warps; a first choice, not yet timed (benchmarks/kernels.py --sweep).
FORWARD = {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 2}
QUERIES = {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 2}
OTHERS = {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 2}


@triton.jit
def _about(own, itself, shift, mine, block, row, R):
    """What is known of some rows."""
    at, inside = block * R + row, row < R
    return (
        tl.load(own + at, inside, other=-(2**30)),
        tl.load(itself + at, inside, other=-1),
        tl.load(shift + at, inside, other=0),
        tl.load(mine + at, inside, other=0),
    )


@triton.jit
def _scored(
    q, k, far, same, other, index, theirs, own, itself, shift, mine, stream, block, row, column,
    R, K, P, scale2,
):  # fmt: skip
    """Scores in powers of two, none of what is hidden; if segments agree; the cells of `far`."""
    there = column < K
    first = tl.load(index + block * K + column, there, other=2**30)
    seen = (own[:, None] > first[None, :]) | (itself[:, None] == column[None, :])
    seen = seen & there[None, :] & (row < R)[:, None]
    cell = (stream.to(tl.int64) * R + row[:, None]) * P + shift[:, None] + column[None, :]
    segment = tl.load(theirs + block * K + column, there, other=0)
    agree = mine[:, None] == segment[None, :]
    score = tl.dot(q, tl.trans(k), input_precision="ieee")
    score += tl.load(far + cell, seen, other=0.0).to(tl.float32)
    score += tl.where(agree, same[:, None], other[:, None])
    return tl.where(seen, score * scale2, float("-inf")), agree, cell


@triton.jit
def _relative_forward_kernel(
    q, k, v, far, sames, others, own, itself, shift, mine, index, theirs, seeds, out, logs,
    R, K, P, scale2, lost, grown,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    DROPS: tl.constexpr,
):  # fmt: skip
    ROW: tl.constexpr = HEADS * WIDTH
    stream = tl.program_id(1)
    block, head = stream // HEADS, stream % HEADS
    row, dims = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, WIDTH)
    queries = tile(q + block.to(tl.int64) * R * ROW + head * WIDTH, row, dims, R, ROW)
    base = block.to(tl.int64) * K * ROW + head * WIDTH
    own_row, itself_row, shift_row, mine_row = _about(own, itself, shift, mine, block, row, R)
    same = tl.load(sames + stream * R + row, row < R, other=0.0).to(tl.float32)
    other = tl.load(others + stream * R + row, row < R, other=0.0).to(tl.float32)
    seed = tl.load(seeds)
    row_key = row_keys(seed, stream, row)
    acc = tl.zeros((BM, WIDTH), tl.float32)
    top = tl.full((BM,), -1e30, tl.float32)
    sums = tl.zeros((BM,), tl.float32)
    for start in range(0, K, BN):
        column = start + tl.arange(0, BN)
        keys = tile(k + base, column, dims, K, ROW)
        scores, _, _ = _scored(
            queries, keys, far, same, other, index, theirs,
            own_row, itself_row, shift_row, mine_row, stream, block, row, column, R, K, P, scale2,
        )  # fmt: skip
        higher = tl.maximum(top, tl.max(scores, 1))
        share = tl.exp2(scores - higher[:, None])
        less = tl.exp2(top - higher)
        sums = sums * less + tl.sum(share, 1)
        if DROPS:
            drawn = column_keys(seed, stream, column)
            share = tl.where(keep_mask(row_key[:, None], drawn[None, :], lost), share, 0.0)
        values = tile(v + base, column, dims, K, ROW)
        acc = tl.dot(share.to(values.dtype), values, acc * less[:, None], input_precision="ieee")
        top = higher
    some = sums > 0
    acc *= tl.where(some, grown / tl.where(some, sums, 1.0), 0.0)[:, None]
    at = out + (block.to(tl.int64) * R + row) * ROW + head * WIDTH
    inside = row < R
    tl.store(at[:, None] + dims[None, :], acc.to(out.dtype.element_ty), inside[:, None])
    log = tl.where(some, top + tl.log2(tl.where(some, sums, 1.0)), float("inf"))
    tl.store(logs + stream * R + row, log, inside)


@triton.jit
def _relative_by_queries_kernel(
    by_out, q, k, v, far, sames, others, own, itself, shift, mine, index, theirs, seeds, out,
    logs, deltas, by_q, by_far, by_sames, by_others, R, K, P, scale2, scaled, lost, grown,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    DROPS: tl.constexpr,
):  # fmt: skip
    """The gradients of queries and of the scores by distance and segment."""
    ROW: tl.constexpr = HEADS * WIDTH
    stream = tl.program_id(1)
    block, head = stream // HEADS, stream % HEADS
    row, dims = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, WIDTH)
    inside = row < R
    here = block.to(tl.int64) * R * ROW + head * WIDTH
    queries = tile(q + here, row, dims, R, ROW)
    g = tile(by_out + here, row, dims, R, ROW)
    was = tile(out + here, row, dims, R, ROW)
    delta = tl.sum(was.to(tl.float32) * g.to(tl.float32), 1)
    tl.store(deltas + stream * R + row, delta, inside)
    log = tl.load(logs + stream * R + row, inside, other=float("inf"))
    base = block.to(tl.int64) * K * ROW + head * WIDTH
    own_row, itself_row, shift_row, mine_row = _about(own, itself, shift, mine, block, row, R)
    same = tl.load(sames + stream * R + row, inside, other=0.0).to(tl.float32)
    other = tl.load(others + stream * R + row, inside, other=0.0).to(tl.float32)
    seed = tl.load(seeds)
    row_key = row_keys(seed, stream, row)
    acc = tl.zeros((BM, WIDTH), tl.float32)
    by_same = tl.zeros((BM,), tl.float32)
    by_other = tl.zeros((BM,), tl.float32)
    for start in range(0, K, BN):
        column = start + tl.arange(0, BN)
        keys = tile(k + base, column, dims, K, ROW)
        scores, agree, cell = _scored(
            queries, keys, far, same, other, index, theirs,
            own_row, itself_row, shift_row, mine_row, stream, block, row, column, R, K, P, scale2,
        )  # fmt: skip
        share = tl.exp2(scores - log[:, None])
        values = tile(v + base, column, dims, K, ROW)
        pull = tl.dot(g, tl.trans(values), input_precision="ieee")
        if DROPS:
            drawn = column_keys(seed, stream, column)
            pull = tl.where(keep_mask(row_key[:, None], drawn[None, :], lost), pull * grown, 0.0)
        by_score = share * (pull - delta[:, None]) * scaled
        inside_tile = inside[:, None] & (column < K)[None, :]
        tl.store(by_far + cell, by_score.to(by_far.dtype.element_ty), inside_tile)
        by_same += tl.sum(tl.where(agree, by_score, 0.0), 1)
        by_other += tl.sum(tl.where(agree, 0.0, by_score), 1)
        acc = tl.dot(by_score.to(keys.dtype), keys, acc, input_precision="ieee")
    # Distances that a row has to none of its keys have no gradient.
    line = by_far + (stream.to(tl.int64) * R + row[:, None]) * P
    for start in range(0, P, BN):
        far_column = start + tl.arange(0, BN)[None, :]
        apart = (far_column < shift_row[:, None]) | (far_column >= shift_row[:, None] + K)
        nothing = tl.zeros((BM, BN), by_far.dtype.element_ty)
        tl.store(line + far_column, nothing, apart & inside[:, None] & (far_column < P))
    at = by_q + here + row[:, None].to(tl.int64) * ROW + dims[None, :]
    tl.store(at, acc.to(by_q.dtype.element_ty), inside[:, None])
    tl.store(by_sames + stream * R + row, by_same.to(by_sames.dtype.element_ty), inside)
    tl.store(by_others + stream * R + row, by_other.to(by_others.dtype.element_ty), inside)


@triton.jit
def _relative_by_others_kernel(
    by_out, q, k, v, far, sames, others, own, itself, shift, mine, index, theirs, seeds,
    logs, deltas, by_k, by_v, R, K, P, scale2, scaled, lost, grown,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    DROPS: tl.constexpr,
):  # fmt: skip
    """The gradients of keys and values."""
    ROW: tl.constexpr = HEADS * WIDTH
    stream = tl.program_id(1)
    block, head = stream // HEADS, stream % HEADS
    column, dims = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, WIDTH)
    base = block.to(tl.int64) * K * ROW + head * WIDTH
    keys = tile(k + base, column, dims, K, ROW)
    values = tile(v + base, column, dims, K, ROW)
    seed = tl.load(seeds)
    drawn = column_keys(seed, stream, column)
    here = block.to(tl.int64) * R * ROW + head * WIDTH
    acc_k = tl.zeros((BN, WIDTH), tl.float32)
    acc_v = tl.zeros((BN, WIDTH), tl.float32)
    for start in range(0, R, BM):
        row = start + tl.arange(0, BM)
        inside = row < R
        queries = tile(q + here, row, dims, R, ROW)
        g = tile(by_out + here, row, dims, R, ROW)
        own_row, itself_row, shift_row, mine_row = _about(own, itself, shift, mine, block, row, R)
        same = tl.load(sames + stream * R + row, inside, other=0.0).to(tl.float32)
        other = tl.load(others + stream * R + row, inside, other=0.0).to(tl.float32)
        log = tl.load(logs + stream * R + row, inside, other=float("inf"))
        delta = tl.load(deltas + stream * R + row, inside, other=0.0)
        scores, _, _ = _scored(
            queries, keys, far, same, other, index, theirs,
            own_row, itself_row, shift_row, mine_row, stream, block, row, column, R, K, P, scale2,
        )  # fmt: skip
        share = tl.exp2(scores - log[:, None])
        pull = tl.dot(g, tl.trans(values), input_precision="ieee")
        dropped = share
        if DROPS:
            keep = keep_mask(row_keys(seed, stream, row)[:, None], drawn[None, :], lost)
            dropped = tl.where(keep, share * grown, 0.0)
            pull = tl.where(keep, pull * grown, 0.0)
        acc_v = tl.dot(tl.trans(dropped.to(g.dtype)), g, acc_v, input_precision="ieee")
        pull = (share * (pull - delta[:, None]) * scaled).to(queries.dtype)
        acc_k = tl.dot(tl.trans(pull), queries, acc_k, input_precision="ieee")
    inside = (column < K)[:, None]
    cells = base + column[:, None].to(tl.int64) * ROW + dims[None, :]
    tl.store(by_k + cells, acc_k.to(by_k.dtype.element_ty), inside)
    tl.store(by_v + cells, acc_v.to(by_v.dtype.element_ty), inside)


@torch.library.custom_op("clozelab::relative", mutates_args=())
def _relative(
    q: Tensor, k: Tensor, v: Tensor, far: Tensor, same: Tensor, other: Tensor, own: Tensor,
    itself: Tensor, shift: Tensor, mine: Tensor, index: Tensor, theirs: Tensor, seed: Tensor,
    rate: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """[B, R, H, D] attended sums, and [B, H, R] the logarithm of each row's sum of weights."""
    q, k, v, far, same, other = (x.contiguous() for x in (q, k, v, far, same, other))
    ranks = [x.contiguous() for x in (own, itself, shift, mine, index, theirs)]
    blocks, rows, heads, width = q.shape
    out = torch.empty_like(q)
    logs = q.new_empty((blocks, heads, rows), dtype=torch.float32)
    _relative_forward_kernel[(triton.cdiv(rows, FORWARD["BM"]), blocks * heads)](
        q, k, v, far, same, other, *ranks, seed, out, logs,
        rows, k.shape[1], far.shape[3], inverse_root(width) / math.log(2), threshold(rate),
        scale(rate),
        HEADS=heads, WIDTH=width, DROPS=rate > 0, **FORWARD,
    )  # fmt: skip
    return out, logs


@_relative.register_fake
def _(q, k, v, far, same, other, own, itself, shift, mine, index, theirs, seed, rate):
    blocks, rows, heads, _ = q.shape
    logs = q.new_empty((blocks, heads, rows), dtype=torch.float32)
    return q.new_empty(q.shape), logs


@torch.library.custom_op("clozelab::relative_backward", mutates_args=())
def _relative_backward(
    by_out: Tensor, out: Tensor, logs: Tensor, q: Tensor, k: Tensor, v: Tensor, far: Tensor,
    same: Tensor, other: Tensor, own: Tensor, itself: Tensor, shift: Tensor, mine: Tensor,
    index: Tensor, theirs: Tensor, seed: Tensor, rate: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    by_out, q, k, v, far, same, other = (
        x.contiguous() for x in (by_out, q, k, v, far, same, other)
    )
    ranks = [x.contiguous() for x in (own, itself, shift, mine, index, theirs)]
    blocks, rows, heads, width = q.shape
    by_q, by_k, by_v, by_far, by_same, by_other = (
        torch.empty_like(x) for x in (q, k, v, far, same, other)
    )
    deltas = torch.empty_like(logs)
    streams = blocks * heads
    sizes = (rows, k.shape[1], far.shape[3])
    numbers = (inverse_root(width) / math.log(2), inverse_root(width), threshold(rate), scale(rate))
    settings = {"HEADS": heads, "WIDTH": width, "DROPS": rate > 0}
    _relative_by_queries_kernel[(triton.cdiv(rows, QUERIES["BM"]), streams)](
        by_out, q, k, v, far, same, other, *ranks, seed, out, logs, deltas,
        by_q, by_far, by_same, by_other, *sizes, *numbers, **settings, **QUERIES,
    )  # fmt: skip
    _relative_by_others_kernel[(triton.cdiv(k.shape[1], OTHERS["BN"]), streams)](
        by_out, q, k, v, far, same, other, *ranks, seed, logs, deltas, by_k, by_v,
        *sizes, *numbers, **settings, **OTHERS,
    )  # fmt: skip
    return by_q, by_k, by_v, by_far, by_same, by_other


@_relative_backward.register_fake
def _(
    by_out, out, logs, q, k, v, far, same, other, own, itself, shift, mine, index, theirs, seed,
    rate,
):  # fmt: skip
    return tuple(x.new_empty(x.shape) for x in (q, k, v, far, same, other))


def _keep(ctx, inputs, output):
    *tensors, ctx.rate = inputs
    out, logs = output
    ctx.mark_non_differentiable(logs)
    ctx.save_for_backward(out, logs, *tensors)


def _return(ctx, by_out, _):
    return *_relative_backward(by_out, *ctx.saved_tensors, ctx.rate), *[None] * 8


_relative.register_autograd(_return, setup_context=_keep)


def attend(
    q: Tensor, k: Tensor, v: Tensor, far: Tensor, same: Tensor, other: Tensor, *,
    ranks: Sequence[Tensor], seed: Tensor, rate: float,
) -> Tensor:  # fmt: skip
    """[B, R, H, D] queries, [B, K, H, D] keys and values → [B, R, H, D].

    `far` are the scores by distance, [B, H, R, P]; `same` and `other`, [B, H, R], those of a column
    of the row's own segment and of another. `ranks` is six times whole numbers of 32 bits: for each
    row its own number, the column it is itself (or -1), the shift of its distances and its segment,
    all [B, R]; for each column its index and its segment, [B, K].
    """
    out, _ = _relative(q, k, v, far, same, other, *ranks, seed, rate)
    return out

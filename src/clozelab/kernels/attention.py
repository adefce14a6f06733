"""Attention inside packed blocks with dropout by counter, queries, keys and values as they lie.

One product makes all three, [N, 3, H, D], and their gradients go back in that shape: nothing is
permuted, padded or kept but a number for each row. The softmax is computed in powers of two, and
what makes up for the dropped is multiplied in at the end.
Short blocks have their gradients made by one program each; of longer ones, one kernel makes those
of the queries, another those of keys and values.
"""

from __future__ import annotations

import math
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import driver

from clozelab.kernels.draws import column_keys, kept, row_keys, scale, threshold
from clozelab.kernels.heads import inverse_root, tile

SHORT = 128  # blocks up to this have their gradients made in one program, if it can hold them
_HELD = 120_000  # bytes of shared memory that such a program takes, for heads of 64
# Tiles and warps, by trial on an H200 (benchmarks/kernels.py --sweep).
FORWARD = {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 3}
QUERIES = {"BM": 64, "BN": 32, "num_warps": 4, "num_stages": 3}
OTHERS = {"BM": 32, "BN": 64, "num_warps": 4, "num_stages": 2}
WHOLE = {"num_warps": 8, "num_stages": 1}


@triton.jit
def _block(starts, stream, HEADS: tl.constexpr):
    """The head of a stream, and where its block begins and how long it is."""
    begin = tl.load(starts + stream // HEADS)
    return stream % HEADS, begin, tl.load(starts + stream // HEADS + 1) - begin


@triton.jit
def _gone_on(
    acc, top, sums, q, base_k, base_v, row, first, last, length, row_key, seed, stream, lost,
    dims, scale2,
    STRIDE: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    DROPS: tl.constexpr,
):  # fmt: skip
    """The softmax carried over the columns from `first` to `last`."""
    for start in range(first, last, BN):
        column = start + tl.arange(0, BN)
        k = tile(base_k, column, dims, length, STRIDE)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if MASKED:
            seen = (column < length)[None, :]
            if CAUSAL:
                seen = seen & (column[None, :] <= row[:, None])
            scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1) * scale2)
        share = tl.exp2(scores * scale2 - higher[:, None])
        less = tl.exp2(top - higher)
        sums = sums * less + tl.sum(share, 1)
        if DROPS:
            keys = column_keys(seed, stream, column)
            share = tl.where(kept(row_key[:, None], keys[None, :], lost), share, 0.0)
        v = tile(base_v, column, dims, length, STRIDE)
        acc = tl.dot(share.to(v.dtype), v, acc * less[:, None], input_precision="ieee")
        top = higher
    return acc, top, sums


@triton.jit
def _forward(
    qkv, out, logs, starts, seeds, tokens, tiles, scale2, lost, grown,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    ROW: tl.constexpr = HEADS * WIDTH
    stream = tl.program_id(0) // tiles
    head, begin, length = _block(starts, stream, HEADS)
    low = tl.program_id(0) % tiles * BM
    if low >= length:
        return
    row, dims = low + tl.arange(0, BM), tl.arange(0, WIDTH)
    base = qkv + begin.to(tl.int64) * 3 * ROW + head * WIDTH
    q = tile(base, row, dims, length, 3 * ROW)
    seed = tl.load(seeds)
    row_key = row_keys(seed, stream, row)
    acc = tl.zeros((BM, WIDTH), tl.float32)
    top = tl.full((BM,), -1e30, tl.float32)
    sums = tl.zeros((BM,), tl.float32)
    # Columns that every row sees need no mask; the rest do.
    clear = tl.minimum(length, low) if CAUSAL else length
    clear = clear // BN * BN
    end = tl.minimum(length, low + BM) if CAUSAL else length
    acc, top, sums = _gone_on(
        acc, top, sums, q, base + ROW, base + 2 * ROW, row, 0, clear, length, row_key, seed,
        stream, lost, dims, scale2, 3 * ROW, BN, CAUSAL, False, DROPS,
    )  # fmt: skip
    acc, top, sums = _gone_on(
        acc, top, sums, q, base + ROW, base + 2 * ROW, row, clear, end, length, row_key, seed,
        stream, lost, dims, scale2, 3 * ROW, BN, CAUSAL, True, DROPS,
    )  # fmt: skip
    acc *= (grown / sums)[:, None]
    inside = row < length
    at = (begin.to(tl.int64) + row) * ROW + head * WIDTH
    tl.store(out + at[:, None] + dims[None, :], acc.to(out.dtype.element_ty), inside[:, None])
    tl.store(logs + head.to(tl.int64) * tokens + begin + row, top + tl.log2(sums), inside)


@triton.jit
def _by_queries(
    by_out, qkv, out, logs, deltas, by_qkv, starts, seeds, tokens, tiles, scale2, scaled, lost,
    grown,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """The queries' gradients, and for the others what each row's weights pull back by."""
    ROW: tl.constexpr = HEADS * WIDTH
    stream = tl.program_id(0) // tiles
    head, begin, length = _block(starts, stream, HEADS)
    low = tl.program_id(0) % tiles * BM
    if low >= length:
        return
    row, dims = low + tl.arange(0, BM), tl.arange(0, WIDTH)
    inside = row < length
    base = qkv + begin.to(tl.int64) * 3 * ROW + head * WIDTH
    plain = begin.to(tl.int64) * ROW + head * WIDTH
    q = tile(base, row, dims, length, 3 * ROW)
    g = tile(by_out + plain, row, dims, length, ROW)
    was = tile(out + plain, row, dims, length, ROW)
    delta = tl.sum(was.to(tl.float32) * g.to(tl.float32), 1) / grown
    number = head.to(tl.int64) * tokens + begin + row
    tl.store(deltas + number, delta, inside)
    log = tl.load(logs + number, inside, other=float("inf"))
    seed = tl.load(seeds)
    row_key = row_keys(seed, stream, row)
    acc = tl.zeros((BM, WIDTH), tl.float32)
    end = tl.minimum(length, low + BM) if CAUSAL else length
    for start in range(0, end, BN):
        column = start + tl.arange(0, BN)
        k = tile(base + ROW, column, dims, length, 3 * ROW)
        v = tile(base + 2 * ROW, column, dims, length, 3 * ROW)
        share = tl.exp2(tl.dot(q, tl.trans(k), input_precision="ieee") * scale2 - log[:, None])
        # Past the end scores are 0, which may be far above the others: that is no share at all.
        seen = (column[None, :] <= row[:, None]) if CAUSAL else (column < length)[None, :]
        share = tl.where(seen, share, 0.0)
        pull = tl.dot(g, tl.trans(v), input_precision="ieee")
        dropped = share
        if DROPS:
            keys = column_keys(seed, stream, column)
            dropped = tl.where(kept(row_key[:, None], keys[None, :], lost), share, 0.0)
        pull = dropped * pull - share * delta[:, None]
        acc = tl.dot(pull.to(k.dtype), k, acc, input_precision="ieee")
    at = by_qkv + (begin.to(tl.int64) + row) * 3 * ROW + head * WIDTH
    acc *= scaled * grown
    tl.store(at[:, None] + dims[None, :], acc.to(by_qkv.dtype.element_ty), inside[:, None])


@triton.jit
def _by_others(
    by_out, qkv, logs, deltas, by_qkv, starts, seeds, tokens, tiles, scale2, scaled, lost, grown,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """The gradients of keys and values; everything lies on its side, a column to each row."""
    ROW: tl.constexpr = HEADS * WIDTH
    stream = tl.program_id(0) // tiles
    head, begin, length = _block(starts, stream, HEADS)
    low = tl.program_id(0) % tiles * BN
    if low >= length:
        return
    column, dims = low + tl.arange(0, BN), tl.arange(0, WIDTH)
    base = qkv + begin.to(tl.int64) * 3 * ROW + head * WIDTH
    plain = begin.to(tl.int64) * ROW + head * WIDTH
    k = tile(base + ROW, column, dims, length, 3 * ROW)
    v = tile(base + 2 * ROW, column, dims, length, 3 * ROW)
    seed = tl.load(seeds)
    keys = column_keys(seed, stream, column)
    by_k = tl.zeros((BN, WIDTH), tl.float32)
    by_v = tl.zeros((BN, WIDTH), tl.float32)
    for start in range(low // BM * BM if CAUSAL else 0, length, BM):
        row = start + tl.arange(0, BM)
        number = head.to(tl.int64) * tokens + begin + row
        q = tile(base, row, dims, length, 3 * ROW)
        g = tile(by_out + plain, row, dims, length, ROW)
        # Rows past the end have no share in anything.
        log = tl.load(logs + number, row < length, other=float("inf"))
        delta = tl.load(deltas + number, row < length, other=0.0)
        share = tl.exp2(tl.dot(k, tl.trans(q), input_precision="ieee") * scale2 - log[None, :])
        if CAUSAL:
            share = tl.where(column[:, None] <= row[None, :], share, 0.0)
        pull = tl.dot(v, tl.trans(g), input_precision="ieee")
        dropped = share
        if DROPS:
            keep = kept(row_keys(seed, stream, row)[None, :], keys[:, None], lost)
            dropped = tl.where(keep, share, 0.0)
        by_v = tl.dot(dropped.to(g.dtype), g, by_v, input_precision="ieee")
        pull = dropped * pull - share * delta[None, :]
        by_k = tl.dot(pull.to(q.dtype), q, by_k, input_precision="ieee")
    inside = (column < length)[:, None]
    at = by_qkv + (begin.to(tl.int64) + column) * 3 * ROW + head * WIDTH
    cells = at[:, None] + dims[None, :]
    tl.store(cells + ROW, (by_k * (scaled * grown)).to(by_qkv.dtype.element_ty), inside)
    tl.store(cells + 2 * ROW, (by_v * grown).to(by_qkv.dtype.element_ty), inside)


@triton.jit
def _by_all(
    by_out, qkv, out, logs, by_qkv, starts, seeds, tokens, scale2, scaled, lost, grown,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr,
    CAUSAL: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """All three gradients of a block of at most SIZE tokens."""
    ROW: tl.constexpr = HEADS * WIDTH
    stream = tl.program_id(0)
    head, begin, length = _block(starts, stream, HEADS)
    if length == 0:
        return
    row, dims = tl.arange(0, SIZE), tl.arange(0, WIDTH)
    inside = row < length
    base = qkv + begin.to(tl.int64) * 3 * ROW + head * WIDTH
    plain = begin.to(tl.int64) * ROW + head * WIDTH
    q = tile(base, row, dims, length, 3 * ROW)
    k = tile(base + ROW, row, dims, length, 3 * ROW)
    g = tile(by_out + plain, row, dims, length, ROW)
    was = tile(out + plain, row, dims, length, ROW)
    delta = tl.sum(was.to(tl.float32) * g.to(tl.float32), 1) / grown
    number = head.to(tl.int64) * tokens + begin + row
    log = tl.load(logs + number, inside, other=float("inf"))
    share = tl.exp2(tl.dot(q, tl.trans(k), input_precision="ieee") * scale2 - log[:, None])
    # Past the end scores are 0, which may be far above the others: that is no share at all.
    seen = (row[None, :] <= row[:, None]) if CAUSAL else inside[None, :]
    share = tl.where(seen, share, 0.0)
    v = tile(base + 2 * ROW, row, dims, length, 3 * ROW)
    pull = tl.dot(g, tl.trans(v), input_precision="ieee")
    dropped = share
    if DROPS:
        seed = tl.load(seeds)
        rows, columns = row_keys(seed, stream, row), column_keys(seed, stream, row)
        dropped = tl.where(kept(rows[:, None], columns[None, :], lost), share, 0.0)
    pull = (dropped * pull - share * delta[:, None]).to(q.dtype)
    by_v = tl.dot(tl.trans(dropped.to(g.dtype)), g, input_precision="ieee") * grown
    by_q = tl.dot(pull, k, input_precision="ieee") * (scaled * grown)
    by_k = tl.dot(tl.trans(pull), q, input_precision="ieee") * (scaled * grown)
    at = by_qkv + (begin.to(tl.int64) + row) * 3 * ROW + head * WIDTH
    cells = at[:, None] + dims[None, :]
    kind = by_qkv.dtype.element_ty
    tl.store(cells, by_q.to(kind), inside[:, None])
    tl.store(cells + ROW, by_k.to(kind), inside[:, None])
    tl.store(cells + 2 * ROW, by_v.to(kind), inside[:, None])


def _holds(max_seqlen: int, qkv: Tensor) -> bool:
    """Whether one program can hold a block: on a desktop's GPU there is no room for that."""
    short = max_seqlen <= SHORT and qkv.shape[-1] <= 64
    return short and (not qkv.is_cuda or _room(qkv.device.index) >= _HELD)


@cache
def _room(device: int) -> int:
    """Bytes of shared memory that a program can have on a device."""
    room: int = driver.active.utils.get_device_properties(device)["max_shared_mem"]
    return room


@torch.library.custom_op("clozelab::attend", mutates_args=())
def _attend(
    qkv: Tensor, starts: Tensor, seed: Tensor, max_seqlen: int, rate: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """[N, H · D] attended sums, and [H, N] the logarithm of each row's sum of weights."""
    qkv = qkv.contiguous()
    tokens, _, heads, width = qkv.shape
    out = qkv.new_empty((tokens, heads * width))
    logs = qkv.new_empty((heads, tokens), dtype=torch.float32)
    tiles = triton.cdiv(max_seqlen, FORWARD["BM"])
    _forward[((len(starts) - 1) * heads * tiles,)](
        qkv, out, logs, starts, seed, tokens, tiles, inverse_root(width) / math.log(2),
        threshold(rate), scale(rate), HEADS=heads, WIDTH=width, CAUSAL=causal, DROPS=rate > 0,
        **FORWARD,
    )  # fmt: skip
    return out, logs


@_attend.register_fake
def _(qkv, starts, seed, max_seqlen, rate, causal):
    tokens, _, heads, width = qkv.shape
    logs = qkv.new_empty((heads, tokens), dtype=torch.float32)
    return qkv.new_empty((tokens, heads * width)), logs


@torch.library.custom_op("clozelab::attend_backward", mutates_args=())
def _attend_backward(
    by_out: Tensor, qkv: Tensor, out: Tensor, logs: Tensor, starts: Tensor, seed: Tensor,
    max_seqlen: int, rate: float, causal: bool,
) -> Tensor:  # fmt: skip
    by_out, qkv = by_out.contiguous(), qkv.contiguous()
    tokens, _, heads, width = qkv.shape
    by_qkv = torch.empty_like(qkv)
    streams = (len(starts) - 1) * heads
    numbers = (inverse_root(width) / math.log(2), inverse_root(width), threshold(rate), scale(rate))
    settings = {"HEADS": heads, "WIDTH": width, "CAUSAL": causal, "DROPS": rate > 0}
    if _holds(max_seqlen, qkv):
        size = max(16, triton.next_power_of_2(max_seqlen))
        _by_all[(streams,)](
            by_out, qkv, out, logs, by_qkv, starts, seed, tokens, *numbers,
            SIZE=size, **settings, **WHOLE,
        )  # fmt: skip
        return by_qkv
    deltas = torch.empty_like(logs)
    tiles = triton.cdiv(max_seqlen, QUERIES["BM"])
    _by_queries[(streams * tiles,)](
        by_out, qkv, out, logs, deltas, by_qkv, starts, seed, tokens, tiles, *numbers,
        **settings, **QUERIES,
    )  # fmt: skip
    tiles = triton.cdiv(max_seqlen, OTHERS["BN"])
    _by_others[(streams * tiles,)](
        by_out, qkv, logs, deltas, by_qkv, starts, seed, tokens, tiles, *numbers,
        **settings, **OTHERS,
    )  # fmt: skip
    return by_qkv


@_attend_backward.register_fake
def _(by_out, qkv, out, logs, starts, seed, max_seqlen, rate, causal):
    return torch.empty_like(qkv)


def _keep(ctx, inputs, output):
    qkv, starts, seed, ctx.max_seqlen, ctx.rate, ctx.causal = inputs
    out, logs = output
    ctx.mark_non_differentiable(logs)
    ctx.save_for_backward(qkv, out, logs, starts, seed)


def _return(ctx, by_out, _):
    qkv, out, logs, starts, seed = ctx.saved_tensors
    by_qkv = _attend_backward(
        by_out, qkv, out, logs, starts, seed, ctx.max_seqlen, ctx.rate, ctx.causal
    )
    return by_qkv, None, None, None, None, None


_attend.register_autograd(_return, setup_context=_keep)


def attend(
    qkv: Tensor, starts: Tensor, *, seed: Tensor, max_seqlen: int, rate: float, causal: bool
) -> Tensor:
    """[N, 3, H, D] queries, keys and values of packed blocks → [N, H · D]."""
    out, _ = _attend(qkv, starts, seed, max_seqlen, rate, causal)
    return out

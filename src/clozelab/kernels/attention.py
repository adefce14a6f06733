"""Attention inside packed blocks with dropout by counter, queries, keys and values as they lie.

One product makes all three, [N, 3, H, D], and their gradients go back in that shape: nothing is
permuted, padded or kept but a number for each row. Queries and keys that are turned by their
positions are kept, too, [N, 2, H, D]. A token sees its whole block, or so many tokens BEFORE and
AFTER itself: tiles that none of its rows sees are not computed. Distances may add to the scores.
The softmax is computed in powers of two, and what makes up for the dropped is multiplied in at the
end.
Short blocks have their gradients made by one program each, unless distances add to their scores; of
others, one kernel makes those of the queries, another those of keys and values.
"""

from __future__ import annotations

import math
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional
from triton.runtime import driver

from clozelab.kernels.distances import (
    Products,
    add_distances,
    products,
    rows_ahead,
    send_back,
    store_runs,
)
from clozelab.kernels.draws import column_keys, keep_mask, row_keys, scale, threshold
from clozelab.kernels.heads import inverse_root, tile
from clozelab.kernels.rotation import turn

# Of longer blocks the gradients are made faster by the library's packed kernel, by its published
# rates: not measured here.
LONG = 2048
SHORT = 128  # blocks up to this have their gradients made in one program, if it can hold them
_HELD = 120_000  # bytes of shared memory that such a program takes, for heads of 64
# Tiles and warps, by trial on an H200 (benchmarks/kernels.py --sweep).
FORWARD = {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 3}
QUERIES = {"BM": 64, "BN": 32, "num_warps": 4, "num_stages": 3}
OTHERS = {"BM": 32, "BN": 64, "num_warps": 4, "num_stages": 2}
WHOLE = {"num_warps": 8, "num_stages": 1}
ALL = tl.constexpr(1 << 30)  # more tokens than a block has


@triton.jit
def _block(starts, stream, HEADS: tl.constexpr):
    """The head of a stream, and where its block begins and how long it is."""
    begin = tl.load(starts + stream // HEADS)
    return stream % HEADS, begin, tl.load(starts + stream // HEADS + 1) - begin


@triton.jit
def _span(low, high, length, BEFORE: tl.constexpr, AFTER: tl.constexpr, STEP: tl.constexpr):
    """From which tile's edge, and to where, tokens are seen by any from `low` to `high`."""
    return tl.maximum(low - BEFORE, 0) // STEP * STEP, tl.minimum(high + AFTER, length)


@triton.jit
def _visible(row, column, length, BEFORE: tl.constexpr, AFTER: tl.constexpr):
    """Whether rows see columns, either of which lies on its side."""
    seen = column < length
    if AFTER < ALL:
        seen = seen & (column - row <= AFTER)
    if BEFORE < ALL:
        seen = seen & (row - column <= BEFORE)
    return seen


@triton.jit
def _gone_on(
    acc, top, sums, q, base_k, base_v, c2p, c2p_rows, p2c, p2c_rows, P, origin, low, row, first,
    last, length, row_key, seed, stream, lost, dims, scale2,
    K_STRIDE: tl.constexpr, V_STRIDE: tl.constexpr, BN: tl.constexpr,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, MASKED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """The softmax carried over the columns from `first` to `last`."""
    for start in range(first, last, BN):
        column = start + tl.arange(0, BN)
        k = tile(base_k, column, dims, length, K_STRIDE)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        scores = add_distances(
            scores, c2p, c2p_rows, p2c, p2c_rows, P, origin, low, start, length, length
        )
        if MASKED:
            seen = _visible(row[:, None], column[None, :], length, BEFORE, AFTER)
            scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1) * scale2)
        share = tl.exp2(scores * scale2 - higher[:, None])
        less = tl.exp2(top - higher)
        sums = sums * less + tl.sum(share, 1)
        if DROPS:
            keys = column_keys(seed, stream, column)
            share = tl.where(keep_mask(row_key[:, None], keys[None, :], lost), share, 0.0)
        v = tile(base_v, column, dims, length, V_STRIDE)
        acc = tl.dot(share.to(v.dtype), v, acc * less[:, None], input_precision="ieee")
        top = higher
    return acc, top, sums


@triton.jit
def _attention_forward_kernel(
    qk, qkv, out, logs, c2p, c2p_rows, p2c, p2c_rows, P, starts, seeds, tokens, tiles, scale2, lost,
    grown,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BEFORE: tl.constexpr, AFTER: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    ROW: tl.constexpr = HEADS * WIDTH
    stream = tl.program_id(0) // tiles
    head, begin, length = _block(starts, stream, HEADS)
    low = tl.program_id(0) % tiles * BM
    if low >= length:
        return
    row, dims = low + tl.arange(0, BM), tl.arange(0, WIDTH)
    base = qk + begin.to(tl.int64) * PARTS * ROW + head * WIDTH
    values = qkv + begin.to(tl.int64) * 3 * ROW + 2 * ROW + head * WIDTH
    origin = head.to(tl.int64) * tokens + begin
    q = tile(base, row, dims, length, PARTS * ROW)
    seed = tl.load(seeds)
    row_key = row_keys(seed, stream, row)
    acc = tl.zeros((BM, WIDTH), tl.float32)
    top = tl.full((BM,), -1e30, tl.float32)
    sums = tl.zeros((BM,), tl.float32)
    first, end = _span(low, low + BM, length, BEFORE, AFTER, BN)
    # Columns that every row sees need no mask; the rest do, and within a window all.
    clear = first
    if BEFORE == ALL:
        clear = tl.minimum(low + AFTER + 1, length) // BN * BN
        acc, top, sums = _gone_on(
            acc, top, sums, q, base + ROW, values, c2p, c2p_rows, p2c, p2c_rows, P, origin, low,
            row, first, clear, length, row_key, seed, stream, lost, dims, scale2, PARTS * ROW,
            3 * ROW, BN, BEFORE, AFTER, False, DROPS,
        )  # fmt: skip
    acc, top, sums = _gone_on(
        acc, top, sums, q, base + ROW, values, c2p, c2p_rows, p2c, p2c_rows, P, origin, low, row,
        clear, end, length, row_key, seed, stream, lost, dims, scale2, PARTS * ROW, 3 * ROW, BN,
        BEFORE, AFTER, True, DROPS,
    )  # fmt: skip
    acc *= (grown / sums)[:, None]  # past the end, where nothing may be seen, nothing is stored
    inside = row < length
    at = (begin.to(tl.int64) + row) * ROW + head * WIDTH
    tl.store(out + at[:, None] + dims[None, :], acc.to(out.dtype.element_ty), inside[:, None])
    tl.store(logs + origin + row, top + tl.log2(sums), inside)


@triton.jit
def _attention_by_queries_kernel(
    by_out, qk, qkv, out, logs, deltas, by_qkv, by_c2p, c2p, c2p_rows, p2c, p2c_rows, P, starts,
    seeds, tokens, tiles, scale2, scaled, lost, grown,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BEFORE: tl.constexpr, AFTER: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """The gradients of queries and of their products with distances, and deltas for the others.

    A delta is what a row's weights pull back by.
    """
    ROW: tl.constexpr = HEADS * WIDTH
    stream = tl.program_id(0) // tiles
    head, begin, length = _block(starts, stream, HEADS)
    low = tl.program_id(0) % tiles * BM
    if low >= length:
        return
    row, dims = low + tl.arange(0, BM), tl.arange(0, WIDTH)
    inside = row < length
    base = qk + begin.to(tl.int64) * PARTS * ROW + head * WIDTH
    values = qkv + begin.to(tl.int64) * 3 * ROW + 2 * ROW + head * WIDTH
    plain = begin.to(tl.int64) * ROW + head * WIDTH
    q = tile(base, row, dims, length, PARTS * ROW)
    g = tile(by_out + plain, row, dims, length, ROW)
    was = tile(out + plain, row, dims, length, ROW)
    delta = tl.sum(was.to(tl.float32) * g.to(tl.float32), 1) / grown
    origin = head.to(tl.int64) * tokens + begin
    tl.store(deltas + origin + row, delta, inside)
    log = tl.load(logs + origin + row, inside, other=float("inf"))
    seed = tl.load(seeds)
    row_key = row_keys(seed, stream, row)
    acc = tl.zeros((BM, WIDTH), tl.float32)
    begun = tl.zeros((BM,), tl.float32)
    first, end = _span(low, low + BM, length, BEFORE, AFTER, BN)
    for start in range(first, end, BN):
        column = start + tl.arange(0, BN)
        k = tile(base + ROW, column, dims, length, PARTS * ROW)
        v = tile(values, column, dims, length, 3 * ROW)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        scores = add_distances(
            scores, c2p, c2p_rows, p2c, p2c_rows, P, origin, low, start, length, end
        )
        share = tl.exp2(scores * scale2 - log[:, None])
        # Past the end scores are 0, which may be far above the others: that is no share at all.
        seen = _visible(row[:, None], column[None, :], length, BEFORE, AFTER)
        share = tl.where(seen, share, 0.0)
        pull = tl.dot(g, tl.trans(v), input_precision="ieee")
        dropped = share
        if DROPS:
            keys = column_keys(seed, stream, column)
            dropped = tl.where(keep_mask(row_key[:, None], keys[None, :], lost), share, 0.0)
        pull = dropped * pull - share * delta[:, None]
        acc = tl.dot(pull.to(k.dtype), k, acc, input_precision="ieee")
        if by_c2p is not None:
            begun = store_runs(
                by_c2p, pull * (scaled * grown), begun, c2p_rows, P, origin, low, start, length, end
            )  # fmt: skip
    at = by_qkv + (begin.to(tl.int64) + row) * 3 * ROW + head * WIDTH
    acc *= scaled * grown
    tl.store(at[:, None] + dims[None, :], acc.to(by_qkv.dtype.element_ty), inside[:, None])


@triton.jit
def _attention_by_others_kernel(
    by_out, qk, qkv, logs, deltas, by_qkv, by_p2c, c2p, c2p_rows, p2c, p2c_rows, P, starts, seeds,
    tokens, tiles, scale2, scaled, lost, grown,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BEFORE: tl.constexpr, AFTER: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """The gradients of keys, of their products with distances, and of values.

    Everything lies on its side, a column to each row.
    """
    ROW: tl.constexpr = HEADS * WIDTH
    stream = tl.program_id(0) // tiles
    head, begin, length = _block(starts, stream, HEADS)
    low = tl.program_id(0) % tiles * BN
    if low >= length:
        return
    column, dims = low + tl.arange(0, BN), tl.arange(0, WIDTH)
    base = qk + begin.to(tl.int64) * PARTS * ROW + head * WIDTH
    values = qkv + begin.to(tl.int64) * 3 * ROW + 2 * ROW + head * WIDTH
    plain = begin.to(tl.int64) * ROW + head * WIDTH
    k = tile(base + ROW, column, dims, length, PARTS * ROW)
    v = tile(values, column, dims, length, 3 * ROW)
    seed = tl.load(seeds)
    keys = column_keys(seed, stream, column)
    by_k = tl.zeros((BN, WIDTH), tl.float32)
    by_v = tl.zeros((BN, WIDTH), tl.float32)
    begun = tl.zeros((BN,), tl.float32)
    origin = head.to(tl.int64) * tokens + begin
    # A row sees so many after itself: so many before it see a column.
    first, end = _span(low, low + BN, length, AFTER, BEFORE, BM)
    for start in range(first, end, BM):
        row = start + tl.arange(0, BM)
        q = tile(base, row, dims, length, PARTS * ROW)
        g = tile(by_out + plain, row, dims, length, ROW)
        # Rows past the end have no share in anything.
        log = tl.load(logs + origin + row, row < length, other=float("inf"))
        delta = tl.load(deltas + origin + row, row < length, other=0.0)
        scores = tl.dot(k, tl.trans(q), input_precision="ieee")
        scores = add_distances(
            scores, p2c, p2c_rows, c2p, c2p_rows, P, origin, low, start, length, end
        )
        share = tl.exp2(scores * scale2 - log[None, :])
        if BEFORE < ALL or AFTER < ALL:
            seen = _visible(row[None, :], column[:, None], length, BEFORE, AFTER)
            share = tl.where(seen, share, 0.0)
        pull = tl.dot(v, tl.trans(g), input_precision="ieee")
        dropped = share
        if DROPS:
            keep = keep_mask(row_keys(seed, stream, row)[None, :], keys[:, None], lost)
            dropped = tl.where(keep, share, 0.0)
        by_v = tl.dot(dropped.to(g.dtype), g, by_v, input_precision="ieee")
        pull = dropped * pull - share * delta[None, :]
        by_k = tl.dot(pull.to(q.dtype), q, by_k, input_precision="ieee")
        if by_p2c is not None:
            begun = store_runs(
                by_p2c, pull * (scaled * grown), begun, p2c_rows, P, origin, low, start, length, end
            )  # fmt: skip
    inside = (column < length)[:, None]
    at = by_qkv + (begin.to(tl.int64) + column) * 3 * ROW + head * WIDTH
    cells = at[:, None] + dims[None, :]
    tl.store(cells + ROW, (by_k * (scaled * grown)).to(by_qkv.dtype.element_ty), inside)
    tl.store(cells + 2 * ROW, (by_v * grown).to(by_qkv.dtype.element_ty), inside)


@triton.jit
def _attention_by_all_kernel(
    by_out, qk, qkv, out, logs, by_qkv, starts, seeds, tokens, scale2, scaled, lost, grown,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, SIZE: tl.constexpr,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """All three gradients of a block of at most SIZE tokens."""
    ROW: tl.constexpr = HEADS * WIDTH
    stream = tl.program_id(0)
    head, begin, length = _block(starts, stream, HEADS)
    if length == 0:
        return
    row, dims = tl.arange(0, SIZE), tl.arange(0, WIDTH)
    inside = row < length
    base = qk + begin.to(tl.int64) * PARTS * ROW + head * WIDTH
    values = qkv + begin.to(tl.int64) * 3 * ROW + 2 * ROW + head * WIDTH
    plain = begin.to(tl.int64) * ROW + head * WIDTH
    q = tile(base, row, dims, length, PARTS * ROW)
    k = tile(base + ROW, row, dims, length, PARTS * ROW)
    g = tile(by_out + plain, row, dims, length, ROW)
    was = tile(out + plain, row, dims, length, ROW)
    delta = tl.sum(was.to(tl.float32) * g.to(tl.float32), 1) / grown
    number = head.to(tl.int64) * tokens + begin + row
    log = tl.load(logs + number, inside, other=float("inf"))
    share = tl.exp2(tl.dot(q, tl.trans(k), input_precision="ieee") * scale2 - log[:, None])
    # Past the end scores are 0, which may be far above the others: that is no share at all.
    seen = _visible(row[:, None], row[None, :], length, BEFORE, AFTER)
    share = tl.where(seen, share, 0.0)
    v = tile(values, row, dims, length, 3 * ROW)
    pull = tl.dot(g, tl.trans(v), input_precision="ieee")
    dropped = share
    if DROPS:
        seed = tl.load(seeds)
        rows, columns = row_keys(seed, stream, row), column_keys(seed, stream, row)
        dropped = tl.where(keep_mask(rows[:, None], columns[None, :], lost), share, 0.0)
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


def _reach(window: int, causal: bool) -> dict[str, int]:
    """How many tokens before and after itself one sees."""
    side: int = window // 2 or ALL.value
    return {"BEFORE": side, "AFTER": 0 if causal else side}


@torch.library.custom_op("clozelab::attend", mutates_args=())
def _attend(
    qkv: Tensor, starts: Tensor, cos: Tensor | None, sin: Tensor | None, ahead: Tensor | None,
    query: Tensor | None, key: Tensor | None, seed: Tensor,
    max_seqlen: int, rate: float, causal: bool, window: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """[N, H · D] attended sums, [H, N] the logarithm of each row's sum of weights, turned heads."""
    qkv = qkv.contiguous()
    tokens, _, heads, width = qkv.shape
    out, logs, turned = _results(qkv, cos)
    if cos is not None and sin is not None:
        turn(qkv, turned, cos.contiguous(), sin.contiguous())
    qk = qkv if cos is None else turned
    by_distance = products(qkv, ahead, query, key)
    root = inverse_root(by_distance.terms * width)
    tiles = triton.cdiv(max_seqlen, FORWARD["BM"])
    _attention_forward_kernel[((len(starts) - 1) * heads * tiles,)](
        qk, qkv, out, logs, *by_distance, starts, seed, tokens, tiles, root / math.log(2),
        threshold(rate), scale(rate), HEADS=heads, WIDTH=width, PARTS=qk.shape[1], DROPS=rate > 0,
        **_reach(window, causal), **FORWARD,
    )  # fmt: skip
    return out, logs, turned


def _results(qkv: Tensor, cos: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Room for what comes out."""
    tokens, _, heads, width = qkv.shape
    logs = qkv.new_empty((heads, tokens), dtype=torch.float32)
    turned = qkv.new_empty((0 if cos is None else tokens, 2, heads, width))
    return qkv.new_empty((tokens, heads * width)), logs, turned


@_attend.register_fake
def _(qkv, starts, cos, sin, ahead, query, key, seed, max_seqlen, rate, causal, window):
    return _results(qkv, cos)


@torch.library.custom_op("clozelab::attend_backward", mutates_args=())
def _attend_backward(
    by_out: Tensor, qkv: Tensor, out: Tensor, logs: Tensor, turned: Tensor, starts: Tensor,
    cos: Tensor | None, sin: Tensor | None, ahead: Tensor | None, query: Tensor | None,
    key: Tensor | None, seed: Tensor,
    max_seqlen: int, rate: float, causal: bool, window: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Of heads, and of distances' queries and keys; what there is not has no elements."""
    by_out, qkv = by_out.contiguous(), qkv.contiguous()
    qk = qkv if cos is None else turned
    by_qkv = torch.empty_like(qkv)
    by_distance = products(qkv, ahead, query, key)
    by_c2p, by_p2c = _gradients(
        by_out, qk, qkv, out, logs, by_qkv, by_distance, starts, seed, max_seqlen, rate, causal,
        window,
    )  # fmt: skip
    if cos is not None and sin is not None:
        turn(by_qkv, by_qkv, cos.contiguous(), sin.contiguous(), back=True)
    by_key = send_back(by_c2p, qkv[:, 0], by_qkv[:, 0], key)
    by_query = send_back(by_p2c, qkv[:, 1], by_qkv[:, 1], query)
    return by_qkv, by_query, by_key


def _gradients(
    by_out: Tensor, qk: Tensor, qkv: Tensor, out: Tensor, logs: Tensor, by_qkv: Tensor,
    by_distance: Products, starts: Tensor, seed: Tensor, max_seqlen: int, rate: float,
    causal: bool, window: int,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """Write those of the heads as they were attended with, by one kernel or by two.

    Those of the products with distances come back.
    """
    tokens, _, heads, width = qkv.shape
    streams = (len(starts) - 1) * heads
    root = inverse_root(by_distance.terms * width)
    numbers = (root / math.log(2), root, threshold(rate), scale(rate))
    settings = {"HEADS": heads, "WIDTH": width, "PARTS": qk.shape[1], "DROPS": rate > 0}
    settings |= _reach(window, causal)
    if by_distance.terms == 1 and _holds(max_seqlen, qkv):
        size = max(16, triton.next_power_of_2(max_seqlen))
        _attention_by_all_kernel[(streams,)](
            by_out, qk, qkv, out, logs, by_qkv, starts, seed, tokens, *numbers,
            SIZE=size, **settings, **WHOLE,
        )  # fmt: skip
        return None, None
    # What no token is as far from as a row says has no gradient.
    by_c2p, by_p2c = (
        None if table is None else torch.zeros_like(table)
        for table in (by_distance.c2p, by_distance.p2c)
    )
    deltas = torch.empty_like(logs)
    tiles = triton.cdiv(max_seqlen, QUERIES["BM"])
    _attention_by_queries_kernel[(streams * tiles,)](
        by_out, qk, qkv, out, logs, deltas, by_qkv, by_c2p, *by_distance, starts, seed, tokens,
        tiles, *numbers, **settings, **QUERIES,
    )  # fmt: skip
    tiles = triton.cdiv(max_seqlen, OTHERS["BN"])
    _attention_by_others_kernel[(streams * tiles,)](
        by_out, qk, qkv, logs, deltas, by_qkv, by_p2c, *by_distance, starts, seed, tokens, tiles,
        *numbers, **settings, **OTHERS,
    )  # fmt: skip
    return by_c2p, by_p2c


@_attend_backward.register_fake
def _(
    by_out, qkv, out, logs, turned, starts, cos, sin, ahead, query, key, seed,
    max_seqlen, rate, causal, window,
):  # fmt: skip
    of_distances = (qkv.new_empty(0 if heads is None else heads.shape) for heads in (query, key))
    return torch.empty_like(qkv), *of_distances


def _keep(ctx, inputs, output):
    qkv, *tensors, ctx.max_seqlen, ctx.rate, ctx.causal, ctx.window = inputs
    out, logs, turned = output
    ctx.mark_non_differentiable(logs, turned)
    ctx.save_for_backward(qkv, out, logs, turned, *tensors)


def _return(ctx, by_out, *_):
    settings = (ctx.max_seqlen, ctx.rate, ctx.causal, ctx.window)
    by_qkv, *of_distances = _attend_backward(by_out, *ctx.saved_tensors, *settings)
    by_query, by_key = (gradient if gradient.numel() else None for gradient in of_distances)
    return by_qkv, *[None] * 4, by_query, by_key, *[None] * 5


_attend.register_autograd(_return, setup_context=_keep)


def attend(
    qkv: Tensor, starts: Tensor, *, seed: Tensor, max_seqlen: int, rate: float, causal: bool,
    window: int = 0, rotation: tuple[Tensor, Tensor] | None = None,
    distances: tuple[Tensor, Tensor | None, Tensor | None] | None = None,
) -> Tensor:  # fmt: skip
    """[N, 3, H, D] queries, keys and values of packed blocks → [N, H · D].

    With a `window` a token sees half as many on either side; `rotation` are the cosines and sines,
    of as many elements as [N, D / 2], by which queries and keys are turned. `distances` are the
    rows of a table for all distances, none lower than the one before, and the table's queries and
    keys, [P, H, D], of which one may be None; nothing is turned then.
    """
    cos, sin = rotation or (None, None)
    rows, *heads = distances or (None, None, None)
    ahead = None if rows is None else rows_ahead(rows)
    query, key = (each if each is None else _aligned(each) for each in heads)
    return _attend(
        qkv, starts, cos, sin, ahead, query, key, seed, max_seqlen, rate, causal, window
    )[0]  # fmt: skip


def _aligned(table: Tensor) -> Tensor:
    """With as many rows more as make the library's products fast in half precision."""
    return functional.pad(table, (0, 0, 0, 0, 0, -table.shape[0] % 8))

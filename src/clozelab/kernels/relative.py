"""XLNet's attention (§2.3, A.1) as FlashAttention-2 computes it (arXiv:2307.08691, §3.1).

A score is the sum of three terms: content (q · k), position and segment. Position scores come as
their matrix product made them, [B, H, R, P], with a column for each relative distance: query i and
key j meet in column shift(i) + j, so that the relative shift of Transformer-XL moves no memory.
The segment score is one number for each query, added for keys of its own segment: what keys of
another would add is the same for all, and the softmax does not depend on it. The attention mask
follows from a rank of each query and key: i sees j exactly if query_rank(i) > key_rank(j).

By hand, because torch's kernels take position scores, segment scores and mask only as one tensor,
[B, H, R, K], which would have to be made and its gradient shifted back. Backward computes scores
once, for dK, dV and dS: this is the gradient of the position scores, from which the last kernel
sums dQ and the gradient of the segment scores. No atomic additions.

B blocks, H heads, R queries and K keys of a block, P columns of position scores, D the head size;
HIDDEN = H · D, and a `block_head` is a (block, head) pair. Blocks are padded to a rectangle here,
and no query sees padding. A program has one tile of one pair: grids are [tiles, H, B].

Invariants:
- The softmax is in base 2, as in attention.py; lse is in base 2, and ∞ for a query that sees
  nothing: its P is 0, and so are its output and gradients.
- Every element of the gradient of position scores is written, zero where no key has that distance.
- delta is rowsum(dO ∘ O) / r, with r = 1 / (1 − dropout), as in attention.py. P in the kernel for
  dK and dV is P · softmax_scale · r, the factor of dS, by way of lse; dV is divided by the former.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from clozelab.kernels.dropout import (
    column_base,
    drop_probs,
    drop_threshold,
    inverse_keep_prob,
    keep_mask,
    row_base,
    tile_keys,
)
from clozelab.kernels.heads import inverse_sqrt, limit_registers, load_tile

# Tiles and warps, by trial on an H200 (benchmarks/kernel_times.py --sweep).
FORWARD = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
BACKWARD_DELTA = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4}
BACKWARD_DKDV = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 1}
BACKWARD_DQ = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
# The registers of a thread: three programs fit a processor of an H200.
MAX_REGISTERS = {"forward": 168}


@triton.jit
def _load_queries(query_rank, query_segment, segment_scores, block_head, block, offs_m, R):
    """Rank and segment of some queries, and what a key of their own segment adds to a score.

    Queries from R on see nothing.
    """
    mask_m = offs_m < R
    rank_m = tl.load(query_rank + block * R + offs_m, mask_m, other=-(2**30))
    segment_m = tl.load(query_segment + block * R + offs_m, mask_m, other=0)
    segment_score_m = tl.load(segment_scores + block_head * R + offs_m, mask_m, other=0.0)
    return rank_m, segment_m, segment_score_m.to(tl.float32)


@triton.jit
def _score_tile(
    q, k, pos_base, rank_m, segment_m, segment_score_m, pos_offs_m, key_rank, key_segment,
    block, offs_n, K,
):  # fmt: skip
    """[BLOCK_M, BLOCK_N] scores, −∞ where hidden."""
    mask_n = offs_n < K
    rank_n = tl.load(key_rank + block * K + offs_n, mask_n, other=2**30)
    segment_n = tl.load(key_segment + block * K + offs_n, mask_n, other=0)
    pos_ptrs = (pos_base + pos_offs_m)[:, None] + offs_n[None, :]
    same_segment = tl.where(segment_m[:, None] == segment_n[None, :], 1.0, 0.0)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    scores += tl.load(pos_ptrs, mask_n[None, :], other=0.0).to(tl.float32)
    scores += same_segment * segment_score_m[:, None]
    return tl.where(rank_m[:, None] > rank_n[None, :], scores, float("-inf"))


@triton.jit
def _relative_forward_kernel(
    q, k, v, pos_scores, segment_scores, query_rank, shift, query_segment, key_rank, key_segment,
    seed_ptr, out, lse, R, K, P, scale_log2, drop_threshold, inv_keep_prob,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    """The output and log-sum-exp of BLOCK_M queries."""
    HIDDEN: tl.constexpr = HEADS * HEAD_DIM
    head, block = tl.program_id(1), tl.program_id(2)
    block_head = block * HEADS + head
    offs_m, offs_d = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    q_start = q + block.to(tl.int64) * R * HIDDEN + head * HEAD_DIM
    q_tile = load_tile(q_start, offs_m, offs_d, R, HIDDEN)
    kv_start = block.to(tl.int64) * K * HIDDEN + head * HEAD_DIM
    rank_m, segment_m, segment_score_m = _load_queries(
        query_rank, query_segment, segment_scores, block_head, block, offs_m, R
    )
    shift_m = tl.load(shift + block * R + offs_m, offs_m < R, other=0)
    pos_offs_m = tl.minimum(offs_m, R - 1) * P + shift_m
    pos_base = pos_scores + block_head.to(tl.int64) * R * P
    seed = tl.load(seed_ptr)
    keys_m = tile_keys(row_base(seed, block_head), tl.program_id(0) * BLOCK_M, BLOCK_M)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    m_i = tl.full((BLOCK_M,), -1e30, tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    for start_n in range(0, K, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        k_tile = load_tile(k + kv_start, offs_n, offs_d, K, HIDDEN)
        scores = _score_tile(
            q_tile, k_tile, pos_base, rank_m, segment_m, segment_score_m, pos_offs_m, key_rank,
            key_segment, block, offs_n, K,
        )  # fmt: skip
        m_new = tl.maximum(m_i, tl.max(scores, 1) * scale_log2)
        p = tl.exp2(scores * scale_log2 - m_new[:, None])
        alpha = tl.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        if HAS_DROPOUT:
            keys_n = tile_keys(column_base(seed, block_head), start_n, BLOCK_N)
            p = drop_probs(p, keep_mask(keys_m[:, None], keys_n[None, :], drop_threshold))
        v_tile = load_tile(v + kv_start, offs_n, offs_d, K, HIDDEN)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None], input_precision="ieee")
        m_i = m_new
    sees_any = l_i > 0
    acc *= tl.where(sees_any, inv_keep_prob / tl.where(sees_any, l_i, 1.0), 0.0)[:, None]
    out_rows = out + (block.to(tl.int64) * R + offs_m) * HIDDEN + head * HEAD_DIM
    mask_m = offs_m < R
    out_ptrs = out_rows[:, None] + offs_d[None, :]
    tl.store(out_ptrs, acc.to(out.dtype.element_ty), mask_m[:, None])
    lse_m = tl.where(sees_any, m_i + tl.log2(tl.where(sees_any, l_i, 1.0)), float("inf"))
    tl.store(lse + block_head * R + offs_m, lse_m, mask_m)


@triton.jit
def _relative_backward_delta_kernel(
    d_out, out, shift, delta, pos_offs, d_pos_scores, R, K, P, inv_keep_prob,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """What the other two need of BLOCK_M queries, and the gradient of distances to no key: zero.

    That is delta, and where in the position scores of a block and head those with key 0 are.
    """
    HIDDEN: tl.constexpr = HEADS * HEAD_DIM
    head, block = tl.program_id(1), tl.program_id(2)
    block_head = block * HEADS + head
    offs_m, offs_d = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    mask_m = offs_m < R
    out_start = block.to(tl.int64) * R * HIDDEN + head * HEAD_DIM
    do = load_tile(d_out + out_start, offs_m, offs_d, R, HIDDEN)
    o = load_tile(out + out_start, offs_m, offs_d, R, HIDDEN)
    delta_m = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1) / inv_keep_prob
    tl.store(delta + block_head * R + offs_m, delta_m, mask_m)
    shift_m = tl.load(shift + block * R + tl.minimum(offs_m, R - 1))
    tl.store(pos_offs + block_head * R + offs_m, offs_m * P + shift_m, mask_m)
    # Columns of distances that occur are shift(i) to shift(i) + K. Only tiles that have some of
    # them are masked, which takes a store for each element instead of one for 16 bytes.
    pos_rows = d_pos_scores + (block_head.to(tl.int64) * R + offs_m[:, None]) * P
    zeros = tl.zeros((BLOCK_M, BLOCK_N), d_pos_scores.dtype.element_ty)
    first, last = tl.min(shift_m), tl.max(shift_m)
    before, behind = first // BLOCK_N * BLOCK_N, tl.cdiv(last + K, BLOCK_N) * BLOCK_N
    for start_p in range(0, before, BLOCK_N):
        offs_p = start_p + tl.arange(0, BLOCK_N)[None, :]
        tl.store(pos_rows + offs_p, zeros, mask_m[:, None])
    for start_p in range(before, last, BLOCK_N):
        offs_p = start_p + tl.arange(0, BLOCK_N)[None, :]
        tl.store(pos_rows + offs_p, zeros, (offs_p < shift_m[:, None]) & mask_m[:, None])
    for start_p in range(first + K, behind, BLOCK_N):
        offs_p = start_p + tl.arange(0, BLOCK_N)[None, :]
        unused = (offs_p >= shift_m[:, None] + K) & (offs_p < tl.minimum(behind, P))
        tl.store(pos_rows + offs_p, zeros, unused & mask_m[:, None])
    for start_p in range(behind, P, BLOCK_N):
        offs_p = start_p + tl.arange(0, BLOCK_N)[None, :]
        tl.store(pos_rows + offs_p, zeros, (offs_p < P) & mask_m[:, None])


@triton.jit
def _relative_backward_dkdv_kernel(
    d_out, q, k, v, pos_scores, segment_scores, query_rank, query_segment, key_rank, key_segment,
    seed_ptr, lse, delta, pos_offs, d_k, d_v, d_pos_scores, R, K, P, scale_log2, softmax_scale,
    drop_threshold, inv_keep_prob,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    """dK and dV of BLOCK_N keys, and dS, which is the gradient of their position scores."""
    HIDDEN: tl.constexpr = HEADS * HEAD_DIM
    head, block = tl.program_id(1), tl.program_id(2)
    block_head = block * HEADS + head
    offs_n, offs_d = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, HEAD_DIM)
    kv_start = block.to(tl.int64) * K * HIDDEN + head * HEAD_DIM
    k_tile = load_tile(k + kv_start, offs_n, offs_d, K, HIDDEN)
    v_tile = load_tile(v + kv_start, offs_n, offs_d, K, HIDDEN)
    seed = tl.load(seed_ptr)
    keys_n = tile_keys(column_base(seed, block_head), tl.program_id(0) * BLOCK_N, BLOCK_N)
    mask_n = offs_n < K
    q_start = block.to(tl.int64) * R * HIDDEN + head * HEAD_DIM
    pos_base = pos_scores + block_head.to(tl.int64) * R * P
    d_pos_base = d_pos_scores + block_head.to(tl.int64) * R * P
    log2_factor = tl.log2(softmax_scale * inv_keep_prob)
    dk = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    dv = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    for start_m in range(0, R, BLOCK_M):
        offs_m = start_m + tl.arange(0, BLOCK_M)
        mask_m = offs_m < R
        q_tile = load_tile(q + q_start, offs_m, offs_d, R, HIDDEN)
        do = load_tile(d_out + q_start, offs_m, offs_d, R, HIDDEN)
        rank_m, segment_m, segment_score_m = _load_queries(
            query_rank, query_segment, segment_scores, block_head, block, offs_m, R
        )
        pos_offs_m = tl.load(pos_offs + block_head * R + offs_m, mask_m, other=0)
        lse_m = tl.load(lse + block_head * R + offs_m, mask_m, other=float("inf")) - log2_factor
        delta_m = tl.load(delta + block_head * R + offs_m, mask_m, other=0.0)
        scores = _score_tile(
            q_tile, k_tile, pos_base, rank_m, segment_m, segment_score_m, pos_offs_m, key_rank,
            key_segment, block, offs_n, K,
        )  # fmt: skip
        p = tl.exp2(scores * scale_log2 - lse_m[:, None])
        dp = tl.dot(do, tl.trans(v_tile), input_precision="ieee")
        p_kept = p
        if HAS_DROPOUT:
            keys_m = tile_keys(row_base(seed, block_head), start_m, BLOCK_M)
            p_kept = tl.where(keep_mask(keys_m[:, None], keys_n[None, :], drop_threshold), p, 0.0)
        dv = tl.dot(tl.trans(p_kept.to(do.dtype)), do, dv, input_precision="ieee")
        ds = (p_kept * dp - p * delta_m[:, None]).to(q_tile.dtype)
        d_pos_ptrs = (d_pos_base + pos_offs_m)[:, None] + offs_n[None, :]
        tl.store(d_pos_ptrs, ds, mask_m[:, None] & mask_n[None, :])
        dk = tl.dot(tl.trans(ds), q_tile, dk, input_precision="ieee")
    dv /= softmax_scale
    kv_offs = kv_start + offs_n[:, None].to(tl.int64) * HIDDEN + offs_d[None, :]
    tl.store(d_k + kv_offs, dk.to(d_k.dtype.element_ty), mask_n[:, None])
    tl.store(d_v + kv_offs, dv.to(d_v.dtype.element_ty), mask_n[:, None])


@triton.jit
def _relative_backward_dq_kernel(
    k, query_segment, key_segment, pos_offs, d_pos_scores, d_q, d_segment_scores, R, K, P,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dQ and the gradient of segment scores of BLOCK_M queries, from dS in d_pos_scores."""
    HIDDEN: tl.constexpr = HEADS * HEAD_DIM
    head, block = tl.program_id(1), tl.program_id(2)
    block_head = block * HEADS + head
    offs_m, offs_d = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    mask_m = offs_m < R
    segment_m = tl.load(query_segment + block * R + offs_m, mask_m, other=0)
    pos_offs_m = tl.load(pos_offs + block_head * R + offs_m, mask_m, other=0)
    d_pos_base = d_pos_scores + block_head.to(tl.int64) * R * P
    k_start = k + block.to(tl.int64) * K * HIDDEN + head * HEAD_DIM
    dq = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    d_segment = tl.zeros((BLOCK_M,), tl.float32)
    for start_n in range(0, K, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        mask_n = offs_n < K
        d_pos_ptrs = (d_pos_base + pos_offs_m)[:, None] + offs_n[None, :]
        ds = tl.load(d_pos_ptrs, mask_n[None, :], other=0.0)
        k_tile = load_tile(k_start, offs_n, offs_d, K, HIDDEN)
        dq = tl.dot(ds, k_tile, dq, input_precision="ieee")
        segment_n = tl.load(key_segment + block * K + offs_n, mask_n, other=0)
        same_segment = segment_m[:, None] == segment_n[None, :]
        d_segment += tl.sum(tl.where(same_segment, ds.to(tl.float32), 0.0), 1)
    dq_rows = d_q + (block.to(tl.int64) * R + offs_m) * HIDDEN + head * HEAD_DIM
    tl.store(dq_rows[:, None] + offs_d[None, :], dq.to(d_q.dtype.element_ty), mask_m[:, None])
    d_segment = d_segment.to(d_segment_scores.dtype.element_ty)
    tl.store(d_segment_scores + block_head * R + offs_m, d_segment, mask_m)


@torch.library.custom_op("clozelab::relative", mutates_args=())
def _relative(
    q: Tensor, k: Tensor, v: Tensor, pos_scores: Tensor, segment_scores: Tensor,
    query_rank: Tensor, shift: Tensor, query_segment: Tensor, key_rank: Tensor,
    key_segment: Tensor, seed: Tensor, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """[B, R, H, D] out, and [B, H, R] lse in base 2."""
    q, k, v, pos_scores, segment_scores = (
        x.contiguous() for x in (q, k, v, pos_scores, segment_scores)
    )
    integers = (query_rank, shift, query_segment, key_rank, key_segment)
    ranks = [x.contiguous() for x in integers]
    blocks, n_queries, heads, head_dim = q.shape
    out = torch.empty_like(q)
    lse = q.new_empty((blocks, heads, n_queries), dtype=torch.float32)
    _relative_forward_kernel[(triton.cdiv(n_queries, FORWARD["BLOCK_M"]), heads, blocks)](
        q, k, v, pos_scores, segment_scores, *ranks, seed, out, lse,
        n_queries, k.shape[1], pos_scores.shape[3], inverse_sqrt(head_dim) / math.log(2),
        drop_threshold(dropout), inverse_keep_prob(dropout),
        HEADS=heads, HEAD_DIM=head_dim, HAS_DROPOUT=dropout > 0, **FORWARD,
        **limit_registers(MAX_REGISTERS["forward"], head_dim),
    )  # fmt: skip
    return out, lse


@_relative.register_fake
def _(
    q, k, v, pos_scores, segment_scores, query_rank, shift, query_segment, key_rank, key_segment,
    seed, dropout,
):  # fmt: skip
    blocks, n_queries, heads, _ = q.shape
    lse = q.new_empty((blocks, heads, n_queries), dtype=torch.float32)
    return q.new_empty(q.shape), lse


@torch.library.custom_op("clozelab::relative_backward", mutates_args=())
def _relative_backward(
    d_out: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, pos_scores: Tensor,
    segment_scores: Tensor, query_rank: Tensor, shift: Tensor, query_segment: Tensor,
    key_rank: Tensor, key_segment: Tensor, seed: Tensor, dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k, v, pos_scores and segment_scores."""
    d_out, q, k, v, pos_scores, segment_scores = (
        x.contiguous() for x in (d_out, q, k, v, pos_scores, segment_scores)
    )
    integers = (query_rank, shift, query_segment, key_rank, key_segment)
    ranks = [x.contiguous() for x in integers]
    blocks, n_queries, heads, head_dim = q.shape
    d_q, d_k, d_v, d_pos_scores, d_segment_scores = (
        torch.empty_like(x) for x in (q, k, v, pos_scores, segment_scores)
    )
    delta, pos_offs = torch.empty_like(lse), torch.empty_like(lse, dtype=torch.int32)
    sizes = (n_queries, k.shape[1], pos_scores.shape[3])
    softmax_scale = inverse_sqrt(head_dim)
    inv_keep_prob = inverse_keep_prob(dropout)
    query_rank, shift, query_segment, key_rank, key_segment = ranks
    constants = {"HEADS": heads, "HEAD_DIM": head_dim}
    _relative_backward_delta_kernel[
        (triton.cdiv(n_queries, BACKWARD_DELTA["BLOCK_M"]), heads, blocks)
    ](
        d_out, out, shift, delta, pos_offs, d_pos_scores, *sizes, inv_keep_prob, **constants,
        **BACKWARD_DELTA,
    )  # fmt: skip
    _relative_backward_dkdv_kernel[
        (triton.cdiv(k.shape[1], BACKWARD_DKDV["BLOCK_N"]), heads, blocks)
    ](
        d_out, q, k, v, pos_scores, segment_scores, query_rank, query_segment, key_rank,
        key_segment, seed, lse, delta, pos_offs, d_k, d_v, d_pos_scores, *sizes,
        softmax_scale / math.log(2), softmax_scale, drop_threshold(dropout), inv_keep_prob,
        **constants, HAS_DROPOUT=dropout > 0, **BACKWARD_DKDV,
    )  # fmt: skip
    _relative_backward_dq_kernel[(triton.cdiv(n_queries, BACKWARD_DQ["BLOCK_M"]), heads, blocks)](
        k, query_segment, key_segment, pos_offs, d_pos_scores, d_q, d_segment_scores, *sizes,
        **constants, **BACKWARD_DQ,
    )  # fmt: skip
    return d_q, d_k, d_v, d_pos_scores, d_segment_scores


@_relative_backward.register_fake
def _(
    d_out, out, lse, q, k, v, pos_scores, segment_scores, query_rank, shift, query_segment,
    key_rank, key_segment, seed, dropout,
):  # fmt: skip
    inputs = (q, k, v, pos_scores, segment_scores)
    return tuple(x.new_empty(x.shape) for x in inputs)


def _setup_context(ctx, inputs, output):
    *tensors, ctx.dropout = inputs
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(out, lse, *tensors)


def _backward(ctx, d_out, _):
    return *_relative_backward(d_out, *ctx.saved_tensors, ctx.dropout), *[None] * 7


_relative.register_autograd(_backward, setup_context=_setup_context)


def attend(
    q: Tensor, k: Tensor, v: Tensor, pos_scores: Tensor, segment_scores: Tensor, *,
    ranks: Sequence[Tensor], seed: Tensor, dropout: float,
) -> Tensor:  # fmt: skip
    """[B, R, H, D] queries, [B, K, H, D] keys and values → [B, R, H, D].

    `pos_scores` [B, H, R, P] are the scores by relative distance; `segment_scores` [B, H, R] what
    a key of the query's own segment adds to its score, compared with one of another. `ranks` are
    five int32 tensors: query_rank, shift and query_segment, [B, R]; key_rank and key_segment,
    [B, K]. `seed` is one int64 on the device.
    """
    out, _ = _relative(q, k, v, pos_scores, segment_scores, *ranks, seed, dropout)
    return out

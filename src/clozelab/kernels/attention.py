"""FlashAttention-2 (arXiv:2307.08691, §3.1) over packed blocks, straight from the QKV product.

Forward is its Algorithm 1: a program has one tile of queries of one (block, head) pair, and an
online softmax over tiles of keys. Backward is its Algorithm 2 without atomic additions: one kernel
for dQ, summed over keys, and one for dK and dV, summed over queries. A short block has all three
from a single program that computes its scores once, unless positions add to the scores. Saved for
the backward pass are the output and the log-sum-exp of each row.

By hand, because queries, keys and values are read from qkv [N, 3, H, D] as one matrix product wrote
them, and their gradients are written in that shape: nothing is permuted, padded or stacked. Also,
dropout masks are hashes (dropout.py), tiles outside a sliding window are skipped, and the rotation
(rotation.py) and scores by relative position (distances.py) are inside.

N is the number of tokens of all blocks, H of heads, D the head size, HIDDEN = H · D. Block b has
the tokens from cu_seqlens[b] up to cu_seqlens[b + 1]; it may be empty. A `block_head` is a (block,
head) pair, `hn_start` the index of a block's first token in an [H, N] tensor. Rows of a tile are
queries (m), columns are keys (n), both counted from the block's start.

Invariants:
- The softmax is in base 2: scores · softmax_scale · log2 e, and lse = m + log2(l) likewise.
- A query sees keys from WINDOW_LEFT before to WINDOW_RIGHT after itself; causal attention is
  WINDOW_RIGHT = 0. So every query of a block sees at least itself.
- With keep mask Z and r = 1 / (1 − dropout), O = r (Z ∘ P) V. Kernels keep r out of their loops:
  delta is rowsum(dO ∘ O) / r, hence dS = P ∘ (Z ∘ dP − delta), and r multiplies the results.
- lse and delta have rows of their own for every block, padded to whole tiles of queries: so a tile
  of them is aligned and is loaded without a mask. lse is ∞ past a block's end, hence P is 0 there.
- The gradient of qkv's bias is the sum of d_qkv over tokens. Each program adds up its own rows
  into a row of `partials` [tiles of all blocks, 3, H, D], and one small sum over these follows.
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
    PositionScores,
    add_position_scores,
    offset_codes,
    position_scores,
    position_scores_backward,
    store_position_grads,
)
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
from clozelab.kernels.rotation import apply_rotary

# For longer blocks torch's packed kernel should compute gradients faster, by its published speeds;
# not measured here.
LONG_SEQLEN = 2048
SHORT_SEQLEN = 128  # up to this length one program computes a block's backward pass, if it fits
_BLOCK_SHARED_MEMORY = 120_000  # bytes that such a program takes, for heads of 64
# Tiles and warps, by trial on an H200 (benchmarks/kernel_times.py --sweep).
FORWARD = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
BACKWARD_DQ = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 3}
BACKWARD_DKDV = {"BLOCK_M": 32, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
BACKWARD_BLOCK = {"num_warps": 8, "num_stages": 1}
# The registers of a thread: four, four and three programs fit a processor of an H200.
MAX_REGISTERS = {"forward": 128, "dq": 128, "dkdv": 168}
UNBOUNDED = tl.constexpr(1 << 30)  # of a window: more tokens than a block has
ROW_PADDING = tl.constexpr(64)  # of lse and delta; no tile has more queries
PARTIAL_TOKENS = 16  # least tokens of a row of partials: with fewer, summing d_qkv is as fast


@triton.jit
def _load_seqlen(cu_seqlens, block_head, HEADS: tl.constexpr):
    """The head of a (block, head) pair; its block's first token and number of tokens."""
    seq_start = tl.load(cu_seqlens + block_head // HEADS)
    seqlen = tl.load(cu_seqlens + block_head // HEADS + 1) - seq_start
    return block_head % HEADS, seq_start, seqlen


@triton.jit
def _padded_row(block_head, seq_start, n_tokens, n_blocks, HEADS: tl.constexpr):
    """The row of a block's first token in lse and delta, a multiple of ROW_PADDING."""
    n_rows = n_tokens // ROW_PADDING + n_blocks
    row = block_head % HEADS * n_rows + seq_start // ROW_PADDING + block_head // HEADS
    return row.to(tl.int64) * ROW_PADDING


def _padded_rows(n_tokens: int, n_blocks: int) -> int:
    """The rows that lse and delta have for each head: enough for whole tiles of every block."""
    padding: int = ROW_PADDING.value
    return (n_tokens // padding + n_blocks) * padding


@triton.jit
def _window_bounds(start, end, seqlen, LEFT: tl.constexpr, RIGHT: tl.constexpr, STEP: tl.constexpr):
    """The range within the windows of tokens `start` to `end`; it begins at a multiple of STEP."""
    return tl.maximum(start - LEFT, 0) // STEP * STEP, tl.minimum(end + RIGHT, seqlen)


@triton.jit
def _visible(offs_m, offs_n, seqlen, WINDOW_LEFT: tl.constexpr, WINDOW_RIGHT: tl.constexpr):
    """True where query m sees key n; the caller broadcasts m and n over the tile."""
    visible = offs_n < seqlen
    if WINDOW_RIGHT < UNBOUNDED:
        visible = visible & (offs_n - offs_m <= WINDOW_RIGHT)
    if WINDOW_LEFT < UNBOUNDED:
        visible = visible & (offs_m - offs_n <= WINDOW_LEFT)
    return visible


@triton.jit
def _visible_tile(
    offs_m, start_n, seqlen, BLOCK_N: tl.constexpr, WINDOW_LEFT: tl.constexpr,
    WINDOW_RIGHT: tl.constexpr,
):  # fmt: skip
    """[M, BLOCK_N] True where query m sees key start_n + n.

    Positions are counted from start_n: in a loop, the n are constants then.
    """
    offs_n = tl.arange(0, BLOCK_N)[None, :]
    rel_m = (offs_m - start_n)[:, None]
    return _visible(rel_m, offs_n, seqlen - start_n, WINDOW_LEFT, WINDOW_RIGHT)


@triton.jit
def _attention_forward_inner(
    acc, m_i, l_i, q, k_base, v_base, c2p, c2p_codes, p2c, p2c_codes, P, hn_start, start_m, offs_m,
    lo, hi, seqlen, keys_m, seed, block_head, drop_threshold, offs_d, scale_log2,
    K_STRIDE: tl.constexpr, V_STRIDE: tl.constexpr, BLOCK_N: tl.constexpr,
    WINDOW_LEFT: tl.constexpr, WINDOW_RIGHT: tl.constexpr, MASKED: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    """The online softmax over the keys from `lo` to `hi`: acc, running maximum and running sum."""
    for start_n in range(lo, hi, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        k = load_tile(k_base, offs_n, offs_d, seqlen, K_STRIDE)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        scores = add_position_scores(
            scores, c2p, c2p_codes, p2c, p2c_codes, P, hn_start, start_m, start_n, seqlen, seqlen
        )
        if MASKED:
            visible = _visible_tile(offs_m, start_n, seqlen, BLOCK_N, WINDOW_LEFT, WINDOW_RIGHT)
            scores = tl.where(visible, scores, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(scores, 1) * scale_log2)
        p = tl.exp2(scores * scale_log2 - m_new[:, None])
        alpha = tl.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        if HAS_DROPOUT:
            keys_n = tile_keys(column_base(seed, block_head), start_n, BLOCK_N)
            p = drop_probs(p, keep_mask(keys_m[:, None], keys_n[None, :], drop_threshold))
        v = load_tile(v_base, offs_n, offs_d, seqlen, V_STRIDE)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
        m_i = m_new
    return acc, m_i, l_i


@triton.jit
def _attention_forward_kernel(
    qk, qkv, out, lse, c2p, c2p_codes, p2c, p2c_codes, P, cu_seqlens, seed_ptr, n_tokens, n_blocks,
    n_tiles, scale_log2, drop_threshold, inv_keep_prob,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, QK_PARTS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, WINDOW_LEFT: tl.constexpr, WINDOW_RIGHT: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    """The output and log-sum-exp of BLOCK_M queries.

    qk is qkv (QK_PARTS 3), or the rotated queries and keys [N, 2, H, D] (QK_PARTS 2).
    """
    HIDDEN: tl.constexpr = HEADS * HEAD_DIM
    block_head = tl.program_id(0) // n_tiles
    head, seq_start, seqlen = _load_seqlen(cu_seqlens, block_head, HEADS)
    start_m = tl.program_id(0) % n_tiles * BLOCK_M
    if start_m >= seqlen:
        return
    offs_m, offs_d = start_m + tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    q_base = qk + seq_start.to(tl.int64) * QK_PARTS * HIDDEN + head * HEAD_DIM
    v_base = qkv + seq_start.to(tl.int64) * 3 * HIDDEN + 2 * HIDDEN + head * HEAD_DIM
    hn_start = head.to(tl.int64) * n_tokens + seq_start
    q = load_tile(q_base, offs_m, offs_d, seqlen, QK_PARTS * HIDDEN)
    seed = tl.load(seed_ptr)
    keys_m = tile_keys(row_base(seed, block_head), start_m, BLOCK_M)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    m_i = tl.full((BLOCK_M,), -1e30, tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    lo, hi = _window_bounds(start_m, start_m + BLOCK_M, seqlen, WINDOW_LEFT, WINDOW_RIGHT, BLOCK_N)
    # Tiles of keys that every row sees need no mask; the others do, and in a window all do.
    masked_lo = lo
    if WINDOW_LEFT == UNBOUNDED:
        masked_lo = tl.minimum(start_m + WINDOW_RIGHT + 1, seqlen) // BLOCK_N * BLOCK_N
        acc, m_i, l_i = _attention_forward_inner(
            acc, m_i, l_i, q, q_base + HIDDEN, v_base, c2p, c2p_codes, p2c, p2c_codes, P, hn_start,
            start_m, offs_m, lo, masked_lo, seqlen, keys_m, seed, block_head, drop_threshold,
            offs_d, scale_log2, QK_PARTS * HIDDEN, 3 * HIDDEN, BLOCK_N, WINDOW_LEFT, WINDOW_RIGHT,
            False, HAS_DROPOUT,
        )  # fmt: skip
    acc, m_i, l_i = _attention_forward_inner(
        acc, m_i, l_i, q, q_base + HIDDEN, v_base, c2p, c2p_codes, p2c, p2c_codes, P, hn_start,
        start_m, offs_m, masked_lo, hi, seqlen, keys_m, seed, block_head, drop_threshold, offs_d,
        scale_log2, QK_PARTS * HIDDEN, 3 * HIDDEN, BLOCK_N, WINDOW_LEFT, WINDOW_RIGHT, True,
        HAS_DROPOUT,
    )  # fmt: skip
    # Rows past the end may have l_i = 0, hence NaN: they are not stored.
    acc *= (inv_keep_prob / l_i)[:, None]
    mask_m = offs_m < seqlen
    out_offs = (seq_start.to(tl.int64) + offs_m) * HIDDEN + head * HEAD_DIM
    out_ptrs = out + out_offs[:, None] + offs_d[None, :]
    tl.store(out_ptrs, acc.to(out.dtype.element_ty), mask_m[:, None])
    row = _padded_row(block_head, seq_start, n_tokens, n_blocks, HEADS)
    tl.store(lse + row + offs_m, tl.where(mask_m, m_i + tl.log2(l_i), float("inf")))


@triton.jit
def _attention_backward_dq_kernel(
    d_out, qk, qkv, out, lse, delta, d_qkv, partials, d_c2p, c2p, c2p_codes, p2c, p2c_codes, P,
    cu_seqlens, seed_ptr, n_tokens, n_blocks, n_tiles, scale_log2, softmax_scale, drop_threshold,
    inv_keep_prob,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, QK_PARTS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, WINDOW_LEFT: tl.constexpr, WINDOW_RIGHT: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    """dQ of BLOCK_M queries, the gradient of their c2p scores, and delta for dK and dV."""
    HIDDEN: tl.constexpr = HEADS * HEAD_DIM
    block_head = tl.program_id(0) // n_tiles
    head, seq_start, seqlen = _load_seqlen(cu_seqlens, block_head, HEADS)
    start_m = tl.program_id(0) % n_tiles * BLOCK_M
    if start_m >= seqlen:
        return
    offs_m, offs_d = start_m + tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    mask_m = offs_m < seqlen
    q_base = qk + seq_start.to(tl.int64) * QK_PARTS * HIDDEN + head * HEAD_DIM
    v_base = qkv + seq_start.to(tl.int64) * 3 * HIDDEN + 2 * HIDDEN + head * HEAD_DIM
    out_start = seq_start.to(tl.int64) * HIDDEN + head * HEAD_DIM
    q = load_tile(q_base, offs_m, offs_d, seqlen, QK_PARTS * HIDDEN)
    do = load_tile(d_out + out_start, offs_m, offs_d, seqlen, HIDDEN)
    o = load_tile(out + out_start, offs_m, offs_d, seqlen, HIDDEN)
    delta_m = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1) / inv_keep_prob
    hn_start = head.to(tl.int64) * n_tokens + seq_start
    row = _padded_row(block_head, seq_start, n_tokens, n_blocks, HEADS)
    tl.store(delta + row + offs_m, delta_m)
    lse_m = tl.load(lse + row + offs_m)
    seed = tl.load(seed_ptr)
    keys_m = tile_keys(row_base(seed, block_head), start_m, BLOCK_M)
    dq = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    carry = tl.zeros((BLOCK_M,), tl.float32)
    lo, hi = _window_bounds(start_m, start_m + BLOCK_M, seqlen, WINDOW_LEFT, WINDOW_RIGHT, BLOCK_N)
    for start_n in range(lo, hi, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        k = load_tile(q_base + HIDDEN, offs_n, offs_d, seqlen, QK_PARTS * HIDDEN)
        v = load_tile(v_base, offs_n, offs_d, seqlen, 3 * HIDDEN)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        scores = add_position_scores(
            scores, c2p, c2p_codes, p2c, p2c_codes, P, hn_start, start_m, start_n, seqlen, hi
        )
        p = tl.exp2(scores * scale_log2 - lse_m[:, None])
        # Keys past the end have score 0, and exp2(0 − lse) may even overflow: P is 0 there.
        visible = _visible_tile(offs_m, start_n, seqlen, BLOCK_N, WINDOW_LEFT, WINDOW_RIGHT)
        p = tl.where(visible, p, 0.0)
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        p_kept = p
        if HAS_DROPOUT:
            keys_n = tile_keys(column_base(seed, block_head), start_n, BLOCK_N)
            p_kept = tl.where(keep_mask(keys_m[:, None], keys_n[None, :], drop_threshold), p, 0.0)
        ds = p_kept * dp - p * delta_m[:, None]
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
        if d_c2p is not None:
            carry = store_position_grads(
                d_c2p, ds * (softmax_scale * inv_keep_prob), carry, c2p_codes, P, hn_start, start_m,
                start_n, seqlen, hi,
            )  # fmt: skip
    d_qkv_rows = d_qkv + (seq_start.to(tl.int64) + offs_m) * 3 * HIDDEN + head * HEAD_DIM
    dq *= softmax_scale * inv_keep_prob
    d_qkv_ptrs = d_qkv_rows[:, None] + offs_d[None, :]
    tl.store(d_qkv_ptrs, dq.to(d_qkv.dtype.element_ty), mask_m[:, None])
    if partials is not None:
        tile = block_head // HEADS * n_tiles + start_m // BLOCK_M
        tl.store(partials + tile * 3 * HIDDEN + head * HEAD_DIM + offs_d, tl.sum(dq, 0))


@triton.jit
def _attention_backward_dkdv_kernel(
    d_out, qk, qkv, lse, delta, d_qkv, partials, d_p2c, c2p, c2p_codes, p2c, p2c_codes, P,
    cu_seqlens, seed_ptr, n_tokens, n_blocks, n_tiles, scale_log2, softmax_scale, drop_threshold,
    inv_keep_prob,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, QK_PARTS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, WINDOW_LEFT: tl.constexpr, WINDOW_RIGHT: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    """dK and dV of BLOCK_N keys, and the gradient of their p2c scores.

    Tiles are transposed, [BLOCK_N, BLOCK_M]: scores, p, dp and ds here are Sᵀ, Pᵀ, dPᵀ and dSᵀ.
    """
    HIDDEN: tl.constexpr = HEADS * HEAD_DIM
    block_head = tl.program_id(0) // n_tiles
    head, seq_start, seqlen = _load_seqlen(cu_seqlens, block_head, HEADS)
    start_n = tl.program_id(0) % n_tiles * BLOCK_N
    if start_n >= seqlen:
        return
    offs_n, offs_d = start_n + tl.arange(0, BLOCK_N), tl.arange(0, HEAD_DIM)
    q_base = qk + seq_start.to(tl.int64) * QK_PARTS * HIDDEN + head * HEAD_DIM
    v_base = qkv + seq_start.to(tl.int64) * 3 * HIDDEN + 2 * HIDDEN + head * HEAD_DIM
    out_start = seq_start.to(tl.int64) * HIDDEN + head * HEAD_DIM
    k = load_tile(q_base + HIDDEN, offs_n, offs_d, seqlen, QK_PARTS * HIDDEN)
    v = load_tile(v_base, offs_n, offs_d, seqlen, 3 * HIDDEN)
    seed = tl.load(seed_ptr)
    keys_n = tile_keys(column_base(seed, block_head), start_n, BLOCK_N)
    dk = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    dv = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    carry = tl.zeros((BLOCK_N,), tl.float32)
    hn_start = head.to(tl.int64) * n_tokens + seq_start
    row = _padded_row(block_head, seq_start, n_tokens, n_blocks, HEADS)
    # Key n is seen by the queries from WINDOW_RIGHT before to WINDOW_LEFT after it.
    lo, hi = _window_bounds(start_n, start_n + BLOCK_N, seqlen, WINDOW_RIGHT, WINDOW_LEFT, BLOCK_M)
    for start_m in range(lo, hi, BLOCK_M):
        offs_m = start_m + tl.arange(0, BLOCK_M)
        q = load_tile(q_base, offs_m, offs_d, seqlen, QK_PARTS * HIDDEN)
        do = load_tile(d_out + out_start, offs_m, offs_d, seqlen, HIDDEN)
        lse_m = tl.load(lse + row + offs_m)
        delta_m = tl.load(delta + row + offs_m)
        scores = tl.dot(k, tl.trans(q), input_precision="ieee")
        scores = add_position_scores(
            scores, p2c, p2c_codes, c2p, c2p_codes, P, hn_start, start_n, start_m, seqlen, hi
        )
        p = tl.exp2(scores * scale_log2 - lse_m[None, :])
        if WINDOW_LEFT < UNBOUNDED or WINDOW_RIGHT < UNBOUNDED:
            rel_m, rel_n = tl.arange(0, BLOCK_M)[None, :], (offs_n - start_m)[:, None]
            visible = _visible(rel_m, rel_n, seqlen - start_m, WINDOW_LEFT, WINDOW_RIGHT)
            p = tl.where(visible, p, 0.0)
        dp = tl.dot(v, tl.trans(do), input_precision="ieee")
        p_kept = p
        if HAS_DROPOUT:
            keys_m = tile_keys(row_base(seed, block_head), start_m, BLOCK_M)
            keep = keep_mask(keys_m[None, :], keys_n[:, None], drop_threshold)
            p_kept = tl.where(keep, p, 0.0)
        dv = tl.dot(p_kept.to(do.dtype), do, dv, input_precision="ieee")
        ds = p_kept * dp - p * delta_m[None, :]
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
        if d_p2c is not None:
            carry = store_position_grads(
                d_p2c, ds * (softmax_scale * inv_keep_prob), carry, p2c_codes, P, hn_start, start_n,
                start_m, seqlen, hi,
            )  # fmt: skip
    mask_n = (offs_n < seqlen)[:, None]
    d_qkv_rows = d_qkv + (seq_start.to(tl.int64) + offs_n) * 3 * HIDDEN + head * HEAD_DIM
    d_qkv_ptrs = d_qkv_rows[:, None] + offs_d[None, :]
    dtype = d_qkv.dtype.element_ty
    dk *= softmax_scale * inv_keep_prob
    dv *= inv_keep_prob
    tl.store(d_qkv_ptrs + HIDDEN, dk.to(dtype), mask_n)
    tl.store(d_qkv_ptrs + 2 * HIDDEN, dv.to(dtype), mask_n)
    if partials is not None:
        tile = block_head // HEADS * n_tiles + start_n // BLOCK_N
        partial = partials + tile * 3 * HIDDEN + HIDDEN + head * HEAD_DIM + offs_d
        # Keys past the end may have any gradient: it is not stored.
        tl.store(partial, tl.sum(tl.where(mask_n, dk, 0.0), 0))
        tl.store(partial + HIDDEN, tl.sum(tl.where(mask_n, dv, 0.0), 0))


@triton.jit
def _attention_backward_block_kernel(
    d_out, qk, qkv, out, lse, d_qkv, cu_seqlens, seed_ptr, n_tokens, n_blocks, scale_log2,
    softmax_scale, drop_threshold, inv_keep_prob,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, QK_PARTS: tl.constexpr, BLOCK_MN: tl.constexpr,
    WINDOW_LEFT: tl.constexpr, WINDOW_RIGHT: tl.constexpr, HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    """dQ, dK and dV of a block of at most BLOCK_MN tokens: a single tile of queries and keys."""
    HIDDEN: tl.constexpr = HEADS * HEAD_DIM
    block_head = tl.program_id(0)
    head, seq_start, seqlen = _load_seqlen(cu_seqlens, block_head, HEADS)
    if seqlen == 0:
        return
    offs, offs_d = tl.arange(0, BLOCK_MN), tl.arange(0, HEAD_DIM)
    mask = offs < seqlen
    q_base = qk + seq_start.to(tl.int64) * QK_PARTS * HIDDEN + head * HEAD_DIM
    v_base = qkv + seq_start.to(tl.int64) * 3 * HIDDEN + 2 * HIDDEN + head * HEAD_DIM
    out_start = seq_start.to(tl.int64) * HIDDEN + head * HEAD_DIM
    q = load_tile(q_base, offs, offs_d, seqlen, QK_PARTS * HIDDEN)
    k = load_tile(q_base + HIDDEN, offs, offs_d, seqlen, QK_PARTS * HIDDEN)
    do = load_tile(d_out + out_start, offs, offs_d, seqlen, HIDDEN)
    o = load_tile(out + out_start, offs, offs_d, seqlen, HIDDEN)
    delta_m = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1) / inv_keep_prob
    row = _padded_row(block_head, seq_start, n_tokens, n_blocks, HEADS)
    lse_m = tl.load(lse + row + offs, mask, other=float("inf"))
    p = tl.exp2(tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2 - lse_m[:, None])
    # Keys past the end have score 0, and exp2(0 − lse) may even overflow: P is 0 there.
    visible = _visible(offs[:, None], offs[None, :], seqlen, WINDOW_LEFT, WINDOW_RIGHT)
    p = tl.where(visible, p, 0.0)
    v = load_tile(v_base, offs, offs_d, seqlen, 3 * HIDDEN)
    dp = tl.dot(do, tl.trans(v), input_precision="ieee")
    p_kept = p
    if HAS_DROPOUT:
        seed = tl.load(seed_ptr)
        keys_m = tile_keys(row_base(seed, block_head), 0, BLOCK_MN)
        keys_n = tile_keys(column_base(seed, block_head), 0, BLOCK_MN)
        p_kept = tl.where(keep_mask(keys_m[:, None], keys_n[None, :], drop_threshold), p, 0.0)
    ds = (p_kept * dp - p * delta_m[:, None]).to(q.dtype)
    dv = tl.dot(tl.trans(p_kept.to(do.dtype)), do, input_precision="ieee") * inv_keep_prob
    dq = tl.dot(ds, k, input_precision="ieee") * (softmax_scale * inv_keep_prob)
    dk = tl.dot(tl.trans(ds), q, input_precision="ieee") * (softmax_scale * inv_keep_prob)
    d_qkv_rows = d_qkv + (seq_start.to(tl.int64) + offs) * 3 * HIDDEN + head * HEAD_DIM
    d_qkv_ptrs = d_qkv_rows[:, None] + offs_d[None, :]
    dtype = d_qkv.dtype.element_ty
    tl.store(d_qkv_ptrs, dq.to(dtype), mask[:, None])
    tl.store(d_qkv_ptrs + HIDDEN, dk.to(dtype), mask[:, None])
    tl.store(d_qkv_ptrs + 2 * HIDDEN, dv.to(dtype), mask[:, None])


def _fits_one_program(max_seqlen: int, qkv: Tensor) -> bool:
    """Whether one program can compute a block's backward pass; on desktop GPUs it cannot."""
    short = max_seqlen <= SHORT_SEQLEN and qkv.shape[-1] <= 64
    return short and (not qkv.is_cuda or _shared_memory(qkv.device.index) >= _BLOCK_SHARED_MEMORY)


@cache
def _shared_memory(device: int) -> int:
    """Bytes of shared memory that a program can have on a device."""
    size: int = driver.active.utils.get_device_properties(device)["max_shared_mem"]
    return size


def _window_sizes(window: int, causal: bool) -> dict[str, int]:
    """How many tokens to its left and right a token sees."""
    side: int = window // 2 or UNBOUNDED.value
    return {"WINDOW_LEFT": side, "WINDOW_RIGHT": 0 if causal else side}


def _register_limit(kernel: str, scores: PositionScores, head_dim: int) -> dict[str, int]:
    """The option that limits the registers of a thread; scores by position need more of them."""
    return limit_registers(MAX_REGISTERS[kernel], head_dim) if scores.n_terms == 1 else {}


@torch.library.custom_op("clozelab::attend", mutates_args=())
def _attend(
    qkv: Tensor, bias: Tensor | None, cu_seqlens: Tensor, cos: Tensor | None, sin: Tensor | None,
    codes: Tensor | None, pos_query: Tensor | None, pos_key: Tensor | None, seed: Tensor,
    max_seqlen: int, dropout: float, causal: bool, window: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """[N, H · D] out, [H, padded rows] lse, and [N, 2, H, D] rotated queries and keys, if any."""
    qkv = qkv.contiguous()
    n_tokens, _, heads, head_dim = qkv.shape
    out, lse, rotated = _empty_outputs(qkv, cu_seqlens, cos)
    if cos is not None and sin is not None:
        apply_rotary(qkv, rotated, cos.contiguous(), sin.contiguous())
    qk = qkv if cos is None else rotated
    scores = position_scores(qkv, codes, pos_query, pos_key)
    softmax_scale = inverse_sqrt(scores.n_terms * head_dim)
    n_tiles = triton.cdiv(max_seqlen, FORWARD["BLOCK_M"])
    _attention_forward_kernel[((len(cu_seqlens) - 1) * heads * n_tiles,)](
        qk, qkv, out, lse, *scores, cu_seqlens, seed, n_tokens, len(cu_seqlens) - 1, n_tiles,
        softmax_scale / math.log(2), drop_threshold(dropout), inverse_keep_prob(dropout),
        HEADS=heads, HEAD_DIM=head_dim, QK_PARTS=qk.shape[1], HAS_DROPOUT=dropout > 0,
        **_window_sizes(window, causal), **FORWARD, **_register_limit("forward", scores, head_dim),
    )  # fmt: skip
    return out, lse, rotated


def _empty_outputs(
    qkv: Tensor, cu_seqlens: Tensor, cos: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Uninitialised out, lse and rotated; without a rotation the last is [0, 2, H, D]."""
    n_tokens, _, heads, head_dim = qkv.shape
    n_rows = _padded_rows(n_tokens, len(cu_seqlens) - 1)
    lse = qkv.new_empty((heads, n_rows), dtype=torch.float32)
    rotated = qkv.new_empty((0 if cos is None else n_tokens, 2, heads, head_dim))
    return qkv.new_empty((n_tokens, heads * head_dim)), lse, rotated


@_attend.register_fake
def _(
    qkv, bias, cu_seqlens, cos, sin, codes, pos_query, pos_key, seed, max_seqlen, dropout, causal,
    window,
):  # fmt: skip
    return _empty_outputs(qkv, cu_seqlens, cos)


@torch.library.custom_op("clozelab::attend_backward", mutates_args=())
def _attend_backward(
    d_out: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, rotated: Tensor, cu_seqlens: Tensor,
    cos: Tensor | None, sin: Tensor | None, codes: Tensor | None, pos_query: Tensor | None,
    pos_key: Tensor | None, seed: Tensor,
    max_seqlen: int, dropout: float, causal: bool, window: int, has_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of qkv, its bias, pos_query and pos_key; without an input an empty tensor."""
    d_out, qkv = d_out.contiguous(), qkv.contiguous()
    qk = qkv if cos is None else rotated
    d_qkv = torch.empty_like(qkv)
    scores = position_scores(qkv, codes, pos_query, pos_key)
    partials = None
    if has_bias:  # zeros, because a block may have fewer tiles than the longest
        n_rows = _partial_rows(len(cu_seqlens) - 1, max_seqlen)
        partials = qkv.new_zeros((n_rows, *qkv.shape[1:]), dtype=torch.float32)
    d_c2p, d_p2c = _launch_backward(
        d_out, qk, qkv, out, lse, d_qkv, partials, scores, cu_seqlens, seed, max_seqlen, dropout,
        causal, window,
    )  # fmt: skip
    if cos is not None and sin is not None:
        apply_rotary(d_qkv, d_qkv, cos.contiguous(), sin.contiguous(), inverse=True)
    d_pos_key = position_scores_backward(d_c2p, qkv[:, 0], d_qkv[:, 0], pos_key)
    d_pos_query = position_scores_backward(d_p2c, qkv[:, 1], d_qkv[:, 1], pos_query)
    d_bias = qkv.new_empty(0, dtype=torch.float32)
    if partials is not None:
        d_bias = partials.sum(0).flatten()
    return d_qkv, d_bias, d_pos_query, d_pos_key


def _partial_rows(n_blocks: int, max_seqlen: int) -> int:
    """The rows of the partial sums of the bias's gradient: the tiles of all blocks."""
    return n_blocks * triton.cdiv(max_seqlen, min(BACKWARD_DQ["BLOCK_M"], BACKWARD_DKDV["BLOCK_N"]))


def sums_bias_gradient(n_tokens: int, n_blocks: int, max_seqlen: int) -> bool:
    """Whether `attend` should compute the gradient of qkv's bias, rather than a pass over d_qkv.

    Not in short blocks: it would be a third of the instructions of a program that computes a block.
    """
    rows = _partial_rows(n_blocks, max_seqlen)
    return max_seqlen > SHORT_SEQLEN and rows * PARTIAL_TOKENS <= n_tokens


def _launch_backward(
    d_out: Tensor, qk: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, d_qkv: Tensor,
    partials: Tensor | None, scores: PositionScores, cu_seqlens: Tensor, seed: Tensor,
    max_seqlen: int, dropout: float, causal: bool, window: int,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """Write d_qkv, still rotated, by one kernel or by two, and `partials` of it, if any.

    The gradients of scores.c2p and .p2c.
    """
    n_tokens, _, heads, head_dim = qkv.shape
    n_blocks = len(cu_seqlens) - 1
    n_block_heads = n_blocks * heads
    softmax_scale = inverse_sqrt(scores.n_terms * head_dim)
    scalars = (
        softmax_scale / math.log(2), softmax_scale, drop_threshold(dropout),
        inverse_keep_prob(dropout),
    )  # fmt: skip
    constants = {
        "HEADS": heads, "HEAD_DIM": head_dim, "QK_PARTS": qk.shape[1], "HAS_DROPOUT": dropout > 0
    }  # fmt: skip
    constants |= _window_sizes(window, causal)
    if scores.n_terms == 1 and partials is None and _fits_one_program(max_seqlen, qkv):
        block_mn = max(32, triton.next_power_of_2(max_seqlen))
        _attention_backward_block_kernel[(n_block_heads,)](
            d_out, qk, qkv, out, lse, d_qkv, cu_seqlens, seed, n_tokens, n_blocks, *scalars,
            BLOCK_MN=block_mn, **constants, **BACKWARD_BLOCK,
        )  # fmt: skip
        return None, None
    # Zeros, because the kernels store only the elements whose relative position occurs in a block.
    d_c2p, d_p2c = (
        None if table is None else torch.zeros_like(table) for table in (scores.c2p, scores.p2c)
    )
    delta = torch.empty_like(lse)
    n_tiles = triton.cdiv(max_seqlen, BACKWARD_DQ["BLOCK_M"])
    _attention_backward_dq_kernel[(n_block_heads * n_tiles,)](
        d_out, qk, qkv, out, lse, delta, d_qkv, partials, d_c2p, *scores, cu_seqlens, seed,
        n_tokens, n_blocks, n_tiles, *scalars, **constants, **BACKWARD_DQ,
        **_register_limit("dq", scores, head_dim),
    )  # fmt: skip
    n_tiles = triton.cdiv(max_seqlen, BACKWARD_DKDV["BLOCK_N"])
    _attention_backward_dkdv_kernel[(n_block_heads * n_tiles,)](
        d_out, qk, qkv, lse, delta, d_qkv, partials, d_p2c, *scores, cu_seqlens, seed, n_tokens,
        n_blocks, n_tiles, *scalars, **constants, **BACKWARD_DKDV,
        **_register_limit("dkdv", scores, head_dim),
    )  # fmt: skip
    return d_c2p, d_p2c


@_attend_backward.register_fake
def _(
    d_out, qkv, out, lse, rotated, cu_seqlens, cos, sin, codes, pos_query, pos_key, seed,
    max_seqlen, dropout, causal, window, has_bias,
):  # fmt: skip
    d_positions = (
        qkv.new_empty(0 if heads is None else heads.shape) for heads in (pos_query, pos_key)
    )
    d_bias = qkv.new_empty(qkv[0].numel() if has_bias else 0, dtype=torch.float32)
    return qkv.new_empty(qkv.shape), d_bias, *d_positions


def _setup_context(ctx, inputs, output):
    qkv, bias, *tensors, ctx.max_seqlen, ctx.dropout, ctx.causal, ctx.window = inputs
    out, lse, rotated = output
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.mark_non_differentiable(lse, rotated)
    ctx.save_for_backward(qkv, out, lse, rotated, *tensors)


def _backward(ctx, d_out, *_):
    settings = (ctx.max_seqlen, ctx.dropout, ctx.causal, ctx.window)
    has_bias = ctx.needs_input_grad[1]
    d_qkv, *grads = _attend_backward(d_out, *ctx.saved_tensors, *settings, has_bias)
    d_bias, d_pos_query, d_pos_key = (grad if grad.numel() else None for grad in grads)
    d_bias = d_bias if d_bias is None else d_bias.to(ctx.bias_dtype)
    return d_qkv, d_bias, *[None] * 4, d_pos_query, d_pos_key, *[None] * 5


_attend.register_autograd(_backward, setup_context=_setup_context)


def attend(
    qkv: Tensor, cu_seqlens: Tensor, *, seed: Tensor, max_seqlen: int, dropout: float, causal: bool,
    bias: Tensor | None = None, window: int = 0,
    rotation: tuple[Tensor, Tensor] | None = None,
    distances: tuple[Tensor, Tensor | None, Tensor | None] | None = None,
) -> Tensor:  # fmt: skip
    """Self-attention within packed blocks: qkv [N, 3, H, D], cu_seqlens [B + 1] int32 → [N, H · D].

    `seed` is one int64 on the device. With a `window` a token sees half as many tokens on either
    side, without one its whole block. `rotation` is the cosines and sines of the rotary embedding,
    N · D / 2 elements each. `distances` is the position table's row of every distance query − key,
    [2 · positions − 1], none lower than the one before, and the position queries and keys,
    [P, H, D], one of which may be None; it excludes a rotation.

    `bias` [3 · H · D] is already added to qkv, without a gradient there: it gets its gradient here
    (see `sums_bias_gradient`). It excludes a rotation and distances, which change d_qkv afterwards.
    """
    assert bias is None or (rotation is None and distances is None), "no gradient of this bias"
    cos, sin = rotation or (None, None)
    rows, *pos_heads = distances or (None, None, None)
    codes = None if rows is None else offset_codes(rows)
    pos_query, pos_key = (heads if heads is None else _pad_rows(heads) for heads in pos_heads)
    return _attend(
        qkv, bias, cu_seqlens, cos, sin, codes, pos_query, pos_key, seed, max_seqlen, dropout,
        causal, window,
    )[0]  # fmt: skip


def _pad_rows(table: Tensor) -> Tensor:
    """The table padded with zero rows to a multiple of 8, for fast half-precision products."""
    return functional.pad(table, (0, 0, 0, 0, 0, -table.shape[0] % 8))

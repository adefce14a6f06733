"""Scores by relative position (DeBERTa §3.1) and their gradients, inside the attention kernels.

The matrix products of every token's content with every row of the position table are torch's, one
[H, N, P] table of queries with position keys (c2p, content to position) and one of keys with
position queries (p2c). A tile of scores gathers its elements from them. The tables are not saved:
the backward pass computes these products again, which costs less than to keep them.

Both tables are gathered by the same functions. A pair of tokens (i, j) has i, whose content is in
the table, and j, at the relative offset j − i. In c2p i is the query and j the key, in p2c i is the
key and j the query. `codes` has an int32 for every offset: 2 · row + 1 if the next offset has
another row, else 2 · row, where `row` is that of the position table; it points to offset 0.

Distant offsets share a row, and such offsets are consecutive. The gradient of table[i, row] is
therefore the sum of dS over a run of consecutive j. A program has some i and visits the j in order:
it adds up runs by a segmented scan along the tile, stores each sum once, at the last j of its run,
and carries an unfinished sum into the next tile. No atomic additions, so the result is the same
every time.

Invariants: rows do not decrease with the distance, so that equal rows are consecutive; and a kernel
visits j tile by tile in ascending order, up to `end_j`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional


@triton.jit
def _load_codes(
    codes, start_i, start_j, end_i, end_j, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr
):
    """[BLOCK_I · BLOCK_J] token i of every pair of a tile, and the code of its offset.

    The code is -1 for i from `end_i` and j from `end_j` on. Pairs are flat, not a tile: so every
    version of the compiler coalesces loads of neighbours.
    """
    pair = tl.arange(0, BLOCK_I * BLOCK_J)
    i = start_i + pair // BLOCK_J
    j = start_j + pair % BLOCK_J
    return i, tl.load(codes + (j - i), (i < end_i) & (j < end_j), other=-1)


@triton.jit
def _table_ptrs(table, P, hn_start, i, code):
    """Where table[i, row of the code] is."""
    return table + hn_start * P + (i * P + (code >> 1))


@triton.jit
def _gather_scores(
    table, codes, P, hn_start, start_i, start_j, end_i, end_j,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """[BLOCK_I, BLOCK_J] what one table adds to the scores of pairs (i, j)."""
    i, code = _load_codes(codes, start_i, start_j, end_i, end_j, BLOCK_I, BLOCK_J)
    gathered = tl.load(_table_ptrs(table, P, hn_start, i, code), code >= 0, other=0.0)
    return tl.reshape(gathered, (BLOCK_I, BLOCK_J)).to(tl.float32)


@triton.jit
def add_position_scores(
    scores, table, codes, table_t, codes_t, P, hn_start, start_i, start_j, end_i, end_j
):
    """[BLOCK_I, BLOCK_J] scores plus what the two tables add to them; either may be None.

    `table` has the contents of the tile's rows i, `table_t` those of its columns j. `hn_start` is
    the index of the block's first token in [H · N]; i and j count from there.
    """
    BLOCK_I: tl.constexpr = scores.shape[0]
    BLOCK_J: tl.constexpr = scores.shape[1]
    if table is not None:
        scores += _gather_scores(
            table, codes, P, hn_start, start_i, start_j, end_i, end_j, BLOCK_I, BLOCK_J
        )
    if table_t is not None:  # gathered along its own rows, then transposed
        gathered = _gather_scores(
            table_t, codes_t, P, hn_start, start_j, start_i, end_j, end_i, BLOCK_J, BLOCK_I
        )
        scores += tl.trans(gathered)
    return scores


@triton.jit
def _segmented_sum(sum_left, code_left, sum_right, code_right):
    """The combining function of a segmented scan: a sum continues while the row is the same."""
    same_row = (code_left >> 1) == (code_right >> 1)
    return sum_right + tl.where(same_row, sum_left, 0.0), code_right


@triton.jit
def store_position_grads(d_table, ds, carry, codes, P, hn_start, start_i, start_j, end_i, end_j):
    """Store the sums of dS over the runs that end in this tile; [BLOCK_I] the unfinished ones.

    `carry` [BLOCK_I] are the unfinished sums of the tile before: they belong to the first column.
    """
    BLOCK_I: tl.constexpr = ds.shape[0]
    BLOCK_J: tl.constexpr = ds.shape[1]
    i, code = _load_codes(codes, start_i, start_j, end_i, end_j, BLOCK_I, BLOCK_J)
    column = tl.arange(0, BLOCK_J)[None, :]
    ds += tl.where(column == 0, carry[:, None], 0.0)
    if tl.min(code & 1) == 0:  # otherwise every run is one offset long, as near ones are
        code_ij = tl.reshape(code, (BLOCK_I, BLOCK_J))
        ds, _ = tl.associative_scan((ds, code_ij), 1, _segmented_sum)
    is_last_j = tl.arange(0, BLOCK_I * BLOCK_J) % BLOCK_J == end_j - 1 - start_j
    run_ends = ((code & 1) == 1) | is_last_j
    run_sums = tl.reshape(ds, (BLOCK_I * BLOCK_J,)).to(d_table.dtype.element_ty)
    tl.store(_table_ptrs(d_table, P, hn_start, i, code), run_sums, (code >= 0) & run_ends)
    not_carried = tl.reshape(run_ends, (BLOCK_I, BLOCK_J)) | (column < BLOCK_J - 1)
    return tl.sum(tl.where(not_carried, 0.0, ds), 1)


class PositionScores(NamedTuple):
    """Products of contents with every row of the position table, as the kernels take them."""

    c2p: Tensor | None = None  # [H, N, P] of queries with position keys
    c2p_codes: Tensor | None = None  # int32, at offset key − query = 0; negative ones lie before it
    p2c: Tensor | None = None  # [H, N, P] of keys with position queries
    p2c_codes: Tensor | None = None  # int32, at offset query − key = 0
    P: int = 0

    @property
    def n_terms(self) -> int:
        """How many products a score is the sum of, content with content included."""
        return 1 + (self.c2p is not None) + (self.p2c is not None)


def offset_codes(rows: Tensor) -> Tensor:
    """[2, 2 · positions − 1] codes of all offsets j − i, for i a query and for i a key.

    `rows` [2 · positions − 1] are the table's rows of all distances query − key, the lowest first.
    """
    both = torch.stack([rows.flip(0), rows])
    run_ends = functional.pad(both.diff() != 0, (0, 1), value=True)
    return (2 * both + run_ends).int()


def position_scores(
    qkv: Tensor, codes: Tensor | None, pos_query: Tensor | None, pos_key: Tensor | None
) -> PositionScores:
    """The products of [N, 3, H, D] heads with [P, H, D] position queries and keys, if given."""
    c2p, p2c = (
        None if pos_heads is None else content.transpose(0, 1) @ pos_heads.permute(1, 2, 0)
        for content, pos_heads in ((qkv[:, 0], pos_key), (qkv[:, 1], pos_query))
    )
    either = p2c if c2p is None else c2p
    if codes is None or either is None:
        return PositionScores()
    c2p_codes, p2c_codes = codes[:, codes.shape[1] // 2 :]
    return PositionScores(c2p, c2p_codes, p2c, p2c_codes, either.shape[2])


def position_scores_backward(
    d_scores: Tensor | None, content: Tensor, d_content: Tensor, pos_heads: Tensor | None
) -> Tensor:
    """[P, H, D] the gradient of pos_heads, or an empty tensor; adds to d_content in place.

    For one table: `d_scores` is its gradient, [H, N, P], and `content` the [N, H, D] queries (c2p)
    or keys (p2c) that it was made of.
    """
    if d_scores is None or pos_heads is None:
        return content.new_empty(0)
    d_content.transpose(0, 1).baddbmm_(d_scores, pos_heads.transpose(0, 1))
    return (d_scores.mT @ content.transpose(0, 1)).transpose(0, 1).contiguous()

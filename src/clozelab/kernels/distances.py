"""What distances add to scores (DeBERTa §3.1), and the gradients of that, in attention's kernels.

The products of every content with every row of the table of distances are the library's, [H, N, P]:
of queries (c2p) and of keys (p2c). A tile of scores takes from them the cells of its distances.
Far distances share rows with their neighbours. On the way back a program meets the tokens that
share a row, as seen from one of its own, one after the other: it adds up each such run and stores
the sum, once, so that it is the same every time. This is no operator by itself: attention has it
inside, and makes the products again on the way back, which costs less than to keep them.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rows_between(rows, own, other, length, end, SIGN: tl.constexpr):
    """[own, other] the table's row of each distance, -1 past an end; SIGN is -1 of keys' own."""
    inside = (own < length)[:, None] & (other < end)[None, :]
    return tl.load(rows + SIGN * (own[:, None] - other[None, :]), inside, other=-1)


@triton.jit
def _cells(table, table_rows, origin, own, row):
    """Of the products of some contents, those with a row each."""
    return table + (origin + own)[:, None].to(tl.int64) * table_rows + row


@triton.jit
def _added(table, rows, table_rows, origin, own, other, length, SIGN: tl.constexpr):
    """[own, other] what the products of the own contents add."""
    row = _rows_between(rows, own, other, length, length, SIGN)
    cells = _cells(table, table_rows, origin, own, row)
    return tl.load(cells, row >= 0, other=0.0).to(tl.float32)


@triton.jit
def add_distances(
    scores, of_own, of_other, rows, table_rows, origin, own, other, length, SIGN: tl.constexpr
):
    """The scores of [own, other] tokens, with what the products of either side add, if given.

    SIGN is 1 where the own are queries and -1 where they are keys; `origin` is the place of the
    block in the tables, and `rows` points to the row of distance 0 amid those of the others.
    """
    if of_own is not None:
        scores += _added(of_own, rows, table_rows, origin, own, other, length, SIGN)
    if of_other is not None:  # read along its rows, then turned
        added = _added(of_other, rows, table_rows, origin, other, own, length, -SIGN)
        scores += tl.trans(added)
    return scores


@triton.jit
def _run(sum_before, row_before, sum_here, row_here):
    """A sum goes on where the row is the same."""
    return sum_here + tl.where(row_before == row_here, sum_before, 0.0), row_here


@triton.jit
def store_runs(
    by_table, by_scores, begun, rows, table_rows, origin, own, start, length, end,
    SIGN: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Store the sums of the runs that end among STEP others from `start`; what is begun of a next.

    `begun` is what the tile before began: it goes on with the first of these.
    """
    other = start + tl.arange(0, STEP)
    row = _rows_between(rows, own, other, length, end, SIGN)
    after = _rows_between(rows, own, other + 1, length, end, SIGN)
    by_scores += tl.where((other == start)[None, :], begun[:, None], 0.0)
    sums, _ = tl.associative_scan((by_scores, row), 1, _run)
    cells = _cells(by_table, table_rows, origin, own, row)
    tl.store(cells, sums.to(by_table.dtype.element_ty), (row >= 0) & (row != after))
    goes_on = (row == after) & (other == start + STEP - 1)[None, :]
    return tl.sum(tl.where(goes_on, sums, 0.0), 1)


class Products(NamedTuple):
    """Of contents with every row of a table of distances, as the kernels take them."""

    c2p: Tensor | None  # [H, N, P] of the queries
    p2c: Tensor | None  # of the keys
    rows: Tensor | None  # of the distances from 0 on; those below lie before them
    table_rows: int

    @property
    def terms(self) -> int:
        """Of a score, that of two contents among them."""
        return 1 + (self.c2p is not None) + (self.p2c is not None)


def products(
    qkv: Tensor, rows: Tensor | None, query: Tensor | None, key: Tensor | None
) -> Products:
    """Those of [N, 3, H, D] heads with [P, H, D] queries and keys of distances, as there are."""
    c2p, p2c = (
        None if heads is None else contents.transpose(0, 1) @ heads.permute(1, 2, 0)
        for contents, heads in ((qkv[:, 0], key), (qkv[:, 1], query))
    )
    either = p2c if c2p is None else c2p
    if rows is None or either is None:
        return Products(None, None, None, 0)
    return Products(c2p, p2c, rows.int()[len(rows) // 2 :], either.shape[2])


def send_back(
    by_products: Tensor | None, contents: Tensor, by_contents: Tensor, heads: Tensor | None
) -> Tensor:
    """The gradient of distances' heads, or nothing; the contents' is added to what they have."""
    if by_products is None or heads is None:
        return contents.new_empty(0)
    by_contents.transpose(0, 1).baddbmm_(by_products, heads.transpose(0, 1))
    return (by_products.mT @ contents.transpose(0, 1)).transpose(0, 1).contiguous()

"""What distances add to scores (DeBERTa §3.1), and the gradients of that, in attention's kernels.

The products of every content with every row of the table of distances are the library's, [H, N, P]:
of queries (c2p) and of keys (p2c). A tile of scores takes from them the cells of its distances.
Far distances share rows with their neighbours. On the way back a program meets the tokens that
share a row, as seen from one of its own, one after the other: it adds up each such run and stores
the sum, once, so that it is the same every time. This is no operator by itself: attention has it
inside, and makes the products again on the way back, which costs less than to keep them.

Of two tokens one is `own`, whose content is in a table, and how far the `other` is ahead of it is
looked up: for keys that is the distance, for queries its negative.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional


@triton.jit
def _entries(rows, own, other, length, end):
    """[own, other] what is looked up of each pair; -1 past an end."""
    inside = (own < length)[:, None] & (other < end)[None, :]
    return tl.load(rows + (other[None, :] - own[:, None]), inside, other=-1)


@triton.jit
def _cells(table, P, origin, own, entries):
    """The product of each own content with the row of the other's distance."""
    return table + origin * P + (own[:, None] * P + (entries >> 1))


@triton.jit
def _added(table, rows, P, origin, own, other, length, end):
    """[own, other] what one table adds."""
    entries = _entries(rows, own, other, length, end)
    cells = _cells(table, P, origin, own, entries)
    return tl.load(cells, entries >= 0, other=0.0).to(tl.float32)


@triton.jit
def add_distances(scores, table, rows, other_table, other_rows, P, origin, own, other, length, end):
    """The scores of [own, other] tokens, with what the tables of either add, if there are any.

    `origin` is the place of the block in the tables. Others from `end` on are seen by none.
    """
    if table is not None:
        scores += _added(table, rows, P, origin, own, other, length, end)
    if other_table is not None:  # read along its rows, then turned
        scores += tl.trans(_added(other_table, other_rows, P, origin, other, own, end, length))
    return scores


@triton.jit
def _run(sum_before, entry_before, sum_here, entry_here):
    """A sum goes on where the row is the same."""
    same = (entry_before >> 1) == (entry_here >> 1)
    return sum_here + tl.where(same, sum_before, 0.0), entry_here


@triton.jit
def store_runs(
    by_table, by_scores, begun, rows, P, origin, own, start, length, end, STEP: tl.constexpr
):
    """Store the sums of the runs that end among STEP others from `start`; what is begun of a next.

    `begun` is what the tile before began: it goes on with the first of these.
    """
    other = start + tl.arange(0, STEP)
    entries = _entries(rows, own, other, length, end)
    by_scores += tl.where((other == start)[None, :], begun[:, None], 0.0)
    sums = by_scores
    if tl.min(entries & 1) == 0:  # near ones have a row each
        sums, _ = tl.associative_scan((by_scores, entries), 1, _run)
    cells = _cells(by_table, P, origin, own, entries)
    ends = ((entries & 1) == 1) | (other == end - 1)[None, :]
    tl.store(cells, sums.to(by_table.dtype.element_ty), (entries >= 0) & ends)
    return tl.sum(tl.where(ends | (other < start + STEP - 1)[None, :], 0.0, sums), 1)


class Products(NamedTuple):
    """Of contents with every row of a table of distances, as the kernels take them."""

    c2p: Tensor | None = None  # [H, N, P] of the queries
    c2p_rows: Tensor | None = None  # of keys from the query's own place on; others lie before it
    p2c: Tensor | None = None  # [H, N, P] of the keys
    p2c_rows: Tensor | None = None  # of queries from the key's own place on
    P: int = 0

    @property
    def terms(self) -> int:
        """Of a score, that of two contents among them."""
        return 1 + (self.c2p is not None) + (self.p2c is not None)


def rows_ahead(rows: Tensor) -> Tensor:
    """[2, 2 · positions − 1] for queries and for keys: twice the row of an other so far ahead.

    It is one more where the next other has another row. `rows` are those of all distances.
    """
    both = torch.stack([rows.flip(0), rows])
    ends = functional.pad(both.diff() != 0, (0, 1), value=True)
    return (2 * both + ends).int()


def products(
    qkv: Tensor, ahead: Tensor | None, query: Tensor | None, key: Tensor | None
) -> Products:
    """Those of [N, 3, H, D] heads with [P, H, D] queries and keys of distances, as there are."""
    c2p, p2c = (
        None if heads is None else contents.transpose(0, 1) @ heads.permute(1, 2, 0)
        for contents, heads in ((qkv[:, 0], key), (qkv[:, 1], query))
    )
    either = p2c if c2p is None else c2p
    if ahead is None or either is None:
        return Products()
    of_queries, of_keys = ahead[:, ahead.shape[1] // 2 :]
    return Products(c2p, of_queries, p2c, of_keys, either.shape[2])


def send_back(
    by_products: Tensor | None, contents: Tensor, by_contents: Tensor, heads: Tensor | None
) -> Tensor:
    """The gradient of distances' heads, or nothing; the contents' is added to what they have."""
    if by_products is None or heads is None:
        return contents.new_empty(0)
    by_contents.transpose(0, 1).baddbmm_(by_products, heads.transpose(0, 1))
    return (by_products.mT @ contents.transpose(0, 1)).transpose(0, 1).contiguous()

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
def _pairs(rows, own, other, length, end, OWN: tl.constexpr, OTHER: tl.constexpr):
    """Of OWN tokens from `own` on with OTHER from `other` on: each one's own, and its entry.

    That is what is looked up, -1 past an end. Pairs are a line, not a tile: so every compiler has
    neighbours in memory read side by side.
    """
    pair = tl.arange(0, OWN * OTHER)
    own += pair // OTHER
    other += pair % OTHER
    return own, tl.load(rows + (other - own), (own < length) & (other < end), other=-1)


@triton.jit
def _cells(table, P, origin, own, entries):
    """The product of each own content with the row of the other's distance."""
    return table + origin * P + (own * P + (entries >> 1))


@triton.jit
def _added(table, rows, P, origin, own, other, length, end, OWN: tl.constexpr, OTHER: tl.constexpr):
    """[own, other] what one table adds."""
    owns, entries = _pairs(rows, own, other, length, end, OWN, OTHER)
    added = tl.load(_cells(table, P, origin, owns, entries), entries >= 0, other=0.0)
    return tl.reshape(added, (OWN, OTHER)).to(tl.float32)


@triton.jit
def add_distances(scores, table, rows, other_table, other_rows, P, origin, own, other, length, end):
    """The scores of [own, other] tokens, with what the tables of either add, if there are any.

    They are those from `own` and from `other` on; `origin` is the place of the block in the tables.
    Others from `end` on are seen by none.
    """
    OWN: tl.constexpr = scores.shape[0]
    OTHER: tl.constexpr = scores.shape[1]
    if table is not None:
        scores += _added(table, rows, P, origin, own, other, length, end, OWN, OTHER)
    if other_table is not None:  # read along its rows, then turned
        added = _added(other_table, other_rows, P, origin, other, own, end, length, OTHER, OWN)
        scores += tl.trans(added)
    return scores


@triton.jit
def _run(sum_before, entry_before, sum_here, entry_here):
    """A sum goes on where the row is the same."""
    same = (entry_before >> 1) == (entry_here >> 1)
    return sum_here + tl.where(same, sum_before, 0.0), entry_here


@triton.jit
def store_runs(by_table, by_scores, begun, rows, P, origin, own, other, length, end):
    """Store the sums of the runs that end in a tile, of [own, other]; what is begun of a next.

    `begun` is what the tile before began: it goes on with the first others of this one.
    """
    OWN: tl.constexpr = by_scores.shape[0]
    OTHER: tl.constexpr = by_scores.shape[1]
    owns, entries = _pairs(rows, own, other, length, end, OWN, OTHER)
    place = tl.arange(0, OTHER)[None, :]
    by_scores += tl.where(place == 0, begun[:, None], 0.0)
    if tl.min(entries & 1) == 0:  # near ones have a row each
        tile = tl.reshape(entries, (OWN, OTHER))
        by_scores, _ = tl.associative_scan((by_scores, tile), 1, _run)
    last = tl.arange(0, OWN * OTHER) % OTHER == end - 1 - other
    ends = ((entries & 1) == 1) | last
    sums = tl.reshape(by_scores, (OWN * OTHER,)).to(by_table.dtype.element_ty)
    tl.store(_cells(by_table, P, origin, owns, entries), sums, (entries >= 0) & ends)
    done = tl.reshape(ends, (OWN, OTHER)) | (place < OTHER - 1)
    return tl.sum(tl.where(done, 0.0, by_scores), 1)


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

"""The attention masks of a permutation language model (XLNet §2.2-2.3), memory and distances.

Blocks are padded to a rectangle here; the keys of a block are its memory, then its own tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from clozelab.contracts import Input
from clozelab.layers import rectangle

_PLAIN, _TARGET = 0, 2  # of Input.kinds


class Padding(NamedTuple):
    """Packed blocks as the rows of a rectangle, and back."""

    length: int
    tokens: Tensor | None  # [B · L] the token in each cell; None: tokens are cells already
    cells: Tensor | None  # [N] the cell of each token
    real: Tensor | None  # [B, L] which cells are tokens; None: all

    def pad(self, x: Tensor) -> Tensor:
        """[N, …] → [B, L, …]."""
        padded = x if self.tokens is None else x.index_select(0, self.tokens)
        return padded.view(-1, self.length, *x.shape[1:])

    def unpad(self, x: Tensor) -> Tensor:
        """[B, L, …] → [N, …]."""
        flat = x.flatten(0, 1)
        return flat if self.cells is None else flat.index_select(0, self.cells)


class Ranks(NamedTuple):
    """An attention mask as a few 32-bit integers for each query and each key.

    Query i sees key j exactly if query_rank(i) > key_rank(j).
    """

    query_rank: Tensor  # [B, R]
    shift: Tensor  # [B, R] the column of its distance to the first key
    query_segment: Tensor  # [B, R]
    key_rank: Tensor  # [B, K]
    key_segment: Tensor  # [B, K]


class AttentionMask(NamedTuple):
    """The attention mask of one stream."""

    visible: Tensor  # [B, 1, R, K]
    same_segment: Tensor  # [B, 1, R, K]
    columns: Tensor | None  # [B, 1, R, K] each distance's column; None: queries are all the cells
    ranks: Ranks  # from which all of this follows

    def by_key(self, scores_BHRP: Tensor) -> Tensor:
        """[B, H, R, K] scores by key, from scores by distance, furthest first."""
        blocks, heads, rows, width = scores_BHRP.shape
        if self.columns is not None:
            return scores_BHRP.gather(3, self.columns.expand(-1, heads, -1, -1))
        # Each row begins one column further left than the one above: view rows one column shorter.
        # (`narrow`, not a slice: the ONNX exporter cannot handle a slice of symbolic length.)
        shorter = scores_BHRP.flatten(2).narrow(2, rows, rows * (width - 1))
        by_row = shorter.view(blocks, heads, rows, width - 1)
        return by_row.narrow(3, 0, self.visible.shape[-1])


def padding(batch: Input) -> Padding:
    """The rectangle of a batch."""
    if batch.dense:
        return Padding(batch.max_seqlen, None, None, batch.attention_mask)
    return Padding(batch.max_seqlen, *rectangle(batch))


def attention_masks(
    batch: Input, padding: Padding, memory: Tensor | None
) -> tuple[AttentionMask, AttentionMask | None]:
    """The masks of the content stream and, where there are queries, of the query stream."""
    query_ranks, key_ranks = _ranks(batch, padding)
    segments = padding.pad(batch.segments)
    positions = torch.arange(padding.length, device=batch.ids.device).expand_as(key_ranks)
    content_queries = (key_ranks + 1, positions, segments)  # each sees itself
    if padding.real is not None:
        key_ranks = torch.where(padding.real, key_ranks, 4 * padding.length)
    keys = (key_ranks, segments)
    content = _mask(content_queries, keys, memory)
    if batch.queries is None:
        return content, None
    at = batch.position_ids[batch.queries].long()
    rows = (query_ranks.gather(1, at), at, segments.gather(1, at))
    queries = _mask(rows, keys, memory)
    # Key j and a query at position i of the block have the distance past + i - j; columns count
    # down from the distance past + length.
    numbers = torch.arange(queries.visible.shape[-1], device=at.device)
    columns = (padding.length - at[:, :, None] + numbers)[:, None]
    return content, queries._replace(columns=columns)


def sinusoids(distances: Tensor, width: int) -> Tensor:
    """[1, P, W] sines, then cosines, of each distance at wavelengths from 2π to 10000 · 2π."""
    even = torch.arange(0, width, 2, device=distances.device, dtype=distances.dtype)
    angles = distances[:, None] * 10000.0 ** -(even / width)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[None]


def _ranks(batch: Input, padding: Padding) -> tuple[Tensor, Tensor]:
    """[B, L] a rank as query and one as key for each cell: i sees j if query(i) > key(j).

    Plain tokens have key rank -1 and query rank 0, so all see them and they see each other; a
    target's query rank is its key rank, so it sees what comes before it in the factorisation order;
    a special token's is one more, so it also sees itself. All ranks of the second half are above
    those of the first half.
    """
    positions = padding.pad(batch.position_ids)
    query, key = torch.zeros_like(positions), torch.full_like(positions, -1)
    if batch.order is not None:
        assert batch.kinds is not None, "an order of prediction comes with the tokens' kinds"
        kinds = padding.pad(batch.kinds)
        lengths = batch.cu_seqlens.diff()[:, None]
        second_half = (positions >= (lengths + 1) // 2) * (padding.length + 1)
        key = torch.where(kinds == _PLAIN, -1, padding.pad(batch.order)) + second_half
        query = torch.where(kinds == _TARGET, key, key + 1)
    return query, key


def _mask(
    queries: tuple[Tensor, Tensor, Tensor], keys: tuple[Tensor, Tensor], memory: Tensor | None
) -> AttentionMask:
    """The mask of rows with (rank, position, segment) over keys with (rank, segment).

    Memory precedes the block: always visible except where it is blank, in segment 0.
    """
    rank, at, segment = queries
    key_rank, key_segment = keys
    length = key_rank.shape[1]
    if memory is not None:
        real = memory[-1].any(-1)
        key_rank = torch.cat([torch.where(real, -2, 4 * length), key_rank], dim=1)
        blank = torch.zeros_like(real, dtype=key_segment.dtype)
        key_segment = torch.cat([blank, key_segment], dim=1)
    visible = rank[:, :, None] > key_rank[:, None, :]
    same = segment[:, :, None] == key_segment[:, None, :]
    integers = (rank, length - at, segment, key_rank, key_segment)
    ranks = Ranks(*(x.int() for x in integers))
    return AttentionMask(visible[:, None], same[:, None], None, ranks)

"""Who sees whom in XLNet, and from how far: the orders of prediction (§2.2-2.3), memory, distances.

Blocks are rows of a rectangle here; the context of a row is its memory, then its own cells.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from clozelab.contracts import Input
from clozelab.encoder.attention import rectangle

_PLAIN, _TARGET = 0, 2  # of Input.kinds


class Grid(NamedTuple):
    """Packed blocks as the rows of a rectangle, and back."""

    length: int
    cells: Tensor | None  # [B · L] the token in each cell; None: the tokens lie so already
    cell: Tensor | None  # [N] the cell of each token
    real: Tensor | None  # [B, L] which cells are tokens; None: all

    def lay(self, x: Tensor) -> Tensor:
        """[N, …] → [B, L, …]."""
        laid = x if self.cells is None else x.index_select(0, self.cells)
        return laid.view(-1, self.length, *x.shape[1:])

    def pack(self, x: Tensor) -> Tensor:
        """[B, L, …] → [N, …]."""
        flat = x.flatten(0, 1)
        return flat if self.cell is None else flat.index_select(0, self.cell)


class Ranks(NamedTuple):
    """Who sees whom, in a few numbers for each row and each column; whole ones of 32 bits.

    Row i sees column j exactly if own(i) > rank(j), or if it is that column itself.
    """

    own: Tensor  # [B, R]
    itself: Tensor  # [B, R] the column that a row is, or -1
    shift: Tensor  # [B, R] the column of its distance to the first column
    mine: Tensor  # [B, R] segment
    rank: Tensor  # [B, K]
    theirs: Tensor  # [B, K] segment


class View(NamedTuple):
    """What the rows of one stream see of their context."""

    seen: Tensor  # [B, 1, R, K]
    same: Tensor  # [B, 1, R, K] what is of the row's own segment
    columns: Tensor | None  # [B, 1, R, K] each distance's column; None: the rows are all the cells
    ranks: Ranks  # what all that follows from

    def pick(self, scores: Tensor) -> Tensor:
        """[B, H, R, P] scores by distance, furthest first → [B, H, R, K] by place."""
        if self.columns is not None:
            return scores.gather(3, self.columns.expand(-1, scores.shape[1], -1, -1))
        # The row below begins one column further left: read on with rows one column shorter.
        blocks, heads, rows, width = scores.shape
        # (Narrowed, not sliced: a slice of a free length is lost on the exporter to ONNX.)
        on = scores.flatten(2).narrow(2, rows, rows * (width - 1))
        return on.view(blocks, heads, rows, width - 1).narrow(3, 0, self.seen.shape[-1])


def grid(batch: Input) -> Grid:
    """The rectangle of a batch."""
    if batch.dense:
        return Grid(batch.longest, None, None, batch.seen)
    cells, cell, real = rectangle(batch)
    return Grid(batch.longest, cells, cell, real)


def look(batch: Input, rows: Grid, memory: Tensor | None) -> tuple[View, View | None]:
    """The views of the content stream and, where there are queries, of the query stream."""
    own, index = _ranks(batch, rows)
    segments = rows.lay(batch.segments)
    places = torch.arange(rows.length, device=batch.ids.device).expand_as(own)
    content = _view(own, places, segments, index, segments, memory, itself=True)
    if batch.queries is None:
        return content, None
    at = batch.places[batch.queries].long()
    queries = _view(
        own.gather(1, at), at, segments.gather(1, at), index, segments, memory, itself=False
    )
    # A place j of the context and a query at place i of the block are past + i - j apart; columns
    # count down from a distance of past + length.
    keys = torch.arange(queries.seen.shape[-1], device=at.device)
    return content, queries._replace(columns=(rows.length - at[:, :, None] + keys)[:, None])


def sinusoids(distances: Tensor, width: int) -> Tensor:
    """[1, P, W] sines, then cosines, of each distance at wavelengths from 2π to 10000 · 2π."""
    even = torch.arange(0, width, 2, device=distances.device, dtype=distances.dtype)
    angles = distances[:, None] * 10000.0 ** -(even / width)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[None]


def _ranks(batch: Input, rows: Grid) -> tuple[Tensor, Tensor]:
    """Two numbers [B, L] for each cell: i sees j exactly if own(i) > index(j).

    Plain tokens have index -1 and own 0, so all see them and they see each other; a target's own
    number is its index, so it sees what comes before it in the order; a special's is one more, so
    it sees itself as well. The second half's numbers lie above all of the first half's.
    """
    places = rows.lay(batch.places)
    own, index = torch.zeros_like(places), torch.full_like(places, -1)
    if batch.order is not None:
        assert batch.kinds is not None, "an order of prediction comes with the tokens' kinds"
        kinds = rows.lay(batch.kinds)
        lengths = batch.starts.diff()[:, None]
        later = (places >= (lengths + 1) // 2) * (rows.length + 1)
        index = torch.where(kinds == _PLAIN, -1, rows.lay(batch.order)) + later
        own = torch.where(kinds == _TARGET, index, index + 1)
    if rows.real is not None:
        index = torch.where(rows.real, index, 4 * rows.length)
    return own, index


def _view(
    own: Tensor,
    at: Tensor,
    mine: Tensor,
    index: Tensor,
    theirs: Tensor,
    memory: Tensor | None,
    *,
    itself: bool,
) -> View:
    """Memory in front of what is seen in the block: always seen but where blank, segment 0."""
    length, past = index.shape[1], 0
    if memory is not None:
        there, past = memory[-1].any(-1), memory.shape[2]
        index = torch.cat([torch.where(there, -2, 4 * length), index], dim=1)
        theirs = torch.cat([torch.zeros_like(there, dtype=theirs.dtype), theirs], dim=1)
    place = at + past if itself else torch.full_like(at, -1)
    columns = torch.arange(index.shape[1], device=at.device)
    seen = (own[:, :, None] > index[:, None, :]) | (place[:, :, None] == columns)
    same = mine[:, :, None] == theirs[:, None, :]
    ranks = Ranks(*(x.int() for x in (own, place, length - at, mine, index, theirs)))
    return View(seen[:, None], same[:, None], None, ranks)

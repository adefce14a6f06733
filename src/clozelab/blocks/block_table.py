"""A plan held as a table: a block is a few stretches of the store, gathered when asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from clozelab.blocks.visit_order import VisitOrder
from clozelab.contracts import Blocks, Bools, Bytes, Documents, Ints, Mark
from clozelab.errors import UserError
from clozelab.packed import ranges
from clozelab.ranges import at_least

Length = Annotated[int, at_least(3, "a block holds at least 3 tokens")]


@dataclass(frozen=True)
class Parts:
    """The segments of all blocks, before they are cut into contiguous pieces."""

    block: Ints  # ascending
    segment: Ints
    first: Ints  # first entry of the walk
    last: Ints  # the entry after the last
    front: Ints  # tokens dropped at the front
    back: Ints  # tokens dropped at the back


@dataclass(frozen=True)
class BlockTable:
    """`[CLS] piece [SEP] piece [SEP] …`: a `Plan` for every format of that layout."""

    documents: Documents
    starts: Ints  # [P] first token of each piece
    stops: Ints  # [P]
    segments: Bytes  # [P]
    closes: Bools  # [P] a separator follows
    first: Ints  # [B + 1] first piece of each block
    labels: Ints | None = None
    notes: Mapping[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.first) - 1

    def blocks(self, numbers: Ints) -> Blocks:
        """Gather some blocks."""
        pieces = self.first[numbers + 1] - self.first[numbers]
        piece = ranges(self.first[numbers], pieces)
        sizes = self.stops[piece] - self.starts[piece]
        closes = self.closes[piece]
        opens = np.zeros(len(piece), dtype=np.int64)
        opens[np.cumsum(pieces) - pieces] = 1
        laid = opens + sizes + closes
        ends = np.cumsum(laid)
        special = np.zeros(int(laid.sum()), dtype=bool)
        cls, sep = (ends - laid)[opens > 0], (ends - 1)[closes]
        special[cls] = special[sep] = True
        source = ranges(self.starts[piece], sizes)
        ids = np.empty(len(special), dtype=np.int32)
        ids[~special] = self.documents.ids[source]
        ids[cls] = self.documents.vocabulary.role("cls")
        ids[sep] = self.documents.vocabulary.role("sep")
        marks = np.full(len(special), Mark.ALL, dtype=np.uint8)
        marks[~special] = self.documents.marks[source]
        return Blocks(
            ids=ids,
            starts=np.append(cls, len(special)),
            marks=marks,
            segments=np.repeat(self.segments[piece], laid),
            fixed=special,
            numbers=np.asarray(numbers, dtype=np.int64),
            labels=None if self.labels is None else self.labels[numbers],
        )


def tabulate(
    documents: Documents,
    visits: VisitOrder,
    parts: Parts,
    *,
    labels: Ints | None = None,
    notes: Mapping[str, float] | None = None,
) -> BlockTable:
    """Cut the parts of all blocks into contiguous pieces; a separator ends a part or a document."""
    if not len(parts.block):
        raise UserError(
            "the corpus gives not one block of this format: add text, or use shorter blocks"
            " (blocks.length)"
        )
    entries = parts.last - parts.first
    entry = ranges(parts.first, entries)
    part = np.repeat(np.arange(len(entries)), entries)
    total = visits.running[parts.last] - visits.running[parts.first]
    before = visits.running[entry] - visits.running[parts.first][part]
    after = total[part] - before - visits.sizes[entry]
    starts = visits.starts[entry] + np.clip(parts.front[part] - before, 0, visits.sizes[entry])
    stops = visits.starts[entry] + visits.sizes[entry]
    stops = stops - np.clip(parts.back[part] - after, 0, visits.sizes[entry])
    some = stops > starts
    starts, stops, part, entry = starts[some], stops[some], part[some], entry[some]
    new_part = np.ones(len(part), dtype=bool)
    new_part[1:] = part[1:] != part[:-1]
    new_document = np.zeros(len(part), dtype=bool)
    new_document[1:] = visits.documents[entry[1:]] != visits.documents[entry[:-1]]
    breaks = new_part | new_document
    breaks[1:] |= starts[1:] != stops[:-1]
    begin = np.flatnonzero(breaks)
    end = np.append(begin[1:], len(part)) - 1
    closes = np.append((new_part | new_document)[begin[1:]], True)
    block = parts.block[part[begin]]
    first = np.searchsorted(block, np.arange(int(parts.block[-1]) + 2))
    return BlockTable(
        documents=documents,
        starts=starts[begin],
        stops=stops[end],
        segments=parts.segment[part[begin]].astype(np.uint8),
        closes=closes,
        first=first,
        labels=labels,
        notes=notes or {},
    )


def singles(first: Ints, last: Ints) -> Parts:
    """One undivided part a block."""
    zero = np.zeros_like(first)
    return Parts(np.arange(len(first)), zero, first, last, zero, zero)

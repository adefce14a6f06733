"""What the formats of sentences share: a plan held as a table, in which a block is a few stretches
of the store, made a window of the visit at a time and gathered when asked for.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from clozelab.blocks.planned import PlannedFormat
from clozelab.blocks.visits import Window
from clozelab.contracts import Array, Blocks, Bools, Bytes, Documents, Ints, Mark, Plan, PlanStretch
from clozelab.errors import UserError
from clozelab.packed import ranges
from clozelab.ranges import at_least

Length = Annotated[int, at_least(3, "a block holds at least 3 tokens")]


class Chain:
    """The entries met from entry 0 on when each leads to a following one, window by window."""

    def __init__(self) -> None:
        self.at = 0

    def follow(self, window: Window, following: Ints) -> Ints:
        """The entries met in the window; `following` says where each entry of it leads."""
        assert (following > window.here).all(), "a chain that stands still never ends"
        met, at, end = array("q"), self.at - window.first, len(window)
        leads = (following - window.first).tolist()
        while at < end:
            met.append(at)
            at = leads[at]
        self.at = at + window.first
        return window.first + np.array(met, dtype=np.int64)


@dataclass(frozen=True)
class BlockTable:
    """`[CLS] piece [SEP] piece [SEP] …`: a `Plan` for every format of that layout."""

    documents: Documents
    starts: Ints  # [P] first token of each piece
    sizes: Array  # [P] tokens
    segments: Bytes  # [P]
    closes: Bools  # [P] a separator follows
    first: Ints  # [B + 1] first piece of each block
    labels: Bytes | None = None
    notes: Mapping[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.first) - 1

    def blocks(self, numbers: Ints) -> Blocks:
        """Gather some blocks."""
        pieces = self.first[numbers + 1] - self.first[numbers]
        piece = ranges(self.first[numbers], pieces)
        sizes = self.sizes[piece].astype(np.int64)
        closes = self.closes[piece]
        opens = np.zeros(len(piece), dtype=np.int64)
        opens[np.cumsum(pieces) - pieces] = 1
        widths = opens + sizes + closes  # of the pieces with their specials
        ends = np.cumsum(widths)
        special = np.zeros(int(widths.sum()), dtype=bool)
        cls, sep = (ends - widths)[opens > 0], (ends - 1)[closes]
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
            segments=np.repeat(self.segments[piece], widths),
            fixed=special,
            numbers=np.asarray(numbers, dtype=np.int64),
            labels=None if self.labels is None else self.labels[numbers].astype(np.int64),
        )


class TableFormat(PlannedFormat):
    """A format whose plan is a table of blocks."""

    shares: ClassVar[frozenset[str]] = frozenset()  # counts that are told as a share of the blocks

    def tables(self, documents: Documents, key: int, folder: Path | None) -> Iterator[PlanStretch]:
        """The tables of a pass, each of the blocks that begin in one window."""
        raise NotImplementedError

    def stretches(
        self, documents: Documents, key: int, folder: Path | None = None
    ) -> Iterator[PlanStretch]:
        """The table of a pass, some blocks at a time."""
        first = np.zeros(1, dtype=np.int64)
        for number, (columns, counts) in enumerate(self.tables(documents, key, folder)):
            first = first[-1] + columns["first"]
            # Where the last table ended is where this one begins.
            yield PlanStretch({**columns, "first": first[min(number, 1) :]}, counts)

    def opened(self, documents: Documents, key: int, table: PlanStretch) -> Plan:
        """The plan that a table is."""
        blocks = len(table.columns["first"]) - 1
        if not blocks:
            raise UserError(
                "the corpus gives not one block of this format: add text, or use shorter blocks"
                " (blocks.length)"
            )
        told = {
            name: number / blocks if name in self.shares else number
            for name, number in table.counts.items()
        }
        return BlockTable(documents, **table.columns, notes={"blocks": blocks, **told})


def tabulate(
    window: Window,
    segments: Ints,
    *,
    dropped: Ints | None = None,
    labels: Bools | None = None,
    crossing: bool = False,
    counts: Mapping[str, int] | None = None,
) -> PlanStretch:
    """Cut the segments of some blocks into contiguous pieces; a separator ends one or a document.

    `segments` is [segments of a block, 2, B]: the first entry of each, and the one after its last;
    `dropped`, of that shape, how many tokens go at its front and back. A segment may go on in the
    next document where they are `crossing`. The number of split sentences is added to `counts`.
    """
    visits, (count, _, blocks) = window.visits, segments.shape
    first, last = _in_order(segments)
    entry = ranges(first, last - first)
    row = np.repeat(np.arange(len(first)), last - first)  # the segment of each entry
    starts = visits.starts[entry]
    before = visits.running[entry]
    sizes = visits.running[entry + 1] - before
    stops = starts + sizes
    if dropped is not None:
        front, back = _in_order(dropped)
        starts, stops = (
            starts + np.clip((visits.running[first] + front)[row] - before, 0, sizes),
            stops - np.clip(before + sizes - (visits.running[last] - back)[row], 0, sizes),
        )
        filled = stops > starts
        starts, stops, row, entry = starts[filled], stops[filled], row[filled], entry[filled]
    parted = np.ones(len(row), dtype=bool)  # a segment or a document begins
    parted[1:] = row[1:] != row[:-1]
    if crossing:
        parted |= visits.begins(entry)
    breaks = parted.copy()
    breaks[1:] |= starts[1:] != stops[:-1]
    begin = np.flatnonzero(breaks)
    after = np.append(begin, len(row))[1:]
    block, segment = np.divmod(row[begin], count)
    columns: dict[str, Array] = {
        "starts": starts[begin],
        "sizes": (stops[after - 1] - starts[begin]).astype(np.uint32),
        "segments": segment.astype(np.uint8),
        "closes": np.append(parted, True)[after],
        "first": np.searchsorted(block, np.arange(blocks + 1)),
    }
    if labels is not None:
        columns["labels"] = labels.astype(np.uint8)
    split = visits.split if window.is_first else 0
    return PlanStretch(columns, {**(counts or {}), "sentences split": split})


def _in_order(segments: Ints) -> Ints:
    """[2, segments of a block · B] block by block."""
    return segments.transpose(1, 2, 0).reshape(2, -1)

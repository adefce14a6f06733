"""Formats of sentences: their plan is a table in which a block is a few contiguous pieces of the
store, made one window of the visit at a time; tokens are gathered when blocks are asked for.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np

from clozelab.blocks.planned import PlannedFormat, PlanPieces
from clozelab.blocks.visits import VisitOrder, Window
from clozelab.contracts import Array, Blocks, Bools, Bytes, Documents, Ints, Mark, Plan, PlanStretch
from clozelab.errors import UserError
from clozelab.packed import offsets, ranges, sums
from clozelab.ranges import at_least

_FAR = 1 << 18  # the most entries that are planned twice to find where a part's blocks begin
_NEXT = "next entry"  # a count: where the blocks of the next part begin; not in the plan

Length = Annotated[int, at_least(3, "a block holds at least 3 tokens")]


class Chain:
    """Follows the chain of entries that begin blocks, window by window.

    If the first one is not known, all candidates are followed until they coincide.
    """

    def __init__(self, *at: int) -> None:
        self.at: Ints = np.array(at or (0,), dtype=np.int64)  # the next entry, or candidates

    @property
    def known(self) -> bool:
        """Whether the next entry is known."""
        return len(self.at) == 1

    def follow(self, window: Window, following: Ints) -> Ints:
        """The window's entries in the chain; `following` is the successor of each entry."""
        assert (following > window.here).all(), "a chain that stands still never ends"
        if not self.known:
            self._narrow(window, following)
            return np.zeros(0, dtype=np.int64)
        found, at, end = array("q"), int(self.at[0]) - window.first, len(window)
        successors = (following - window.first).tolist()
        while at < end:
            found.append(at)
            at = successors[at]
        self.at = np.array([at + window.first], dtype=np.int64)
        return window.first + np.array(found, dtype=np.int64)

    def _narrow(self, window: Window, following: Ints) -> None:
        while len(inside := self.at[self.at < window.last]):
            outside = self.at[len(inside) :]
            self.at = np.unique(np.append(following[inside - window.first], outside))


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

    def lengths(self, numbers: Ints) -> Ints:
        """The number of tokens of blocks, without gathering them."""
        pieces = self.first[numbers + 1] - self.first[numbers]
        piece = ranges(self.first[numbers], pieces)
        return 1 + sums(self.sizes[piece] + self.closes[piece], offsets(pieces))

    def blocks(self, numbers: Ints) -> Blocks:
        """Gather the blocks of these numbers."""
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
        source = ranges(self.starts[piece] - opens, widths)
        source[cls] = source[sep] = 0  # any token: it is overwritten
        ids = self.documents.ids[source].astype(np.int32)
        ids[cls] = self.documents.vocabulary.role("cls")
        ids[sep] = self.documents.vocabulary.role("sep")
        marks = self.documents.marks[source]
        marks[cls] = marks[sep] = Mark.ALL
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
    """A format whose plan is a `BlockTable`."""

    shares: ClassVar[frozenset[str]] = frozenset()  # counts that are reported as shares of blocks

    def visits(self, documents: Documents, key: int, pieces: PlanPieces) -> VisitOrder:
        """The order in which a pass visits the sentences."""
        raise NotImplementedError

    def table(self, window: Window, key: int, chain: Chain) -> PlanStretch:
        """The table of the blocks that begin in a window, if the chain's next entry is known."""
        raise NotImplementedError

    def entrances(self, visits: VisitOrder, entry: int) -> Ints | None:
        """Candidates up to a given entry, one of which begins a block; None if they are far away.

        Here the beginning of the document, since blocks do not cross documents by default.
        """
        first = int(visits.bounds[np.searchsorted(visits.bounds, entry, side="right") - 1])
        return np.array([first]) if entry - first <= _FAR else None

    def stretches(
        self, documents: Documents, key: int, pieces: PlanPieces
    ) -> Iterator[PlanStretch]:
        """The table of a pass, some blocks at a time."""
        visits = self.visits(documents, key, pieces)
        parts = visits.parts()

        def make(number: int) -> Iterator[PlanStretch]:
            earlier = pieces.find("table", number - 1) if number else None
            chain = Chain(earlier.counts[_NEXT]) if earlier else None
            chain = chain or self._chain_at(visits, key, parts[number])
            if chain is None:
                chain = Chain(pieces.piece("table", number - 1, make).counts[_NEXT])
            for window in visits.part(parts[number]):
                yield self.table(window, key, chain)
            yield PlanStretch({}, {_NEXT: int(chain.at[0])})

        first = np.zeros(1, dtype=np.int64)
        for number, (columns, counts) in enumerate(pieces.all_pieces("table", len(parts), make)):
            first = first[-1] + offsets(columns["pieces"])
            rows = {name: values for name, values in columns.items() if name != "pieces"}
            notes = {name: count for name, count in counts.items() if name != _NEXT}
            # This part's first offset is the last part's end.
            yield PlanStretch({**rows, "first": first[min(number, 1) :]}, notes)

    def _chain_at(self, visits: VisitOrder, key: int, entry: int) -> Chain | None:
        """The chain at an entry; None if that requires planning everything before it."""
        entrances = self.entrances(visits, entry)
        if entrances is None:
            return None
        chain = Chain(*entrances.tolist())
        for window in visits.windows(int(entrances[0]), entry) if entrances[0] < entry else ():
            self.table(window, key, chain)
        return chain if chain.known else None

    def opened(self, documents: Documents, key: int, table: PlanStretch) -> Plan:
        """The plan of a table."""
        blocks = len(table.columns["first"]) - 1
        if not blocks:
            raise UserError(
                "the corpus is too small for one block of this format; add text, or use"
                " shorter blocks (blocks.length)"
            )
        shares = {
            name: number / blocks if name in self.shares else number
            for name, number in table.counts.items()
        }
        return BlockTable(documents, **table.columns, notes={"blocks": blocks, **shares})


def tabulate(
    window: Window,
    segments: Ints,
    *,
    dropped: Ints | None = None,
    labels: Bools | None = None,
    crossing: bool = False,
    counts: Mapping[str, int] | None = None,
) -> PlanStretch:
    """Cut the segments of blocks into contiguous pieces; segments and documents end in separators.

    `segments` is [segments of a block, 3, B]: the first entry of each, its end (exclusive) and its
    document; `dropped`, [segments of a block, 2, B], how many tokens to drop at its front and back.
    If `crossing`, segments may continue in the next document. The number of split sentences is
    added to `counts`.
    """
    visits, (count, _, blocks) = window.visits, segments.shape
    first, last, document = opened, closed, _ = _by_block(segments)
    row = np.arange(len(first))  # the segment of each part
    if crossing:
        parts = np.searchsorted(visits.bounds, last) - document
        row, document = np.repeat(row, parts), ranges(document, parts)
        first = np.maximum(first[row], visits.bounds[document])
        last = np.minimum(last[row], visits.bounds[document + 1])
    if visits.scattered is not None:
        parts = last - first
        row, document = np.repeat(row, parts), np.repeat(document, parts)
        first = ranges(first, parts)
        last = first + 1
    starts = visits.starts(first, document)
    stops = starts + visits.tokens(first, last)
    if dropped is not None and dropped.any():
        front, back = _by_block(dropped)
        cut = np.flatnonzero((front + back)[row])  # parts of segments with dropped tokens
        of, sizes = row[cut], (stops - starts)[cut]
        starts[cut] += np.clip(front[of] - visits.tokens(opened[of], first[cut]), 0, sizes)
        stops[cut] -= np.clip(back[of] - visits.tokens(last[cut], closed[of]), 0, sizes)
        filled = stops > starts
        starts, stops, row = starts[filled], stops[filled], row[filled]
        first, document = first[filled], document[filled]
    parted = first == visits.bounds[document]  # a segment or a document begins
    parted[:1] = True
    parted[1:] |= row[1:] != row[:-1]
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
        "pieces": np.bincount(block, minlength=blocks).astype(np.uint32),
    }
    if labels is not None:
        columns["labels"] = labels.astype(np.uint8)
    split = visits.split if window.is_first else 0
    return PlanStretch(columns, {**(counts or {}), "sentences split": split})


def _by_block(segments: Ints) -> Ints:
    """[…, segments of a block · B] the segments block by block."""
    return segments.transpose(1, 2, 0).reshape(segments.shape[1], -1)

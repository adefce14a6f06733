"""What the formats of sentences share: the order in which sentences are visited, and a plan held as
a table, in which a block is a few stretches of the store, gathered when asked for.

Documents are shuffled once by the key, sentences never, unless the comparison with a corpus of
shuffled sentences is wanted (BERT §3.1: document-level text is critical).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal

import numpy as np

from clozelab.contracts import Blocks, Bools, Bytes, Documents, Ints, Mark
from clozelab.errors import UserError
from clozelab.keys import mix, root
from clozelab.packed import offsets, ranges
from clozelab.ranges import at_least

Length = Annotated[int, at_least(3, "a block holds at least 3 tokens")]
ShuffleUnit = Literal["documents", "sentences"]

_WINDOW = 1 << 20  # entries of a chain held as Python numbers at a time


def draw(key: int, purpose: str) -> int:
    """The key of one kind of draw under a plan's key."""
    return int(mix(key, root(0, purpose)))


@dataclass(frozen=True)
class VisitOrder:
    """Entries (sentences, or parts of over-long ones) in visiting order."""

    starts: Ints  # [M] first token in the documents
    sizes: Ints  # [M] tokens
    documents: Ints  # [M] the document in visiting order, ascending
    bounds: Ints  # [D + 1] first entry of each document
    split: int = 0  # sentences that were split

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def running(self) -> Ints:
        """[M + 1] tokens before each entry."""
        return offsets(self.sizes)

    @cached_property
    def ends(self) -> Ints:
        """[M] the entry after the last of each entry's document."""
        return self.bounds[self.documents + 1]


def visit_order(
    documents: Documents, key: int, *, order: ShuffleUnit, longest: int | None
) -> VisitOrder:
    """Lay out the visit; sentences of more than `longest` tokens become several entries."""
    count = np.diff(documents.documents)
    visit = np.argsort(mix(key, np.arange(len(documents))), kind="stable")
    sentence = ranges(np.asarray(documents.documents[:-1])[visit], count[visit])
    document = np.repeat(np.arange(len(documents)), count[visit])
    if order == "sentences":
        # The shuffled corpus keeps its documents' sizes and deals the sentences anew.
        sentence = sentence[np.argsort(mix(mix(key, -1), sentence), kind="stable")]
    bounds = np.asarray(documents.sentences)
    starts, sizes = bounds[sentence], bounds[sentence + 1] - bounds[sentence]
    split = 0
    if longest is not None:
        parts = -(-sizes // longest)
        split = int((parts > 1).sum())
        part = ranges(np.zeros_like(parts), parts)
        starts = np.repeat(starts, parts) + part * longest
        sizes = np.minimum(np.repeat(sizes, parts) - part * longest, longest)
        document = np.repeat(document, parts)
    return entries(starts, sizes, document, split=split)


def entries(starts: Ints, sizes: Ints, document: Ints, *, split: int = 0) -> VisitOrder:
    """A visit of some entries; empty ones, and documents left without any, are dropped."""
    filled = sizes > 0
    starts, sizes, document = starts[filled], sizes[filled], document[filled]
    new = np.ones(len(document), dtype=bool)
    new[1:] = document[1:] != document[:-1]
    bounds = np.append(np.flatnonzero(new), len(document))
    return VisitOrder(starts, sizes, np.cumsum(new) - 1, bounds, split)


def chain(following: Ints) -> Ints:
    """The entries met from entry 0 on when each leads to its `following` one, to the end."""
    assert (following > np.arange(len(following))).all(), "a chain that stands still never ends"
    met, at = array("q"), 0
    while at < len(following):
        base, window = at, following[at : at + _WINDOW].tolist()
        limit = base + len(window)
        while at < limit:
            met.append(at)
            at = window[at - base]
    return np.array(met, dtype=np.int64)


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
            labels=None if self.labels is None else self.labels[numbers],
        )


def tabulate(
    documents: Documents,
    visits: VisitOrder,
    segments: Ints,
    *,
    dropped: Ints | None = None,
    labels: Bools | None = None,
    notes: Mapping[str, float] | None = None,
) -> BlockTable:
    """Cut the segments of all blocks into contiguous pieces; a separator ends one or a document.

    `segments` is [segments of a block, 2, B]: the first entry of each, and the one after its last;
    `dropped`, of that shape, how many tokens go at its front and back. The number of blocks and of
    split sentences is added to `notes`.
    """
    count, _, blocks = segments.shape
    if not blocks:
        raise UserError(
            "the corpus gives not one block of this format: add text, or use shorter blocks"
            " (blocks.length)"
        )
    first, last = _in_order(segments)
    front, back = _in_order(np.zeros_like(segments) if dropped is None else dropped)
    entry = ranges(first, last - first)
    row = np.repeat(np.arange(len(first)), last - first)  # the segment of each entry
    sizes = visits.sizes[entry]
    before = visits.running[entry] - visits.running[first][row]
    after = visits.running[last][row] - visits.running[entry] - sizes
    starts = visits.starts[entry] + np.clip(front[row] - before, 0, sizes)
    stops = visits.starts[entry] + sizes - np.clip(back[row] - after, 0, sizes)
    filled = stops > starts
    starts, stops, row, entry = starts[filled], stops[filled], row[filled], entry[filled]
    parted = np.ones(len(row), dtype=bool)  # a segment or a document begins
    parted[1:] = row[1:] != row[:-1]
    parted[1:] |= visits.documents[entry[1:]] != visits.documents[entry[:-1]]
    breaks = parted.copy()
    breaks[1:] |= starts[1:] != stops[:-1]
    begin = np.flatnonzero(breaks)
    block, segment = np.divmod(row[begin], count)
    return BlockTable(
        documents=documents,
        starts=starts[begin],
        stops=stops[np.append(begin[1:], len(row)) - 1],
        segments=segment.astype(np.uint8),
        closes=np.append(parted[begin[1:]], True),
        first=np.searchsorted(block, np.arange(blocks + 1)),
        labels=None if labels is None else labels.astype(np.int64),
        notes={"blocks": blocks, **(notes or {}), "sentences split": visits.split},
    )


def _in_order(segments: Ints) -> Ints:
    """[2, segments of a block · B] block by block."""
    return segments.transpose(1, 2, 0).reshape(2, -1)

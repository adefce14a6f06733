"""The order in which a pass visits the sentences of a corpus, and windows of it.

Documents are shuffled once by the key, sentences only for the comparison with a corpus of
shuffled sentences (BERT §3.1: document-level text is critical).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from clozelab.blocks.planned import PlanPieces
from clozelab.blocks.shuffle import Shuffle, Shuffled, release, sentences_of, single_sentences
from clozelab.contracts import Array, Bools, Documents, Ints, PlanStretch
from clozelab.keys import mix
from clozelab.packed import offsets, ranges

ShuffleUnit = Literal["documents", "sentences"]

_WINDOW = 1 << 16  # entries planned at a time: their arrays fit into a core's cache
_PART = 16  # windows in a part, which one process plans


@dataclass(frozen=True)
class Entries:
    """Sentences, or parts of over-long ones, of several documents in visiting order."""

    starts: Ints  # [M] first token in the store
    sizes: Ints  # [M] tokens, at least one
    bounds: Ints  # [D + 1] first entry of each document, which has at least one
    values: Ints | None = None  # [M] a number for each entry, whose meaning is the format's
    split: int = 0  # sentences that were split
    dropped: int = 0  # documents that were left out though they have tokens

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def documents(self) -> Ints:
        """[M] the document of each entry, in visiting order."""
        return np.repeat(np.arange(len(self.bounds) - 1), np.diff(self.bounds))

    @property
    def ends(self) -> Ints:
        """[M] the end (exclusive) of each entry's document."""
        return self.bounds[self.documents + 1]


@dataclass(frozen=True)
class VisitOrder:
    """All entries of a visit in compact form, for random access.

    Unless they are scattered, the entries of a document are contiguous in the store. So the first
    token of an entry follows from that of its document and the tokens in between.
    """

    running: NDArray[np.uint32]  # [M + 1] tokens before each entry, modulo 2³²
    bounds: Ints  # [D + 1] first entry of each document, which has at least one
    firsts: Ints  # [D] first token in the store of each document
    scattered: Ints | None = None  # [M] first token of each entry, where they are scattered
    values: NDArray[np.int32] | None = None  # [M] a number for each entry, of the format
    split: int = 0  # sentences that were split
    dropped: int = 0  # documents that were left out though they have tokens

    def __len__(self) -> int:
        return len(self.running) - 1

    def tokens(self, first: Ints, last: Ints) -> Ints:
        """The number of tokens from entries `first` up to entries `last` of the same document."""
        return (self.running[last] - self.running[first]).astype(np.int64)

    def starts(self, entries: Ints, documents: Ints) -> Ints:
        """The first token in the store of entries, given their documents."""
        if self.scattered is not None:
            return self.scattered[entries]
        return self.firsts[documents] + self.tokens(self.bounds[documents], entries)

    def sizes_of(self, first: int, last: int) -> Ints:
        """The number of tokens of consecutive entries."""
        return np.diff(self.running[first : last + 1]).astype(np.int64)

    def values_of(self, first: int, last: int) -> Array:
        """The values of consecutive entries."""
        assert self.values is not None
        return self.values[first:last]

    def begins(self, entries: Ints) -> Bools:
        """Whether each entry begins a document."""
        return np.asarray(self.bounds[np.searchsorted(self.bounds, entries)] == entries)

    def parts(self) -> range:
        """The first entries of the parts in which blocks are planned; at least one part."""
        return range(0, max(len(self), 1), _WINDOW * _PART)

    def part(self, first: int) -> Iterator[Window]:
        """The windows of a part."""
        yield from self.windows(first, min(first + _WINDOW * _PART, len(self)))

    def windows(self, first: int = 0, last: int | None = None) -> Iterator[Window]:
        """Yield windows of the entries; one empty window if there are none."""
        last = len(self) if last is None else last
        for begin in range(first, max(last, first + 1), _WINDOW):
            yield Window(self, begin, min(begin + _WINDOW, last))


@dataclass(frozen=True)
class Window:
    """Consecutive entries of a visit."""

    visits: VisitOrder
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def is_first(self) -> bool:
        """Whether it is the first window of the visit."""
        return self.first == 0

    @cached_property
    def here(self) -> Ints:
        """[n] the entries."""
        return np.arange(self.first, self.last)

    @cached_property
    def documents(self) -> Ints:
        """[n] the document of each entry, in visiting order."""
        bounds = self.visits.bounds
        low, high = np.searchsorted(bounds, [self.first, self.last - 1], side="right")
        inside = np.clip(bounds[low - 1 : high + 1], self.first, self.last)
        return np.repeat(np.arange(low - 1, low - 2 + len(inside)), np.diff(inside))

    @cached_property
    def lowest(self) -> Ints:
        """[n] the first entry of each entry's document."""
        return self.visits.bounds[self.documents]

    @cached_property
    def ends(self) -> Ints:
        """[n] the end (exclusive) of each entry's document."""
        return self.visits.bounds[self.documents + 1]

    def segments(self, first: Ints, stops: Ints) -> Ints:
        """[1, 3, B] the segments of one-segment blocks that begin at the entries `first`.

        Each is its first entry, its end (exclusive, by `stops`) and its document.
        """
        row = first - self.first
        return np.array([[first, stops[row], self.documents[row]]])

    def running(self, room: int, sizes: Callable[[int, int], Array] | None = None) -> Ints:
        """Cumulative tokens from the window's first entry on, to more than `room` past its last.

        `sizes` may count something else than tokens, of which every entry has at least one.
        """
        end = min(self.last + room + 1, len(self.visits))
        return offsets((sizes or self.visits.sizes_of)(self.first, end))

    def fits(self, running: Ints, room: int | Ints) -> Ints:
        """[n] the end (exclusive) of the longest run from each entry that has at most `room`.

        `running` is cumulative, as from `running`.
        """
        limit = running[: len(self)] + room
        return self.first + np.searchsorted(running, limit, side="right") - 1


Refine = Callable[[Entries], Entries]  # complete documents → the entries that are kept


def visit_order(
    documents: Documents,
    key: int,
    *,
    pieces: PlanPieces,
    order: ShuffleUnit = "documents",
    longest: int | None = None,
    values: Callable[[int, int], Ints] | None = None,
    refine: Refine = lambda entries: entries,
    gaps: bool = False,
) -> VisitOrder:
    """The order of a visit; sentences of more than `longest` tokens become several entries.

    `values` gives a number for each of a range of sentences. `refine` may drop entries, and leave
    `gaps` in documents.
    """
    scattered = gaps or order == "sentences"
    if pieces.find("visit", 0) is None:
        shuffle = Shuffle(sentences_of(documents, values), key, pieces)
        count = len(shuffle) if order == "documents" else 1

        def make(number: int) -> Iterator[PlanStretch]:
            by_document = order == "documents"
            shuffled = shuffle.portion(number) if by_document else _reshuffled(documents, shuffle)
            for units in shuffled:
                yield _columns(refine(_entries_of(units, longest)), scattered=scattered)
                release(documents.sentences, documents.documents, documents.marks)

        visited = pieces.all_pieces("visited", count, make)
        pieces.piece("visit", 0, lambda _: _concatenate(visited))
        pieces.drop(shuffle.name, "sizes", "dealt anew", "visited")
    visit, counts = pieces.piece("visit", 0, lambda _: ())
    columns: Mapping[str, Any] = visit
    return VisitOrder(
        columns["running"],
        columns["bounds"],
        columns["firsts"],
        columns["starts"] if scattered else None,
        columns["values"],
        split=counts["split"],
        dropped=counts["dropped"],
    )


def _columns(part: Entries, *, scattered: bool) -> PlanStretch:
    """A part of a visit as columns of sizes, which do not depend on earlier parts."""
    none = np.zeros(0, dtype=np.int64)
    firsts, lasts = part.starts[part.bounds[:-1]], part.bounds[1:] - 1
    tokens = np.diff(offsets(part.sizes)[part.bounds])
    assert (tokens < 1 << 32).all(), "differences modulo 2³² would not do"
    gaps = part.starts[lasts] + part.sizes[lasts] - firsts - tokens
    assert scattered or not gaps.any(), "sentences of a document follow each other in the store"
    columns: dict[str, Array] = {
        "firsts": firsts,
        "starts": part.starts if scattered else none,
        "sizes": part.sizes.astype(np.uint32),
        "entries": np.diff(part.bounds),
        "values": (none if part.values is None else part.values).astype(np.int32),
    }
    return PlanStretch(columns, {"split": part.split, "dropped": part.dropped})


def _concatenate(parts: Iterable[PlanStretch]) -> Iterator[PlanStretch]:
    """Concatenate the parts of a visit, with the offsets of entries and documents."""
    running = bounds = np.zeros(1, dtype=np.int64)
    for number, (columns, counts) in enumerate(parts):
        running = running[-1] + offsets(columns["sizes"])
        bounds = bounds[-1] + offsets(columns["entries"])
        cut = min(number, 1)  # this part's first offset is the last part's end
        running_32 = running[cut:].astype(np.uint32)
        kept = {name: columns[name] for name in ("firsts", "starts", "values")}
        yield PlanStretch({**kept, "running": running_32, "bounds": bounds[cut:]}, counts)
        release(*columns.values())


def entries(
    starts: Ints, sizes: Ints, document: Ints, *, values: Ints | None = None, split: int = 0
) -> Entries:
    """Entries grouped by document; empty entries and empty documents are dropped."""
    filled = sizes > 0
    starts, sizes, document = starts[filled], sizes[filled], document[filled]
    new = np.ones(len(document), dtype=bool)
    new[1:] = document[1:] != document[:-1]
    bounds = np.append(np.flatnonzero(new), len(document))
    values = None if values is None else values[filled]
    return Entries(starts, sizes, bounds, values, split)


def _entries_of(dealt: Shuffled, longest: int | None) -> Entries:
    """The entries of shuffled documents."""
    starts, sizes, split = dealt.starts, dealt.sizes, 0
    document = np.repeat(np.arange(len(dealt.counts)), dealt.counts)
    if longest is not None:
        parts = -(-sizes // longest)
        split = int((parts > 1).sum())
        if split:
            part = ranges(np.zeros_like(parts), parts)
            starts = np.repeat(starts, parts) + part * longest
            sizes = np.minimum(np.repeat(sizes, parts) - part * longest, longest)
            document = np.repeat(document, parts)
    return entries(starts, sizes, document, values=dealt.values, split=split)


def _reshuffled(documents: Documents, shuffle: Shuffle) -> Iterator[Shuffled]:
    """Yield documents with the sentence counts of a shuffle's, filled with shuffled sentences."""

    def sizes(_: int) -> Iterator[PlanStretch]:
        for dealt in shuffle:
            yield PlanStretch({"sizes": dealt.counts[dealt.counts > 0]}, {})

    key, pieces = int(mix(shuffle.key, -1)), shuffle.pieces
    counts = pieces.piece("sizes", 0, sizes).columns["sizes"]
    rest, document = (np.zeros(0, dtype=np.int64),) * 2, 0
    for dealt in Shuffle(single_sentences(documents), key, pieces, "dealt anew"):
        starts, lengths = (
            np.concatenate(pair) for pair in zip(rest, (dealt.starts, dealt.sizes), strict=True)
        )
        ends = np.cumsum(counts[document : document + len(starts)])
        complete = int(np.searchsorted(ends, len(starts), side="right"))
        cut = int(ends[complete - 1]) if complete else 0
        sizes_ = counts[document : document + complete]
        yield Shuffled(np.arange(complete), np.asarray(sizes_), starts[:cut], lengths[:cut])
        rest, document = (starts[cut:], lengths[cut:]), document + complete

"""The visit to the sentences of a corpus, and windows of it.

Documents are shuffled once by the key, sentences never, unless the comparison with a corpus of
shuffled sentences is wanted (BERT §3.1: document-level text is critical).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from clozelab.blocks.planned import PiecesInMemory, PlanPieces
from clozelab.blocks.shuffle import Shuffle, Shuffled, release, sentences_of, single_sentences
from clozelab.contracts import Array, Bools, Documents, Ints, PlanStretch
from clozelab.keys import mix
from clozelab.packed import offsets, ranges

ShuffleUnit = Literal["documents", "sentences"]

_WINDOW = 1 << 16  # entries planned at a time: their arrays stay in a core's cache
_PART = 16  # windows in a part, which one process plans


@dataclass(frozen=True)
class Entries:
    """Sentences, or parts of over-long ones, of some whole documents in visiting order."""

    starts: Ints  # [M] first token in the store
    sizes: Ints  # [M] tokens, at least one
    bounds: Ints  # [D + 1] first entry of each document, which has at least one
    values: Ints | None = None  # [M] what a format knows of each entry
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
        """[M] the entry after the last of each entry's document."""
        return self.bounds[self.documents + 1]


@dataclass(frozen=True)
class VisitOrder:
    """All entries of a visit, in few bytes: partners are looked up in them at random.

    Entries of a document follow each other in the store, too, unless they are scattered. So where
    one begins is known from where its document does, and from the tokens between.
    """

    running: NDArray[np.uint32]  # [M + 1] tokens before each entry, modulo 2³²
    bounds: Ints  # [D + 1] first entry of each document, which has at least one
    firsts: Ints  # [D] first token in the store of each document
    scattered: Ints | None = None  # [M] first token of each entry, where they are scattered
    values: NDArray[np.int32] | None = None  # [M] what a format knows of each entry
    split: int = 0  # sentences that were split
    dropped: int = 0  # documents that were left out though they have tokens

    def __len__(self) -> int:
        return len(self.running) - 1

    def tokens(self, first: Ints, last: Ints) -> Ints:
        """Tokens from some entries up to others of the same document."""
        return (self.running[last] - self.running[first]).astype(np.int64)

    def starts(self, entries: Ints, documents: Ints) -> Ints:
        """First token in the store of some entries, of given documents."""
        if self.scattered is not None:
            return self.scattered[entries]
        return self.firsts[documents] + self.tokens(self.bounds[documents], entries)

    def sizes_of(self, first: int, last: int) -> Ints:
        """Tokens of some entries in a row."""
        return np.diff(self.running[first : last + 1]).astype(np.int64)

    def values_of(self, first: int, last: int) -> Array:
        """The values of some entries in a row."""
        assert self.values is not None
        return self.values[first:last]

    def begins(self, entries: Ints) -> Bools:
        """Which of some entries begin a document."""
        return np.asarray(self.bounds[np.searchsorted(self.bounds, entries)] == entries)

    def parts(self) -> range:
        """Where the parts begin in which blocks are planned; one, if there is no entry."""
        return range(0, max(len(self), 1), _WINDOW * _PART)

    def part(self, first: int) -> Iterator[Window]:
        """The windows of a part."""
        yield from self.windows(first, min(first + _WINDOW * _PART, len(self)))

    def windows(self, first: int = 0, last: int | None = None) -> Iterator[Window]:
        """The entries, some at a time; one window without any, if there is none."""
        last = len(self) if last is None else last
        for begin in range(first, max(last, first + 1), _WINDOW):
            yield Window(self, begin, min(begin + _WINDOW, last))


@dataclass(frozen=True)
class Window:
    """Some entries that follow each other."""

    visits: VisitOrder
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def is_first(self) -> bool:
        """Whether the visit begins with it."""
        return self.first == 0

    @cached_property
    def here(self) -> Ints:
        """[n] the entries."""
        return np.arange(self.first, self.last)

    @cached_property
    def documents(self) -> Ints:
        """[n] the document of each, in visiting order."""
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
        """[n] the entry after the last of each entry's document."""
        return self.visits.bounds[self.documents + 1]

    def segments(self, first: Ints, stops: Ints) -> Ints:
        """[1, 3, B] blocks of one segment that begin in it; `stops` says where each entry's ends.

        First entry, the one after the last, document.
        """
        row = first - self.first
        return np.array([[first, stops[row], self.documents[row]]])

    def running(self, room: int, sizes: Callable[[int, int], Array] | None = None) -> Ints:
        """Tokens before each entry from the window's first on, up to `room` past its last.

        Another size than that in tokens may be counted.
        """
        reach = room
        while True:
            end = min(self.last + reach + 1, len(self.visits))
            running = offsets((sizes or self.visits.sizes_of)(self.first, end))
            if end == len(self.visits) or running[-1] - running[len(self)] > room:
                return running
            reach *= 2


Refine = Callable[[Entries], Entries]  # some whole documents → what is left of them


def visit_order(
    documents: Documents,
    key: int,
    *,
    order: ShuffleUnit = "documents",
    longest: int | None = None,
    values: Callable[[int, int], Ints] | None = None,
    refine: Refine = lambda entries: entries,
    gaps: bool = False,
    pieces: PlanPieces | None = None,
) -> VisitOrder:
    """Lay out the visit; sentences of more than `longest` tokens become several entries.

    `values` gives a number for each of a range of sentences. `refine` may leave `gaps` in
    documents.
    """
    pieces = pieces or PiecesInMemory()
    scattered = gaps or order == "sentences"
    if pieces.find("visit", 0) is None:
        shuffle = Shuffle(sentences_of(documents, values), key, pieces)
        count = len(shuffle) if order == "documents" else 1

        def make(number: int) -> Iterator[PlanStretch]:
            by_document = order == "documents"
            dealt = shuffle.portion(number) if by_document else _dealt_anew(documents, shuffle)
            for some in dealt:
                yield _columns(refine(_entries_of(some, longest)), scattered=scattered)
                release(documents.sentences, documents.documents, documents.marks)

        visited = pieces.all_pieces("visited", count, make)
        pieces.piece("visit", 0, lambda _: _end_to_end(visited))
        pieces.drop(shuffle.name, "sizes", "dealt anew", "visited")
    whole, counts = pieces.piece("visit", 0, lambda _: ())
    columns: Mapping[str, Any] = whole
    return VisitOrder(
        columns["running"],
        columns["bounds"],
        columns["firsts"],
        columns["starts"] if scattered else None,
        columns["values"],
        split=counts["split"],
        dropped=counts["dropped"],
    )


def _columns(some: Entries, *, scattered: bool) -> PlanStretch:
    """A part of a visit as sizes, which do not depend on what comes before."""
    none = np.zeros(0, dtype=np.int64)
    firsts, lasts = some.starts[some.bounds[:-1]], some.bounds[1:] - 1
    tokens = np.diff(offsets(some.sizes)[some.bounds])
    assert (tokens < 1 << 32).all(), "differences modulo 2³² would not do"
    gaps = some.starts[lasts] + some.sizes[lasts] - firsts - tokens
    assert scattered or not gaps.any(), "sentences of a document follow each other in the store"
    columns: dict[str, Array] = {
        "firsts": firsts,
        "starts": some.starts if scattered else none,
        "sizes": some.sizes.astype(np.uint32),
        "entries": np.diff(some.bounds),
        "values": (none if some.values is None else some.values).astype(np.int32),
    }
    return PlanStretch(columns, {"split": some.split, "dropped": some.dropped})


def _end_to_end(parts: Sequence[PlanStretch]) -> Iterator[PlanStretch]:
    """The parts of a visit in one, with where each entry and each document begins."""
    running = bounds = np.zeros(1, dtype=np.int64)
    for number, (columns, counts) in enumerate(parts):
        running = running[-1] + offsets(columns["sizes"])
        bounds = bounds[-1] + offsets(columns["entries"])
        cut = min(number, 1)  # where the last part ended is where this one begins
        whole = running[cut:].astype(np.uint32)
        kept = {name: columns[name] for name in ("firsts", "starts", "values")}
        yield PlanStretch({**kept, "running": whole, "bounds": bounds[cut:]}, counts)
        release(*columns.values())


def entries(
    starts: Ints, sizes: Ints, document: Ints, *, values: Ints | None = None, split: int = 0
) -> Entries:
    """Entries by their documents; empty ones, and documents left without any, are dropped."""
    filled = sizes > 0
    starts, sizes, document = starts[filled], sizes[filled], document[filled]
    new = np.ones(len(document), dtype=bool)
    new[1:] = document[1:] != document[:-1]
    bounds = np.append(np.flatnonzero(new), len(document))
    values = None if values is None else values[filled]
    return Entries(starts, sizes, bounds, values, split)


def _entries_of(dealt: Shuffled, longest: int | None) -> Entries:
    """The entries of some documents."""
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


def _dealt_anew(documents: Documents, shuffle: Shuffle) -> Iterator[Shuffled]:
    """Documents of the sizes that those of a shuffle have, with sentences dealt anew."""

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
        whole = int(np.searchsorted(ends, len(starts), side="right"))
        cut = int(ends[whole - 1]) if whole else 0
        some = counts[document : document + whole]
        yield Shuffled(np.arange(whole), np.asarray(some), starts[:cut], lengths[:cut])
        rest, document = (starts[cut:], lengths[cut:]), document + whole

"""Blocks of whole sentences, across documents or of one document (RoBERTa §4.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from clozelab.blocks.block_table import Chain, Length, TableFormat, tabulate
from clozelab.blocks.planned import PlanPieces
from clozelab.blocks.visits import Entries, ShuffleUnit, VisitOrder, Window, entries, visit_order
from clozelab.contracts import Bools, Documents, Ints, PlanStretch
from clozelab.packed import offsets

_SPECIALS = 2
_LEAD = 1 << 13  # entries after which chains of blocks coincide, wherever they began


@dataclass(frozen=True)
class FullSentences(TableFormat):
    """FULL-SENTENCES: `[CLS] sentences [SEP]`, with one more `[SEP]` where a document begins.

    Every sentence occurs once; one that is longer than a block is split.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"causal_blocks"})

    length: Length = 512  # the most tokens of a block, specials included
    order: ShuffleUnit = "documents"

    def visits(self, documents: Documents, key: int, pieces: PlanPieces) -> VisitOrder:
        """The order in which a pass visits the sentences."""
        room = self.length - _SPECIALS
        return visit_order(documents, key, order=self.order, longest=room, pieces=pieces)

    def entrances(self, visits: VisitOrder, entry: int) -> Ints:
        """As many consecutive entries as a block can have, one of which begins a block."""
        first = max(entry - _LEAD, 0)
        return np.arange(first, first + self.length) if first else np.array([0])

    def table(self, window: Window, key: int, chain: Chain) -> PlanStretch:
        """The table of the blocks that begin in a window."""
        room, visits = self.length - _SPECIALS, window.visits

        def sizes(first: int, last: int) -> Ints:
            """Tokens of entries; a document that begins inside a block costs a separator."""
            return visits.sizes_of(first, last) + visits.begins(np.arange(first, last))

        # Where it begins the block, a document costs none.
        fits = window.fits(window.running(room + 1, sizes), room + visits.begins(window.here))
        first = chain.follow(window, fits)
        return tabulate(window, window.segments(first, fits), crossing=True)


@dataclass(frozen=True)
class DocSentences(TableFormat):
    """DOC-SENTENCES: `[CLS] sentences of one document [SEP]`; documents of one token are dropped.

    `compat = "spanbert"` is the published code (SpanBERT §3.3): over-long sentences are dropped
    rather than split, and if a document's last sentence is over-long, its unfinished block is lost.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"causal_blocks"})

    length: Length = 512  # the most tokens of a block, specials included
    order: ShuffleUnit = "documents"
    compat: Literal["none", "spanbert"] = "none"

    def visits(self, documents: Documents, key: int, pieces: PlanPieces) -> VisitOrder:
        """The order in which a pass visits the sentences."""
        return visit_order(
            documents,
            key,
            order=self.order,
            longest=None if self.compat == "spanbert" else self.length - _SPECIALS,
            refine=self._refine,
            gaps=self.compat == "spanbert",
            pieces=pieces,
        )

    def table(self, window: Window, key: int, chain: Chain) -> PlanStretch:
        """The table of the blocks that begin in a window."""
        room, visits = self.length - _SPECIALS, window.visits
        assert visits.values is not None  # whether the document's unfinished block is lost
        stops = np.minimum(window.fits(window.running(room), room), window.ends)
        first = chain.follow(window, stops)
        stop, end = stops[first - window.first], window.ends[first - window.first]
        lost: Bools = (visits.values[first] > 0) & (stop == end)
        counts = {
            "documents of one token dropped": visits.dropped if window.is_first else 0,
            "blocks lost": int(lost.sum()),
        }
        return tabulate(window, window.segments(first[~lost], stops), counts=counts)

    def _refine(self, visits: Entries) -> Entries:
        """The entries that are kept; the values say whose unfinished block is lost."""
        document = visits.documents
        single = np.diff(offsets(visits.sizes)[visits.bounds]) <= 1
        sizes = np.where(single[document], 0, visits.sizes)
        loses = np.zeros(len(visits), dtype=np.int64)
        if self.compat == "spanbert":
            long = visits.sizes > self.length - _SPECIALS
            loses[long[visits.ends - 1]] = 1
            sizes[long] = 0
        kept = entries(visits.starts, sizes, document, values=loses, split=visits.split)
        return replace(kept, dropped=int(single.sum()))

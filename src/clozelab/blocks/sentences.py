"""Whole sentences up to the length: crossing documents, or of one document (RoBERTa §4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from clozelab.blocks.block_table import Chain, Length, TableFormat, tabulate
from clozelab.blocks.visits import ShuffleUnit, VisitOrder, entries, visit_order
from clozelab.contracts import Bools, Documents, Ints, PlanStretch

_SPECIALS = 2


@dataclass(frozen=True)
class FullSentences(TableFormat):
    """FULL-SENTENCES: `[CLS] sentences [SEP]`, with one more `[SEP]` where a document begins.

    Every sentence occurs once; one that no block could hold is split.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"causal_blocks"})

    length: Length = 512  # the most tokens of a block, specials included
    order: ShuffleUnit = "documents"

    def tables(self, documents: Documents, key: int, folder: Path | None) -> Iterator[PlanStretch]:
        """The tables of a pass."""
        room, chain = self.length - _SPECIALS, Chain()
        visits = visit_order(documents, key, order=self.order, longest=room, folder=folder)

        def sizes(first: int, last: int) -> Ints:
            """Tokens of entries; entering a document inside a block costs a separator."""
            return visits.sizes_of(first, last) + visits.begins(np.arange(first, last))

        for window in visits.windows():
            running = window.running(room + 1, sizes)
            opens = visits.begins(window.here)
            most = running[: len(window)] + opens + room
            fits = window.first + np.searchsorted(running, most, side="right") - 1
            first = chain.follow(window, fits)
            blocks = np.array([[first, fits[first - window.first]]])
            yield tabulate(window, blocks, crossing=True)


@dataclass(frozen=True)
class DocSentences(TableFormat):
    """DOC-SENTENCES: `[CLS] sentences of one document [SEP]`; a document of one token is dropped.

    `compat = "spanbert"` is the published code (SpanBERT §3.3): over-long sentences are dropped
    rather than split, and with a document's last sentence over-long its unfinished block is lost.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"causal_blocks"})

    length: Length = 512  # the most tokens of a block, specials included
    order: ShuffleUnit = "documents"
    compat: Literal["none", "spanbert"] = "none"

    def tables(self, documents: Documents, key: int, folder: Path | None) -> Iterator[PlanStretch]:
        """The tables of a pass."""
        room, chain = self.length - _SPECIALS, Chain()
        visits = visit_order(
            documents,
            key,
            order=self.order,
            longest=None if self.compat == "spanbert" else room,
            refine=self._refined,
            folder=folder,
        )
        assert visits.values is not None  # whether the document's unfinished block is lost
        for window in visits.windows():
            running = window.running(room)
            most = running[: len(window)] + room
            fits = window.first + np.searchsorted(running, most, side="right") - 1
            stops = np.minimum(fits, window.ends)
            first = chain.follow(window, stops)
            stop, end = stops[first - window.first], window.ends[first - window.first]
            lost: Bools = (visits.values[first] > 0) & (stop == end)
            counts = {
                "documents of one token dropped": visits.dropped if window.is_first else 0,
                "blocks lost": int(lost.sum()),
            }
            yield tabulate(window, np.array([[first[~lost], stop[~lost]]]), counts=counts)

    def _refined(self, visits: VisitOrder) -> VisitOrder:
        """What is left of some documents; the values say of which the unfinished block is lost."""
        document = visits.documents
        single = np.diff(visits.running[visits.bounds]) <= 1
        sizes = np.where(single[document], 0, visits.sizes)
        loses = np.zeros(len(visits), dtype=np.int64)
        if self.compat == "spanbert":
            long = visits.sizes > self.length - _SPECIALS
            loses[long[visits.ends - 1]] = 1
            sizes[long] = 0
        left = entries(visits.starts, sizes, document, values=loses, split=visits.split)
        return replace(left, dropped=int(single.sum()))

"""Whole sentences up to the length: crossing documents, or of one document (RoBERTa §4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from clozelab.blocks.block_table import (
    BlockTable,
    Length,
    ShuffleUnit,
    chain,
    entries,
    tabulate,
    visit_order,
)
from clozelab.contracts import Bools, Documents
from clozelab.packed import offsets
from clozelab.ranges import Part

_SPECIALS = 2


@dataclass(frozen=True)
class FullSentences(Part):
    """FULL-SENTENCES: `[CLS] sentences [SEP]`, with one more `[SEP]` where a document begins.

    Every sentence occurs once; one that no block could hold is split.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"causal_blocks"})

    length: Length = 512  # the most tokens of a block, specials included
    order: ShuffleUnit = "documents"

    def plan(self, documents: Documents, key: int) -> BlockTable:
        """Plan a pass; `key` stands for (seed, purpose, copy)."""
        room = self.length - _SPECIALS
        visits = visit_order(documents, key, order=self.order, longest=room)
        opens = np.zeros(len(visits), dtype=np.int64)
        opens[visits.bounds[:-1]] = 1  # entering a document inside a block costs a separator
        running = offsets(visits.sizes + opens)
        fits = np.searchsorted(running, running[:-1] + opens + room, side="right") - 1
        first = chain(fits)
        return tabulate(documents, visits, np.array([[first, fits[first]]]))


@dataclass(frozen=True)
class DocSentences(Part):
    """DOC-SENTENCES: `[CLS] sentences of one document [SEP]`; a document of one token is dropped.

    `compat = "spanbert"` is the published code (SpanBERT §3.3): over-long sentences are dropped
    rather than split, and with a document's last sentence over-long its unfinished block is lost.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"causal_blocks"})

    length: Length = 512  # the most tokens of a block, specials included
    order: ShuffleUnit = "documents"
    compat: Literal["none", "spanbert"] = "none"

    def plan(self, documents: Documents, key: int) -> BlockTable:
        """Plan a pass; `key` stands for (seed, purpose, copy)."""
        room = self.length - _SPECIALS
        spanbert = self.compat == "spanbert"
        visits = visit_order(documents, key, order=self.order, longest=None if spanbert else room)
        tokens = np.diff(visits.running[visits.bounds])
        fits = (tokens > 1)[visits.documents]
        loses = np.zeros(len(visits), dtype=bool)  # the document's unfinished block is lost
        if spanbert:
            long = visits.sizes > room
            loses = long[visits.ends - 1]
            fits &= ~long
        sizes, loses = np.where(fits, visits.sizes, 0), loses[fits]
        visits = entries(visits.starts, sizes, visits.documents, split=visits.split)
        stops = np.searchsorted(visits.running, visits.running[:-1] + room, side="right") - 1
        stops = np.minimum(stops, visits.ends)
        first = chain(stops)
        lost: Bools = loses[first] & (stops[first] == visits.ends[first])
        notes = {
            "documents of one token dropped": int((tokens <= 1).sum()),
            "blocks lost": int(lost.sum()),
        }
        first = first[~lost]
        return tabulate(documents, visits, np.array([[first, stops[first]]]), notes=notes)

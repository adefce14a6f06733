"""One sentence per block, for sentence vectors (SimCSE §6.1: at most 32 tokens of each).

A longer sentence is truncated, as a model would also read only its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from clozelab.blocks.block_table import Chain, Length, TableFormat, tabulate
from clozelab.blocks.planned import PlanPieces
from clozelab.blocks.visits import Entries, VisitOrder, Window, entries, visit_order
from clozelab.contracts import Documents, Ints, Plan, PlanStretch
from clozelab.errors import UserError
from clozelab.ranges import PositiveInt, between

_SPECIALS = 2


@dataclass(frozen=True)
class SingleSentences(TableFormat):
    """`[CLS] sentence [SEP]`; a sentence of fewer than `shortest` tokens is left out."""

    provides: ClassVar[frozenset[str]] = frozenset({"causal_blocks"})

    length: Length = 32  # the most tokens of a block, specials included
    shortest: PositiveInt = 1  # the fewest tokens of a sentence, specials not counted

    def visits(self, documents: Documents, key: int, pieces: PlanPieces) -> VisitOrder:
        """The order in which a pass visits the sentences."""
        gaps = self.shortest > 1
        return visit_order(documents, key, refine=self._refine, gaps=gaps, pieces=pieces)

    def entrances(self, visits: VisitOrder, entry: int) -> Ints:
        """The entry itself: every entry is a block."""
        return np.array([entry])

    def table(self, window: Window, key: int, chain: Chain) -> PlanStretch:
        """The table of the blocks that begin in a window."""
        sizes = window.visits.sizes_of(window.first, window.last)
        over = np.maximum(sizes - (self.length - _SPECIALS), 0)
        counts = {
            "sentences cut": int((over > 0).sum()),
            self._left_out: window.visits.dropped if window.is_first else 0,
        }
        segments = window.segments(window.here, window.here + 1)
        dropped = np.array([[np.zeros_like(over), over]])
        return tabulate(window, segments, dropped=dropped, counts=counts)

    @property
    def _left_out(self) -> str:
        return "short sentences left out"

    def _refine(self, visits: Entries) -> Entries:
        """The entries without short sentences."""
        short = visits.sizes < self.shortest
        sizes = np.where(short, 0, visits.sizes)
        kept = entries(visits.starts, sizes, visits.documents)
        return replace(kept, dropped=int(short.sum()))


@dataclass(frozen=True)
class SentenceRows(SingleSentences):
    """Rows of texts that belong together: the first sentences of each document, one per block.

    A row is a text, its positive and, if `views` is 3, its hard negative (SimCSE §4), in
    consecutive blocks. A document with fewer sentences is left out, and so is one with a sentence
    of fewer than `shortest` tokens among them; of one with more, the rest is.
    """

    views: Annotated[int, between(2, 3, "a row is a pair, 2, or a pair and its negative, 3")] = 2

    def opened(self, documents: Documents, key: int, table: PlanStretch) -> Plan:
        """The plan of a table; an empty one is refused, with its own message."""
        if len(table.columns["first"]) == 1 and len(documents.ids):
            what = "a text, its positive and its negative" if self.views == 3 else "pairs"
            raise UserError(
                f"the corpus has no document of {self.views} sentences, which blocks.views ="
                f" {self.views} needs; add text in which each document is {what}"
            )
        return super().opened(documents, key, table)

    @property
    def _left_out(self) -> str:
        return "documents of too few sentences left out"

    def _refine(self, visits: Entries) -> Entries:
        """The first sentences of documents that have enough of them, none of which is too short."""
        document = visits.documents
        position = np.arange(len(visits)) - visits.bounds[document]
        fits = (position < self.views) & (visits.sizes >= self.shortest)
        complete = np.bincount(document[fits], minlength=len(visits.bounds) - 1) == self.views
        sizes = np.where(fits & complete[document], visits.sizes, 0)
        kept = entries(visits.starts, sizes, document)
        return replace(kept, dropped=len(visits.bounds) - len(kept.bounds))

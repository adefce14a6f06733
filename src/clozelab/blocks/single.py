"""One sentence a block, as sentence vectors are learned (SimCSE §6.1: at most 32 tokens of each).

The end of a longer sentence is dropped, as its vector is to be that of what a model reads of it.
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
        return visit_order(documents, key, refine=self._refined, gaps=gaps, pieces=pieces)

    def entrances(self, visits: VisitOrder, entry: int) -> Ints:
        """Every entry is a block."""
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

    def _refined(self, visits: Entries) -> Entries:
        """The visit without short sentences."""
        short = visits.sizes < self.shortest
        sizes = np.where(short, 0, visits.sizes)
        left = entries(visits.starts, sizes, visits.documents)
        return replace(left, dropped=int(short.sum()))


@dataclass(frozen=True)
class SentenceRows(SingleSentences):
    """Rows of texts that belong together: the first sentences of each document, a block each.

    A row is a text, its positive and, where `views` is 3, its hard negative (SimCSE §4). Blocks of
    a row follow one another. A document with fewer sentences is left out, and of one with more the
    rest.
    """

    views: Annotated[int, between(2, 3, "a row is a pair, 2, or a pair and its negative, 3")] = 2

    def opened(self, documents: Documents, key: int, table: PlanStretch) -> Plan:
        """The plan that a table is; refused without a row, which has a reason of its own."""
        if len(table.columns["first"]) == 1 and len(documents.ids):
            what = "a text, its positive and its negative" if self.views == 3 else "pairs"
            raise UserError(
                f"the corpus has no document of {self.views} sentences, and blocks.views ="
                f" {self.views} makes rows of them; add text in which each document is {what}"
            )
        return super().opened(documents, key, table)

    @property
    def _left_out(self) -> str:
        return "documents of too few sentences left out"

    def _refined(self, visits: Entries) -> Entries:
        """The visit to the first sentences of documents that have enough of them."""
        whole = super()._refined(visits)
        counts = np.diff(whole.bounds)
        place = np.arange(len(whole)) - whole.bounds[whole.documents]
        wanted = (counts >= self.views)[whole.documents] & (place < self.views)
        left = entries(whole.starts, np.where(wanted, whole.sizes, 0), whole.documents)
        return replace(left, dropped=len(visits.bounds) - 1 - (len(left.bounds) - 1))

"""DOC-SENTENCES: whole sentences of one document (RoBERTa §4.2, SpanBERT §3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from clozelab.blocks.block_table import BlockTable, Length, singles, tabulate
from clozelab.blocks.visit_order import ShuffleUnit, VisitOrder, chain, entries, visit_order
from clozelab.contracts import Bools, Documents, Ints
from clozelab.ranges import Checked

_SPECIALS = 2


@dataclass(frozen=True)
class DocSentences(Checked):
    """`[CLS] sentences of one document [SEP]`; documents of a single token are dropped.

    `compat = "spanbert"` is the published code: over-long sentences are dropped rather than
    split, and with a document's last sentence over-long its unfinished block is lost.
    """

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()

    length: Length = 512  # the most tokens of a block, specials included
    order: ShuffleUnit = "documents"
    compat: Literal["none", "spanbert"] = "none"

    def plan(self, documents: Documents, key: int) -> BlockTable:
        """Plan a pass; `key` stands for (seed, purpose, copy)."""
        room = self.length - _SPECIALS
        spanbert = self.compat == "spanbert"
        visits = visit_order(documents, key, order=self.order, longest=None if spanbert else room)
        tokens = np.diff(visits.running[visits.bounds])
        keep = (tokens > 1)[visits.documents]
        lost = np.zeros(len(visits), dtype=bool)
        if spanbert:
            long = visits.sizes > room
            lost = long[visits.ends - 1]
            keep &= ~long
        dropped = int((tokens <= 1).sum())
        visits, lost = _kept(visits, keep), lost[keep]
        first = chain(self._following(visits, room))
        last = np.append(first[1:], len(visits))
        gone: Bools = lost[first] & (last == visits.ends[first])
        notes = {
            "blocks": int((~gone).sum()),
            "sentences split": visits.split,
            "documents of one token dropped": dropped,
            "blocks lost": int(gone.sum()),
        }
        return tabulate(documents, visits, singles(first[~gone], last[~gone]), notes=notes)

    def _following(self, visits: VisitOrder, room: int) -> Ints:
        fits = np.searchsorted(visits.running, visits.running[:-1] + room, side="right") - 1
        return np.minimum(fits, visits.ends)


def _kept(visits: VisitOrder, keep: Bools) -> VisitOrder:
    """The walk without some entries."""
    if keep.all():
        return visits
    return entries(
        visits.starts[keep], visits.sizes[keep], visits.documents[keep], split=visits.split
    )

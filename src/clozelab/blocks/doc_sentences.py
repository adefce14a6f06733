"""DOC-SENTENCES: whole sentences of one document (RoBERTa §4.2, SpanBERT §3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from clozelab.blocks.table import Length, Table, singles, tabulate
from clozelab.blocks.walk import Order, Walk, chain, entries, walk
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
    order: Order = "documents"
    compat: Literal["none", "spanbert"] = "none"

    def plan(self, documents: Documents, key: int) -> Table:
        """Plan a pass; `key` stands for (seed, purpose, copy)."""
        room = self.length - _SPECIALS
        spanbert = self.compat == "spanbert"
        way = walk(documents, key, order=self.order, longest=None if spanbert else room)
        tokens = np.diff(way.running[way.bounds])
        keep = (tokens > 1)[way.documents]
        lost = np.zeros(len(way), dtype=bool)
        if spanbert:
            long = way.sizes > room
            lost = long[way.ends - 1]
            keep &= ~long
        dropped = int((tokens <= 1).sum())
        way, lost = _kept(way, keep), lost[keep]
        first = chain(self._following(way, room))
        last = np.append(first[1:], len(way))
        gone: Bools = lost[first] & (last == way.ends[first])
        notes = {
            "blocks": int((~gone).sum()),
            "sentences split": way.split,
            "documents of one token dropped": dropped,
            "blocks lost": int(gone.sum()),
        }
        return tabulate(documents, way, singles(first[~gone], last[~gone]), notes=notes)

    def _following(self, way: Walk, room: int) -> Ints:
        fits = np.searchsorted(way.running, way.running[:-1] + room, side="right") - 1
        return np.minimum(fits, way.ends)


def _kept(way: Walk, keep: Bools) -> Walk:
    """The walk without some entries."""
    if keep.all():
        return way
    return entries(way.starts[keep], way.sizes[keep], way.documents[keep], split=way.split)

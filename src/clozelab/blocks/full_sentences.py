"""FULL-SENTENCES: whole sentences up to the length, crossing documents (RoBERTa §4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clozelab.blocks.block_table import BlockTable, Length, singles, tabulate
from clozelab.blocks.visit_order import ShuffleUnit, chain, visit_order
from clozelab.contracts import Documents
from clozelab.packed import offsets
from clozelab.ranges import Checked

_SPECIALS = 2


@dataclass(frozen=True)
class FullSentences(Checked):
    """`[CLS] sentences [SEP]`, with one more `[SEP]` wherever a block enters a new document.

    Every sentence occurs once; one that no block could hold is split.
    """

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()

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
        last = np.append(first[1:], len(visits))
        notes = {"blocks": len(first), "sentences split": visits.split}
        return tabulate(documents, visits, singles(first, last), notes=notes)

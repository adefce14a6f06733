"""SOP pairs: two consecutive segments of one document, in order or swapped (ALBERT §3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from clozelab.blocks.block_table import BlockTable, tabulate
from clozelab.blocks.pairs import (
    PairLength,
    chunks,
    draw,
    other_document,
    run_from,
    swapped,
    trimmed,
)
from clozelab.blocks.visit_order import ShuffleUnit, chain, visit_order
from clozelab.contracts import Documents
from clozelab.keys import coin_flips, mix, randint
from clozelab.ranges import Checked, Share

_SPECIALS = 3


@dataclass(frozen=True)
class SentenceOrderPair(Checked):
    """`[CLS] A [SEP] B [SEP]`; label 1 when the two halves were swapped.

    A chunk of one sentence is skipped; `compat = "albert"` is the published code, which gave it
    a partner from another document and label 1.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"order"})
    needs: ClassVar[frozenset[str]] = frozenset()

    length: PairLength = 512  # the most tokens of a block, specials included
    short: Share = 0.1  # of the blocks: they get a random shorter length
    order: ShuffleUnit = "documents"
    compat: Literal["none", "albert"] = "none"

    def plan(self, documents: Documents, key: int) -> BlockTable:
        """Plan a pass; `key` stands for (seed, purpose, copy)."""
        albert = self.compat == "albert"
        room = self.length - _SPECIALS
        visits = visit_order(documents, key, order=self.order, longest=None if albert else room)
        parts = chunks(visits, key, room=room, short=self.short, by_document=albert)
        met = chain(parts.stop)
        single = parts.stop[met] - met == 1
        at = met if albert else met[~single]
        coin = coin_flips(mix(draw(key, "coin"), at))
        one, two = (at, parts.cut[at]), (parts.cut[at].copy(), parts.stop[at].copy())
        if albert and single.any():
            alone = at[single]
            other = other_document(visits, key, alone, redraws=10)
            lowest, limit = visits.bounds[other], visits.bounds[other + 1]
            first = lowest + randint(mix(draw(key, "start"), alone), limit - lowest)
            wanted = parts.target[alone] - visits.sizes[alone]
            two[0][single] = first
            two[1][single] = run_from(visits, first, wanted, limit=limit)
            coin[single] = False
        sides = swapped(coin, one, two)
        labels = (coin | single if albert else coin).astype(np.int64)
        notes = {
            "blocks": len(at),
            "swapped": float(labels.mean()) if len(at) else 0.0,
            "single sentences skipped": len(met) - len(at),
            "sentences split": visits.split,
        }
        laid = trimmed(visits, key, at, sides=sides, room=room)
        return tabulate(documents, visits, laid, labels=labels, notes=notes)

"""SEGMENT-PAIR + NSP: two stretches of sentences, the second the next one or not (BERT §3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from clozelab.blocks.block_table import BlockTable, tabulate
from clozelab.blocks.pairs import (
    Chunks,
    Negatives,
    PairLength,
    check_documents,
    chunks,
    draw,
    other_document,
    run_from,
    trimmed,
)
from clozelab.blocks.visit_order import ShuffleUnit, VisitOrder, chain, visit_order
from clozelab.contracts import Bools, Documents, Ints
from clozelab.keys import coin_flips, mix, randint
from clozelab.ranges import Checked, Share

_SPECIALS = 3


@dataclass(frozen=True)
class SegmentPair(Checked):
    """`[CLS] A [SEP] B [SEP]`; label 1 when B comes from elsewhere.

    A chunk of one sentence has no next half: `single = "force"` gives it a random partner,
    "skip" makes no block of it. `negatives = "same_document"` draws the harder partners from the
    same document. `compat = "google"` is the published code: one target length for a document,
    ten redraws of another document, over-long sentences truncated rather than split.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"next"})
    needs: ClassVar[frozenset[str]] = frozenset()

    length: PairLength = 512  # the most tokens of a block, specials included
    short: Share = 0.1  # of the blocks: they get a random shorter length
    single: Literal["force", "skip"] = "force"
    negatives: Negatives = "other_document"
    order: ShuffleUnit = "documents"
    compat: Literal["none", "google"] = "none"

    def plan(self, documents: Documents, key: int) -> BlockTable:
        """Plan a pass; `key` stands for (seed, purpose, copy)."""
        google = self.compat == "google"
        room = self.length - _SPECIALS
        visits = visit_order(documents, key, order=self.order, longest=None if google else room)
        if not google:
            check_documents(visits, self.negatives, what="segment_pair")
        parts = chunks(visits, key, room=room, short=self.short, by_document=google)
        here = np.arange(len(visits))
        single = parts.stop - here == 1
        random = coin_flips(mix(draw(key, "coin"), here)) | single
        if self.negatives == "same_document":
            possible = (here > visits.bounds[visits.documents]) | (parts.stop < visits.ends)
            random &= possible
            single &= ~possible | (self.single == "skip")
            skip = single
        else:
            skip = single & (self.single == "skip")
        met = chain(np.where(random & ~skip, parts.cut, parts.stop))
        at = met[~skip[met]]
        two = self._second(visits, parts, key, at=at, random=random[at])
        sides = ((at, parts.cut[at]), two)
        labels = random[at].astype(np.int64)
        notes = {
            "blocks": len(at),
            "random": float(labels.mean()) if len(at) else 0.0,
            "forced": float((parts.stop[at] - at == 1).mean()) if len(at) else 0.0,
            "single sentences skipped": len(met) - len(at),
            "sentences split": visits.split,
        }
        laid = trimmed(visits, key, at, sides=sides, room=room)
        return tabulate(documents, visits, laid, labels=labels, notes=notes)

    def _second(
        self, visits: VisitOrder, parts: Chunks, key: int, *, at: Ints, random: Bools
    ) -> tuple[Ints, Ints]:
        """The second segment of each block: the chunk's rest, or a run from elsewhere."""
        begin, end = parts.cut[at].copy(), parts.stop[at].copy()
        mine = at[random]
        wanted = parts.target[mine] - (visits.running[parts.cut[mine]] - visits.running[mine])
        start_key = mix(draw(key, "start"), mine)
        if self.negatives == "same_document":
            lowest = visits.bounds[visits.documents[mine]]
            before, after = mine - lowest, visits.ends[mine] - parts.stop[mine]
            pick = randint(start_key, before + after)
            first = np.where(pick < before, lowest + pick, parts.stop[mine] + pick - before)
            limit = np.where(pick < before, mine, visits.ends[mine])
        else:
            redraws = 10 if self.compat == "google" else None
            other = other_document(visits, key, mine, redraws=redraws)
            lowest, limit = visits.bounds[other], visits.bounds[other + 1]
            first = lowest + randint(start_key, limit - lowest)
        begin[random], end[random] = first, run_from(visits, first, wanted, limit=limit)
        return begin, end

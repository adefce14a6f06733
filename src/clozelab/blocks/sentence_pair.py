"""SENTENCE-PAIR + NSP: two single sentences, the second the true next one or not (RoBERTa §4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from clozelab.blocks.block_table import BlockTable, tabulate
from clozelab.blocks.pairs import (
    Negatives,
    PairLength,
    check_documents,
    draw,
    other_document,
    trimmed,
)
from clozelab.blocks.visit_order import ShuffleUnit, VisitOrder, visit_order
from clozelab.contracts import Documents, Ints
from clozelab.keys import coin_flips, mix, randint
from clozelab.ranges import Checked

_SPECIALS = 3


@dataclass(frozen=True)
class SentencePair(Checked):
    """`[CLS] A [SEP] B [SEP]` of one sentence each; every sentence is A once.

    A document's last sentence has no next one: `last = "skip"` keeps the coin fair, "random"
    gives it a random partner.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"next"})
    needs: ClassVar[frozenset[str]] = frozenset()

    length: PairLength = 512  # the most tokens of a block, specials included
    last: Literal["skip", "random"] = "skip"
    negatives: Negatives = "other_document"
    order: ShuffleUnit = "documents"

    def plan(self, documents: Documents, key: int) -> BlockTable:
        """Plan a pass; `key` stands for (seed, purpose, copy)."""
        visits = visit_order(documents, key, order=self.order, longest=None)
        check_documents(visits, self.negatives, what="sentence_pair")
        here = np.arange(len(visits))
        ending = here + 1 == visits.ends
        at = here if self.last == "random" else here[~ending]
        random = coin_flips(mix(draw(key, "coin"), at)) | ending[at]
        if self.negatives == "same_document":  # a document of two sentences has no third to draw
            random &= visits.ends[at] - visits.bounds[visits.documents[at]] > 2 - ending[at]
            at, random = at[random | ~ending[at]], random[random | ~ending[at]]
        second = at + 1
        second[random] = self._elsewhere(visits, key, at[random])
        labels = random.astype(np.int64)
        notes = {
            "blocks": len(at),
            "random": float(labels.mean()) if len(at) else 0.0,
            "last sentences skipped": len(visits) - len(at),
        }
        sides = ((at, at + 1), (second, second + 1))
        room = self.length - _SPECIALS
        laid = trimmed(visits, key, at, sides=sides, room=room)
        return tabulate(documents, visits, laid, labels=labels, notes=notes)

    def _elsewhere(self, visits: VisitOrder, key: int, at: Ints) -> Ints:
        """A random sentence for each: of another document, or of this one but not A or its next."""
        keys = mix(draw(key, "start"), at)
        if self.negatives == "other_document":
            other = other_document(visits, key, at)
            return visits.bounds[other] + randint(
                keys, visits.bounds[other + 1] - visits.bounds[other]
            )
        lowest = visits.bounds[visits.documents[at]]
        taken = np.where(at + 1 == visits.ends[at], 1, 2)
        pick = lowest + randint(keys, visits.ends[at] - lowest - taken)
        return np.where(pick >= at, pick + taken, pick)

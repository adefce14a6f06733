"""SENTENCE-PAIR + NSP: two single sentences, the second the true next one or not (RoBERTa §4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from clozelab.blocks.pairs import (
    Negatives,
    PairLength,
    check_documents,
    draw,
    other_document,
    trimmed,
)
from clozelab.blocks.table import Table, tabulate
from clozelab.blocks.walk import Order, Walk, walk
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
    order: Order = "documents"

    def plan(self, documents: Documents, key: int) -> Table:
        """Plan a pass; `key` stands for (seed, purpose, copy)."""
        way = walk(documents, key, order=self.order, longest=None)
        check_documents(way, self.negatives, what="sentence_pair")
        here = np.arange(len(way))
        ending = here + 1 == way.ends
        at = here if self.last == "random" else here[~ending]
        random = coin_flips(mix(draw(key, "coin"), at)) | ending[at]
        if self.negatives == "same_document":  # a document of two sentences has no third to draw
            random &= way.ends[at] - way.bounds[way.documents[at]] > 2 - ending[at]
            at, random = at[random | ~ending[at]], random[random | ~ending[at]]
        second = at + 1
        second[random] = self._elsewhere(way, key, at[random])
        labels = random.astype(np.int64)
        notes = {
            "blocks": len(at),
            "random": float(labels.mean()) if len(at) else 0.0,
            "last sentences skipped": len(way) - len(at),
        }
        sides = ((at, at + 1), (second, second + 1))
        room = self.length - _SPECIALS
        laid = trimmed(way, key, at, sides=sides, room=room)
        return tabulate(documents, way, laid, labels=labels, notes=notes)

    def _elsewhere(self, way: Walk, key: int, at: Ints) -> Ints:
        """A random sentence for each: of another document, or of this one but not A or its next."""
        keys = mix(draw(key, "start"), at)
        if self.negatives == "other_document":
            other = other_document(way, key, at)
            return way.bounds[other] + randint(keys, way.bounds[other + 1] - way.bounds[other])
        lowest = way.bounds[way.documents[at]]
        taken = np.where(at + 1 == way.ends[at], 1, 2)
        pick = lowest + randint(keys, way.ends[at] - lowest - taken)
        return np.where(pick >= at, pick + taken, pick)

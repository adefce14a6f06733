"""Pairs `[CLS] A [SEP] B [SEP]`: is B the next text (BERT, RoBERTa), or were they swapped (ALBERT)?

All three formats draw by entry: which chunk of sentences would begin there, and which partner it
would get. Then the chain of chunks is followed, and the two segments are trimmed to the length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from clozelab.blocks.block_table import (
    BlockTable,
    ShuffleUnit,
    VisitOrder,
    chain,
    draw,
    tabulate,
    visit_order,
)
from clozelab.contracts import Bools, Documents, Ints
from clozelab.errors import UserError
from clozelab.keys import coin_flips, mix, randint, uniform
from clozelab.ranges import Part, Share, at_least

PairLength = Annotated[int, at_least(5, "two segments need at least 5 tokens")]
Negatives = Literal["other_document", "same_document"]
_SPECIALS = 3
_REDRAWS = 10  # of a random document, in the published code of BERT and ALBERT


@dataclass(frozen=True)
class SegmentPair(Part):
    """SEGMENT-PAIR + NSP (BERT §3.1): two stretches of sentences; label 1: B is from elsewhere.

    A chunk of one sentence has no next half: `single = "force"` gives it a random partner,
    "skip" makes no block of it. `negatives = "same_document"` draws the harder partners from the
    same document. `compat = "google"` is the published code: one target length for a document,
    ten redraws of another document, over-long sentences truncated rather than split.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"next"})

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
            _check_documents(visits, self.negatives, what="segment_pair")
        parts = chunks(visits, key, room=room, short=self.short, by_document=google)
        here = np.arange(len(visits))
        single = parts.stop - here == 1
        random = coin_flips(mix(draw(key, "coin"), here)) | single
        skip = single & (self.single == "skip")
        if self.negatives == "same_document":
            possible = (here > visits.bounds[visits.documents]) | (parts.stop < visits.ends)
            random &= possible
            skip |= single & ~possible
        visited = chain(np.where(random & ~skip, parts.cut, parts.stop))
        at = visited[~skip[visited]]
        labels = random[at]
        halves = parts.halves(at)
        halves[1][:, labels] = self._random(visits, parts, key, owner=at[labels])
        notes = {
            "random": _share(labels),
            "forced": _share(single[at]),
            "single sentences skipped": len(visited) - len(at),
        }
        dropped = trimmed(visits, key, at, segments=halves, room=room)
        return tabulate(documents, visits, halves, dropped=dropped, labels=labels, notes=notes)

    def _random(
        self, visits: VisitOrder, parts: Chunks, key: int, *, owner: Ints
    ) -> tuple[Ints, Ints]:
        """A run from elsewhere for each owner, as long as what its chunk has left."""
        wanted = parts.target[owner] - (visits.running[parts.cut[owner]] - visits.running[owner])
        if self.negatives == "same_document":
            lowest = visits.bounds[visits.documents[owner]]
            before, after = owner - lowest, visits.ends[owner] - parts.stop[owner]
            pick = randint(mix(draw(key, "start"), owner), before + after)
            first = np.where(pick < before, lowest + pick, parts.stop[owner] + pick - before)
            limit = np.where(pick < before, owner, visits.ends[owner])
        else:
            redraws = _REDRAWS if self.compat == "google" else None
            first, limit = _elsewhere(visits, key, owner, redraws=redraws)
        return first, _run_from(visits, first, wanted, limit=limit)


@dataclass(frozen=True)
class SentencePair(Part):
    """SENTENCE-PAIR + NSP (RoBERTa §4.2): one sentence each; every sentence is A once.

    Label 1: B is not the next sentence. A document's last sentence has no next one:
    `last = "skip"` keeps the coin fair, "random" gives it a random partner.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"next"})

    length: PairLength = 512  # the most tokens of a block, specials included
    last: Literal["skip", "random"] = "skip"
    negatives: Negatives = "other_document"
    order: ShuffleUnit = "documents"

    def plan(self, documents: Documents, key: int) -> BlockTable:
        """Plan a pass; `key` stands for (seed, purpose, copy)."""
        visits = visit_order(documents, key, order=self.order, longest=None)
        _check_documents(visits, self.negatives, what="sentence_pair")
        here = np.arange(len(visits))
        ending = here + 1 == visits.ends
        at = here if self.last == "random" else here[~ending]
        random = coin_flips(mix(draw(key, "coin"), at)) | ending[at]
        if self.negatives == "same_document":  # a document of two sentences has no third to draw
            random &= visits.ends[at] - visits.bounds[visits.documents[at]] > 2 - ending[at]
            at, random = at[random | ~ending[at]], random[random | ~ending[at]]
        second = at + 1
        second[random] = self._partner(visits, key, at[random])
        notes = {"random": _share(random), "last sentences skipped": len(visits) - len(at)}
        pairs = np.array([[at, at + 1], [second, second + 1]])
        dropped = trimmed(visits, key, at, segments=pairs, room=self.length - _SPECIALS)
        return tabulate(documents, visits, pairs, dropped=dropped, labels=random, notes=notes)

    def _partner(self, visits: VisitOrder, key: int, at: Ints) -> Ints:
        """A random sentence for each: of another document, or of this one but not A or its next."""
        if self.negatives == "other_document":
            return _elsewhere(visits, key, at)[0]
        lowest = visits.bounds[visits.documents[at]]
        taken = np.where(at + 1 == visits.ends[at], 1, 2)
        count = visits.ends[at] - lowest - taken
        pick = lowest + randint(mix(draw(key, "start"), at), count)
        return np.where(pick >= at, pick + taken, pick)


@dataclass(frozen=True)
class SentenceOrderPair(Part):
    """SOP (ALBERT §3.1): two consecutive segments of a document; label 1: they were swapped.

    A chunk of one sentence is skipped; `compat = "albert"` is the published code, which gave it
    a partner from another document and label 1.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"order"})

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
        visited = chain(parts.stop)
        single = parts.stop[visited] - visited == 1
        at = visited if albert else visited[~single]
        swapped = labels = coin_flips(mix(draw(key, "coin"), at))
        halves = parts.halves(at)
        if albert:
            alone = at[single]
            begin, limit = _elsewhere(visits, key, alone, redraws=_REDRAWS)
            wanted = parts.target[alone] - visits.sizes[alone]
            halves[1][:, single] = begin, _run_from(visits, begin, wanted, limit=limit)
            swapped, labels = swapped & ~single, swapped | single
        halves = np.where(swapped, halves[::-1], halves)
        notes = {"swapped": _share(labels), "single sentences skipped": len(visited) - len(at)}
        dropped = trimmed(visits, key, at, segments=halves, room=room)
        return tabulate(documents, visits, halves, dropped=dropped, labels=labels, notes=notes)


@dataclass(frozen=True)
class Chunks:
    """For every entry, the chunk that would begin there: all draws are keyed by the entry."""

    target: Ints  # [M] tokens wanted
    stop: Ints  # [M] the entry after the chunk's last
    cut: Ints  # [M] the first entry of the second half

    def halves(self, at: Ints) -> Ints:
        """[2, 2, B] first entry, and the entry after the last, of both halves of some chunks."""
        return np.array([[at, self.cut[at]], [self.cut[at], self.stop[at]]])


def chunks(visits: VisitOrder, key: int, *, room: int, short: float, by_document: bool) -> Chunks:
    """Sentences from each entry on until they hold the target, or the document ends.

    The target is `room`, or with probability `short` a uniform number from 2 up; published code
    drew it once for each document (`by_document`).
    """
    here = np.arange(len(visits))
    drawer = visits.documents if by_document else here
    is_short = uniform(mix(draw(key, "short"), drawer)) < short
    target = np.where(is_short, 2 + randint(mix(draw(key, "target"), drawer), room - 1), room)
    stop = np.searchsorted(visits.running, visits.running[:-1] + target, side="left")
    stop = np.minimum(stop, visits.ends)
    cut = here + 1 + randint(mix(draw(key, "cut"), here), np.maximum(stop - here - 1, 1))
    return Chunks(target, stop, np.minimum(cut, stop))


def _elsewhere(
    visits: VisitOrder, key: int, at: Ints, *, redraws: int | None = None
) -> tuple[Ints, Ints]:
    """A random entry of another document for each entry, and where that document ends.

    The document is uniform among the others; or, as published, after some redraws of any.
    """
    own, count = visits.documents[at], len(visits.bounds) - 1
    if redraws is None:
        other = randint(mix(draw(key, "document"), at), count - 1)
        other = other + (other >= own)
    else:
        other = own
        for attempt in range(redraws):
            again = randint(mix(mix(draw(key, "document"), at), attempt), count)
            other = np.where(other == own, again, other)
    lowest, limit = visits.bounds[other], visits.bounds[other + 1]
    return lowest + randint(mix(draw(key, "start"), at), limit - lowest), limit


def _run_from(visits: VisitOrder, first: Ints, wanted: Ints, *, limit: Ints) -> Ints:
    """The entry at which a run from `first` holds `wanted` tokens (at least one entry)."""
    tokens = visits.running[first] + np.maximum(wanted, 1)
    return np.minimum(np.searchsorted(visits.running, tokens, side="left"), limit)


def _check_documents(visits: VisitOrder, negatives: Negatives, *, what: str) -> None:
    """Refuse to draw partners from other documents where there is only one."""
    if len(visits.bounds) - 1 == 1 and negatives == "other_document":
        raise UserError(
            f"blocks {what}: the corpus has a single document, so no random partner from another"
            " one: build it from several documents (see corpus build --layout), or set"
            ' blocks.negatives = "same_document"'
        )


def _share(flags: Bools) -> float:
    return float(flags.sum()) / max(len(flags), 1)


def trim(first: Ints, second: Ints, *, room: int) -> tuple[Ints, Ints]:
    """How many tokens each side loses: one at a time from the longer, the second on ties."""
    over = np.maximum(first + second - room, 0)
    lead = np.minimum(over, np.abs(first - second))
    from_first = np.where(first > second, lead, 0) + (over - lead) // 2
    return from_first, over - from_first


def fronts(key: int, at: Ints, dropped: Ints) -> Ints:
    """How many of the dropped tokens go at the front: a fair coin for each."""
    front = np.zeros_like(dropped)
    left = dropped.copy()
    keys, word = mix(key, at), 0
    while (left > 0).any():
        coins = np.clip(left, 0, 64).astype(np.uint64)
        shift = np.minimum(np.uint64(64) - coins, np.uint64(63))
        tossed = np.where(coins > 0, mix(keys, word) >> shift, np.uint64(0))
        front += np.bitwise_count(tossed).astype(np.int64)
        left = np.maximum(left - 64, 0)
        word += 1
    return front


def trimmed(visits: VisitOrder, key: int, at: Ints, *, segments: Ints, room: int) -> Ints:
    """[2, 2, B] tokens to drop at both ends of both segments, to leave `room` together."""
    sizes = visits.running[segments[:, 1]] - visits.running[segments[:, 0]]
    losses = trim(sizes[0], sizes[1], room=room)
    front = [fronts(draw(key, f"front {side}"), at, loss) for side, loss in enumerate(losses)]
    return np.stack([front, np.subtract(losses, front)], axis=1)

"""Pairs `[CLS] A [SEP] B [SEP]`: B is next or random (BERT, RoBERTa), or both are swapped (ALBERT).

All three formats draw by entry: the chunk of sentences that would begin there, and the partner that
it would get. Then the chain of chunks is followed, and both segments are trimmed to the length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from clozelab.blocks.block_table import Chain, TableFormat, tabulate
from clozelab.blocks.planned import PlanPieces, draw
from clozelab.blocks.visits import ShuffleUnit, VisitOrder, Window, visit_order
from clozelab.contracts import Documents, Ints, PlanStretch
from clozelab.errors import UserError
from clozelab.keys import coin_flips, mix, randint, uniform
from clozelab.ranges import Share, at_least

PairLength = Annotated[int, at_least(5, "two segments need at least 5 tokens")]
Negatives = Literal["other_document", "same_document"]
_SPECIALS = 3
_REDRAWS = 10  # of a random document, in the published code of BERT and ALBERT


@dataclass(frozen=True)
class SegmentPair(TableFormat):
    """SEGMENT-PAIR + NSP (BERT §3.1): two runs of sentences; label 1: B is from elsewhere.

    A chunk of one sentence has no second half: `single = "force"` gives it a random partner,
    "skip" makes no block of it. `negatives = "same_document"` draws the harder partners from the
    same document. `compat = "google"` is the published code: one target length for a document,
    ten redraws of another document, over-long sentences truncated rather than split.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"next", "causal_blocks"})
    shares: ClassVar[frozenset[str]] = frozenset({"random", "forced"})

    length: PairLength = 512  # the most tokens of a block, specials included
    short: Share = 0.1  # of the blocks: they get a random shorter length
    single: Literal["force", "skip"] = "force"
    negatives: Negatives = "other_document"
    order: ShuffleUnit = "documents"
    compat: Literal["none", "google"] = "none"

    def visits(self, documents: Documents, key: int, pieces: PlanPieces) -> VisitOrder:
        """The order in which a pass visits the sentences."""
        google = self.compat == "google"
        longest = None if google else self.length - _SPECIALS
        visits = visit_order(documents, key, order=self.order, longest=longest, pieces=pieces)
        if not google:
            _check_documents(visits, self.negatives, what="segment_pair")
        return visits

    def table(self, window: Window, key: int, chain: Chain) -> PlanStretch:
        """The table of the blocks that begin in a window."""
        room, google = self.length - _SPECIALS, self.compat == "google"
        parts = chunks(window, key, room=room, short=self.short, by_document=google)
        single = parts.stop - window.here == 1
        random = coin_flips(mix(draw(key, "coin"), window.here)) | single
        skip = single & (self.single == "skip")
        if self.negatives == "same_document":
            possible = (window.here > window.lowest) | (parts.beyond < window.ends)
            random &= possible
            skip |= single & ~possible
        visited = chain.follow(window, np.where(random & ~skip, parts.cut, parts.stop))
        at = visited[~skip[visited - window.first]]
        labels = random[at - window.first]
        halves = parts.halves(at)
        halves[1][:, labels] = self._random_partners(parts, key, owner=at[labels])
        counts = {
            "random": int(labels.sum()),
            "forced": int(single[at - window.first].sum()),
            "single sentences skipped": len(visited) - len(at),
        }
        dropped = trimmed(window.visits, key, at, segments=halves, room=room)
        return tabulate(window, halves, dropped=dropped, labels=labels, counts=counts)

    def _random_partners(self, parts: Chunks, key: int, *, owner: Ints) -> tuple[Ints, Ints, Ints]:
        """A run of sentences from elsewhere for each owner, as long as the rest of its chunk."""
        window, visits, row = parts.window, parts.window.visits, owner - parts.window.first
        wanted = parts.target[row] - visits.tokens(owner, parts.cut[row])
        if self.negatives == "same_document":
            lowest, ends = window.lowest[row], window.ends[row]
            beyond = parts.beyond[row]
            before, after = owner - lowest, np.maximum(ends - beyond, 0)
            pick = randint(mix(draw(key, "start"), owner), before + after)
            first = np.where(pick < before, lowest + pick, beyond + pick - before)
            limit = np.where(pick < before, owner, ends)
            other = window.documents[row]
        else:
            redraws = _REDRAWS if self.compat == "google" else None
            first, limit, other = _random_entries(window, key, owner, redraws=redraws)
        return first, _end_of_run(visits, first, wanted, limit=limit), other


@dataclass(frozen=True)
class SentencePair(TableFormat):
    """SENTENCE-PAIR + NSP (RoBERTa §4.2): two single sentences; every sentence is A once.

    Label 1: B is not the next sentence. A document's last sentence has no next one:
    `last = "skip"` keeps the coin fair, "random" gives it a random partner.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"next"})
    shares: ClassVar[frozenset[str]] = frozenset({"random"})

    length: PairLength = 512  # the most tokens of a block, specials included
    last: Literal["skip", "random"] = "skip"
    negatives: Negatives = "other_document"
    order: ShuffleUnit = "documents"

    def visits(self, documents: Documents, key: int, pieces: PlanPieces) -> VisitOrder:
        """The order in which a pass visits the sentences."""
        visits = visit_order(documents, key, order=self.order, pieces=pieces)
        _check_documents(visits, self.negatives, what="sentence_pair")
        return visits

    def entrances(self, visits: VisitOrder, entry: int) -> Ints:
        """The entry itself: every entry is a block of its own."""
        return np.array([entry])

    def table(self, window: Window, key: int, chain: Chain) -> PlanStretch:
        """The table of the blocks that begin in a window."""
        ending = window.here + 1 == window.ends
        random = coin_flips(mix(draw(key, "coin"), window.here)) | ending
        skip = ending & (self.last == "skip")
        if self.negatives == "same_document":  # a document of two sentences has no third to draw
            random &= window.ends - window.lowest > 2 - ending
            skip |= ending & ~random
        at, labels = window.here[~skip], random[~skip]
        own = window.documents[~skip]
        pairs = np.array([[at, at + 1, own], [at + 1, at + 2, own]])
        first, document = self._random_sentences(window, key, at[labels])
        pairs[1][:, labels] = first, first + 1, document
        counts = {"random": int(labels.sum()), "last sentences skipped": int(skip.sum())}
        room = self.length - _SPECIALS
        dropped = trimmed(window.visits, key, at, segments=pairs, room=room)
        return tabulate(window, pairs, dropped=dropped, labels=labels, counts=counts)

    def _random_sentences(self, window: Window, key: int, at: Ints) -> tuple[Ints, Ints]:
        """A random sentence for each A, and its document; never A or its next sentence."""
        if self.negatives == "other_document":
            first, _, document = _random_entries(window, key, at)
            return first, document
        row = at - window.first
        lowest, ends = window.lowest[row], window.ends[row]
        excluded = np.where(at + 1 == ends, 1, 2)
        pick = lowest + randint(mix(draw(key, "start"), at), ends - lowest - excluded)
        return np.where(pick >= at, pick + excluded, pick), window.documents[row]


@dataclass(frozen=True)
class SentenceOrderPair(TableFormat):
    """SOP (ALBERT §3.1): two consecutive segments of a document; label 1: they were swapped.

    A chunk of one sentence is skipped; `compat = "albert"` is the published code, which gave it
    a partner from another document and label 1.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"order"})
    shares: ClassVar[frozenset[str]] = frozenset({"swapped"})

    length: PairLength = 512  # the most tokens of a block, specials included
    short: Share = 0.1  # of the blocks: they get a random shorter length
    order: ShuffleUnit = "documents"
    compat: Literal["none", "albert"] = "none"

    def visits(self, documents: Documents, key: int, pieces: PlanPieces) -> VisitOrder:
        """The order in which a pass visits the sentences."""
        longest = None if self.compat == "albert" else self.length - _SPECIALS
        return visit_order(documents, key, order=self.order, longest=longest, pieces=pieces)

    def table(self, window: Window, key: int, chain: Chain) -> PlanStretch:
        """The table of the blocks that begin in a window."""
        albert, visits, room = self.compat == "albert", window.visits, self.length - _SPECIALS
        parts = chunks(window, key, room=room, short=self.short, by_document=albert)
        visited = chain.follow(window, parts.stop)
        single = parts.stop[visited - window.first] - visited == 1
        at = visited if albert else visited[~single]
        swapped = labels = coin_flips(mix(draw(key, "coin"), at))
        halves = parts.halves(at)
        if albert:
            alone = at[single]
            begin, limit, other = _random_entries(window, key, alone, redraws=_REDRAWS)
            wanted = parts.target[alone - window.first] - visits.tokens(alone, alone + 1)
            halves[1][:, single] = begin, _end_of_run(visits, begin, wanted, limit=limit), other
            swapped, labels = swapped & ~single, swapped | single
        halves = np.where(swapped, halves[::-1], halves)
        counts = {
            "swapped": int(labels.sum()),
            "single sentences skipped": len(visited) - len(at),
        }
        dropped = trimmed(visits, key, at, segments=halves, room=room)
        return tabulate(window, halves, dropped=dropped, labels=labels, counts=counts)


@dataclass(frozen=True)
class Chunks:
    """For every entry of a window, the chunk that would begin there; draws are keyed by entry."""

    window: Window
    target: Ints  # [n] tokens wanted
    stop: Ints  # [n] the end (exclusive) of the chunk
    cut: Ints  # [n] the first entry of the second half

    @property
    def beyond(self) -> Ints:
        """[n] the first entry after the chunk that is not what follows its first half."""
        return np.where(self.cut == self.stop, self.stop + 1, self.stop)

    def halves(self, at: Ints) -> Ints:
        """[2, 3, B] both halves of chunks: first entry, end (exclusive), document."""
        row = at - self.window.first
        cut, stop, document = self.cut[row], self.stop[row], self.window.documents[row]
        return np.array([[at, cut, document], [cut, stop, document]])


def chunks(window: Window, key: int, *, room: int, short: float, by_document: bool) -> Chunks:
    """The chunks of sentences from each entry on, up to the target or the document's end.

    The target is `room` tokens, or with probability `short` uniform from 2 up; published code
    drew it once for each document (`by_document`).
    """
    here = window.here
    drawer = window.documents if by_document else here
    is_short = uniform(mix(draw(key, "short"), drawer)) < short
    target = np.where(is_short, 2 + randint(mix(draw(key, "target"), drawer), room - 1), room)
    running = window.running(room)
    stop = window.first + np.searchsorted(running, running[: len(window)] + target, side="left")
    stop = np.minimum(stop, window.ends)
    cut = here + 1 + randint(mix(draw(key, "cut"), here), np.maximum(stop - here - 1, 1))
    return Chunks(window, target, stop, np.minimum(cut, stop))


def _random_entries(
    window: Window, key: int, at: Ints, *, redraws: int | None = None
) -> tuple[Ints, Ints, Ints]:
    """A random entry of another document for each entry, the document's end, and its number.

    The document is uniform among the others; or, as published, redrawn some times if it is its own.
    """
    bounds = window.visits.bounds
    own, count = window.documents[at - window.first], len(bounds) - 1
    if redraws is None:
        other = randint(mix(draw(key, "document"), at), count - 1)
        other = other + (other >= own)
    else:
        other = own
        for attempt in range(redraws):
            again = randint(mix(mix(draw(key, "document"), at), attempt), count)
            other = np.where(other == own, again, other)
    lowest, limit = bounds[other], bounds[other + 1]
    return lowest + randint(mix(draw(key, "start"), at), limit - lowest), limit, other


def _end_of_run(visits: VisitOrder, first: Ints, wanted: Ints, *, limit: Ints) -> Ints:
    """The end of a run of entries from `first` with `wanted` tokens (at least one entry)."""
    # A bisection near the first entry: a search of the whole array would read all of it.
    wanted = np.maximum(wanted, 1)
    low, high = first + 1, np.asarray(np.minimum(first + wanted, limit))
    while (low < high).any():
        middle = (low + high) // 2
        enough = visits.tokens(first, middle) >= wanted
        low = np.where(enough, low, np.minimum(middle + 1, high))
        high = np.where(enough, middle, high)
    return high


def _check_documents(visits: VisitOrder, negatives: Negatives, *, what: str) -> None:
    """Refuse to draw partners from other documents where there is only one."""
    if len(visits.bounds) - 1 == 1 and negatives == "other_document":
        raise UserError(
            f"blocks {what}: the corpus has a single document, so there is no random segment"
            " of another one; build it from several documents (see corpus build --layout),"
            ' or set blocks.negatives = "same_document"'
        )


def trim(first: Ints, second: Ints, *, room: int) -> tuple[Ints, Ints]:
    """How many tokens to drop from each: one at a time from the longer, the second on ties."""
    over = np.maximum(first + second - room, 0)
    lead = np.minimum(over, np.abs(first - second))
    from_first = np.where(first > second, lead, 0) + (over - lead) // 2
    return from_first, over - from_first


def fronts(key: int, at: Ints, dropped: Ints) -> Ints:
    """How many of the dropped tokens are dropped at the front: a fair coin for each."""
    front = np.zeros_like(dropped)
    rows = np.flatnonzero(dropped)  # often few, or none
    word = 0
    while len(rows):
        left = dropped[rows] - 64 * word
        shift = np.uint64(64) - np.minimum(left, 64).astype(np.uint64)
        coins = mix(mix(key, at[rows]), word) >> shift
        front[rows] += np.bitwise_count(coins).astype(np.int64)
        rows, word = rows[left > 64], word + 1
    return front


def trimmed(visits: VisitOrder, key: int, at: Ints, *, segments: Ints, room: int) -> Ints:
    """[2, 2, B] how many tokens to drop at both ends of both segments, to leave `room` in all."""
    sizes = visits.tokens(segments[:, 0], segments[:, 1])
    losses = trim(sizes[0], sizes[1], room=room)
    front = [fronts(draw(key, f"front {side}"), at, loss) for side, loss in enumerate(losses)]
    return np.stack([front, np.subtract(losses, front)], axis=1)

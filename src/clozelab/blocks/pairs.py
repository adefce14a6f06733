"""What the pair formats share: chunks of sentences, random partners, and trimming to length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from clozelab.blocks.block_table import Parts
from clozelab.blocks.visit_order import VisitOrder
from clozelab.contracts import Bools, Ints
from clozelab.errors import UserError
from clozelab.keys import mix, randint, root, uniform
from clozelab.ranges import at_least

PairLength = Annotated[int, at_least(5, "two segments need at least 5 tokens")]
Negatives = Literal["other_document", "same_document"]


@dataclass(frozen=True)
class Chunks:
    """For every entry, the chunk that would begin there: all draws are keyed by the entry."""

    target: Ints  # [M] tokens wanted
    stop: Ints  # [M] the entry after the chunk's last
    cut: Ints  # [M] the first entry of the second half


def draw(key: int, purpose: str) -> int:
    """The key of one kind of draw under a plan's key."""
    return int(mix(key, root(0, purpose)))


def chunks(visits: VisitOrder, key: int, *, room: int, short: float, by_document: bool) -> Chunks:
    """Sentences from each entry on until they hold the target, or the document ends.

    The target is `room`, or with probability `short` a uniform number from 2 up; published code
    drew it once for each document (`by_document`).
    """
    who = visits.documents if by_document else np.arange(len(visits))
    is_short = uniform(mix(draw(key, "short"), who)) < short
    target = np.where(is_short, 2 + randint(mix(draw(key, "target"), who), room - 1), room)
    stop = np.searchsorted(visits.running, visits.running[:-1] + target, side="left")
    stop = np.minimum(stop, visits.ends)
    here = np.arange(len(visits))
    cut = here + 1 + randint(mix(draw(key, "cut"), here), np.maximum(stop - here - 1, 1))
    return Chunks(target, stop, np.minimum(cut, stop))


def other_document(visits: VisitOrder, key: int, at: Ints, *, redraws: int | None = None) -> Ints:
    """A document for each entry, uniform among the others; or, as published, after some redraws."""
    own, count = visits.documents[at], len(visits.bounds) - 1
    if redraws is None:
        other = randint(mix(draw(key, "document"), at), count - 1)
        return np.asarray(other + (other >= own))
    other = own
    for attempt in range(redraws):
        again = randint(mix(mix(draw(key, "document"), at), attempt), count)
        other = np.where(other == own, again, other)
    return other


def run_from(visits: VisitOrder, first: Ints, wanted: Ints, *, limit: Ints) -> Ints:
    """The entry at which a run from `first` holds `wanted` tokens (at least one entry)."""
    stop = np.searchsorted(
        visits.running, visits.running[first] + np.maximum(wanted, 1), side="left"
    )
    return np.minimum(stop, limit)


def check_documents(visits: VisitOrder, negatives: Negatives, *, what: str) -> None:
    """Refuse to draw partners from other documents where there is only one."""
    if len(visits.bounds) - 1 == 1 and negatives == "other_document":
        raise UserError(
            f"blocks {what}: the corpus has a single document, so no random partner from another"
            " one: build it from several documents (see corpus build --layout), or set"
            ' blocks.negatives = "same_document"'
        )


def trim(first: Ints, second: Ints, *, room: int) -> tuple[Ints, Ints]:
    """How many tokens each side loses: one at a time from the longer, the second on ties."""
    over = np.maximum(first + second - room, 0)
    lead = np.minimum(over, np.abs(first - second))
    rest = over - lead
    longer = first > second
    from_first = np.where(longer, lead, 0) + rest // 2
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


def trimmed(
    visits: VisitOrder,
    key: int,
    at: Ints,
    *,
    sides: tuple[tuple[Ints, Ints], tuple[Ints, Ints]],
    room: int,
) -> Parts:
    """The two segments of every block as parts, trimmed to `room` tokens together."""
    sizes = [visits.running[stop] - visits.running[start] for start, stop in sides]
    losses = trim(sizes[0], sizes[1], room=room)
    front = [fronts(draw(key, f"front {side}"), at, loss) for side, loss in enumerate(losses)]
    count = len(at)
    both: dict[str, Ints] = {
        "first": _weave(sides[0][0], sides[1][0]),
        "last": _weave(sides[0][1], sides[1][1]),
        "front": _weave(front[0], front[1]),
        "back": _weave(losses[0] - front[0], losses[1] - front[1]),
    }
    return Parts(block=np.repeat(np.arange(count), 2), segment=np.tile([0, 1], count), **both)


def swapped(
    coin: Bools, one: tuple[Ints, Ints], two: tuple[Ints, Ints]
) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
    """The two sides, exchanged where the coin says so."""
    first = np.where(coin, two[0], one[0]), np.where(coin, two[1], one[1])
    second = np.where(coin, one[0], two[0]), np.where(coin, one[1], two[1])
    return first, second


def _weave(one: Ints, two: Ints) -> Ints:
    return np.stack([one, two], axis=1).reshape(-1)

"""What limits a run: its feed, the host that launches its work, the device's memory or arithmetic,
or others who use the same CPU.

Nothing is measured here: a step says how long the loop waited for text and for a core, how long
the device worked and how long the host waited for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from clozelab.training.loop import Step

IDLE = 0.1  # of the time: a device that rests for less would gain little by a faster feed or host
AHEAD = 0.03  # of the time: a host that never waits is late, and the device is as fast as it is
HIGH = 0.45  # of the measured rate: wide models reach it; what lies below is spent between products
FIRST = 3  # the step to begin with: those before it compile, and wait for the first text


class Limit(NamedTuple):
    """A word, and what a user can do about it."""

    word: str
    sentence: str


FEED = Limit("feed", "the device waits for text; give it more --workers")
HOST = Limit(
    "host",
    "the device waits for its next launch; a larger --micro-batch, more sequences a step or"
    " --compile would fill it",
)
MEMORY = Limit(
    "memory",
    "the device moves more numbers than it multiplies; a wider model, or one without dropout, would"
    " use more of it",
)
ARITHMETIC = Limit("arithmetic", "the device computes nearly all the time; only a faster one helps")
SHARED = Limit(
    "shared", "other processes have the CPU's cores for part of the time; run it alone, or wait"
)
SENTENCES = {limit.word: limit.sentence for limit in (FEED, HOST, MEMORY, ARITHMETIC, SHARED)}


@dataclass(frozen=True)
class Spent:
    """What steps took, added up."""

    seconds: float = 0.0
    tokens: float = 0.0
    waited: float = 0.0  # the loop, for the feed
    slack: float = 0.0  # the host, for the device
    busy: float | None = None  # the device; None where it cannot be told
    starved: float = 0.0  # a CPU, for cores that others had

    def then(self, step: Step, *, keep: float) -> Spent:
        """A step more; of those before a share is kept: all of it, or the last count most."""
        busy = None if step.busy is None else keep * (self.busy or 0.0) + step.busy
        return Spent(
            seconds=keep * self.seconds + step.seconds,
            tokens=keep * self.tokens + step.tokens,
            waited=keep * self.waited + step.waited,
            slack=keep * self.slack + step.slack,
            busy=busy,
            starved=keep * self.starved + step.starved,
        )

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.tokens / max(self.seconds, 1e-9)


def limit(spent: Spent, *, flops_a_token: float, peak: float | None) -> Limit | None:
    """What the time went into; `peak` is the measured rate in operations a second, where known."""
    if not spent.seconds:
        return None
    if spent.busy is None:  # a CPU, which is its own host
        if spent.starved >= IDLE * spent.seconds:
            return SHARED
        return FEED if spent.waited >= IDLE * spent.seconds else ARITHMETIC
    idle = spent.seconds - spent.busy
    if idle >= IDLE * spent.seconds:
        return FEED if spent.waited >= idle / 2 else HOST
    # Between two events a device that waits for launches seems to work; but nobody waits for it.
    if spent.slack + spent.waited < AHEAD * spent.seconds:
        return HOST
    if peak is None:
        return None
    return ARITHMETIC if spent.speed * flops_a_token >= HIGH * peak else MEMORY

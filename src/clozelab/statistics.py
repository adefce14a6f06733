"""How sure a mean is, and a difference between two: intervals and tests by Student's t.

All of it is over seeds. Two variants that were run from the same seeds saw the same text in the
same order, so they are compared seed by seed; others by Welch's test. One seed has no interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

LEVEL = 0.95  # of every interval
POWER = 0.80  # of what is said to have been visible
_SLICES = 400  # of an integral; an even number


@dataclass(frozen=True)
class Estimate:
    """A mean, or a difference of means: its value, standard error and degrees of freedom."""

    value: float
    error: float
    freedom: float
    seeds: int  # pairs of them, or of both sides together where they do not pair
    paired: bool = False

    @property
    def half(self) -> float:
        """Half the width of the 95 % interval."""
        return within(LEVEL, self.freedom) * self.error

    @property
    def low(self) -> float:
        """Where the interval begins."""
        return self.value - self.half

    @property
    def high(self) -> float:
        """Where the interval ends."""
        return self.value + self.half

    @property
    def visible(self) -> float:
        """The true difference that as many seeds, spread like these, show four times in five."""
        # A chance of 80 % on one side is one of 60 % on both.
        reach = within(LEVEL, self.freedom) + within(2 * POWER - 1, self.freedom)
        return reach * self.error

    def p(self, against: float = 0.0) -> float:
        """The chance of lying as far from a value as this, were that the true one."""
        distance = abs(self.value - against)
        if not self.error:
            return 1.0 if not distance else 0.0
        return beyond(distance / self.error, self.freedom)


def mean(values: Sequence[float]) -> Estimate | None:
    """The mean of two or more values; fewer do not tell how sure they are."""
    if len(values) < 2:
        return None
    error = statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(statistics.fmean(values), error, len(values) - 1, len(values))


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate | None:
    """By how much ours is above theirs, both by seed: over the seeds of both, else by Welch."""
    both = sorted(ours.keys() & theirs.keys())
    if len(both) > 1:
        found = mean([ours[seed] - theirs[seed] for seed in both])
        assert found is not None
        return Estimate(found.value, found.error, found.freedom, found.seeds, paired=True)
    left, right = mean([*ours.values()]), mean([*theirs.values()])
    if left is None or right is None:
        return None
    a, b = left.error**2, right.error**2
    freedom = min(left.freedom, right.freedom)
    if a + b:
        freedom = (a + b) ** 2 / (a**2 / left.freedom + b**2 / right.freedom)
    value, seeds = left.value - right.value, left.seeds + right.seeds
    return Estimate(value, math.sqrt(a + b), freedom, seeds)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Best, median and mean of some runs; of two or more also the mean's 95 % interval."""
    found = {
        "best": max(values),
        "median": statistics.median(values),
        "mean": statistics.fmean(values),
        "runs": len(values),
    }
    sure = mean(values)
    return found if sure is None else found | {"low": sure.low, "high": sure.high}


def holm(chances: Sequence[float]) -> list[float]:
    """Chances of several tests, raised so that the least of them may be believed (Holm 1979)."""
    found, highest = [0.0] * len(chances), 0.0
    order = sorted(range(len(chances)), key=lambda number: chances[number])
    for rank, number in enumerate(order):
        highest = max(highest, min(1.0, (len(chances) - rank) * chances[number]))
        found[number] = highest
    return found


def beyond(t: float, freedom: float) -> float:
    """The chance that Student's t is farther from zero than this."""
    # With t = √freedom · tan(angle) the density is a power of a cosine: Simpson's rule is exact
    # enough, and no tail runs to infinity.
    end = math.atan(t / math.sqrt(freedom))
    width = end / _SLICES
    total = sum(
        (1 if place in (0, _SLICES) else 4 if place % 2 else 2)
        * math.pow(math.cos(place * width), freedom - 1)
        for place in range(_SLICES + 1)
    )
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    inside = 2 * math.exp(scale) / math.sqrt(math.pi) * total * width / 3
    return min(1.0, max(0.0, 1 - inside))


@cache
def within(share: float, freedom: float) -> float:
    """How far from zero Student's t stays with that chance."""
    low, high = 0.0, 1.0
    while beyond(high, freedom) > 1 - share:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle, freedom) > 1 - share else (low, middle)
    return high

"""Means and differences of means over seeds: intervals, tests and power by Student's t.

Two variants that were run from the same seeds saw the same text in the same order, so they are
compared by a paired test; others by Welch's test. One seed has no interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

LEVEL = 0.95  # of every confidence interval
POWER = 0.80  # at the minimum detectable effect


@dataclass(frozen=True)
class Estimate:
    """A mean, or a difference of means: its value, standard error and degrees of freedom."""

    value: float
    error: float
    freedom: float
    seeds: int  # pairs of seeds, or the runs of both sides together where they are not paired
    paired: bool = False

    @property
    def half(self) -> float:
        """Half the width of the 95 % interval."""
        return t_interval(LEVEL, self.freedom) * self.error

    @property
    def low(self) -> float:
        """The lower end of the 95 % interval."""
        return self.value - self.half

    @property
    def high(self) -> float:
        """The upper end of the 95 % interval."""
        return self.value + self.half

    @property
    def detectable(self) -> float:
        """The minimum detectable effect: a true difference that is detected with 80 % power."""
        # One tail of 80 % is the two-sided interval of 60 %.
        width = t_interval(LEVEL, self.freedom) + t_interval(2 * POWER - 1, self.freedom)
        return width * self.error

    def p(self, null: float = 0.0) -> float:
        """The two-sided p-value, if the true value were `null`."""
        distance = abs(self.value - null)
        if not self.error:
            return 1.0 if not distance else 0.0
        return t_survival(distance / self.error, self.freedom)


def mean(values: Sequence[float]) -> Estimate | None:
    """The mean of two or more values; None for fewer, which have no standard error."""
    if len(values) < 2:
        return None
    error = statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(statistics.fmean(values), error, len(values) - 1, len(values))


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate | None:
    """The mean of ours minus that of theirs, by seed: paired where two seeds are common."""
    common = sorted(ours.keys() & theirs.keys())
    paired = mean([ours[seed] - theirs[seed] for seed in common])
    if paired is not None:
        return replace(paired, paired=True)
    left, right = mean([*ours.values()]), mean([*theirs.values()])
    if left is None or right is None:
        return None
    a, b = left.error**2, right.error**2
    freedom = min(left.freedom, right.freedom)
    if a + b:
        freedom = (a + b) ** 2 / (a**2 / left.freedom + b**2 / right.freedom)
    value, seeds = left.value - right.value, left.seeds + right.seeds
    return Estimate(value, math.sqrt(a + b), freedom, seeds)


def summary(values: Sequence[float]) -> dict[str, float]:
    """Best, median and mean of some runs; for two or more also the mean's 95 % interval."""
    numbers = {
        "best": max(values),
        "median": statistics.median(values),
        "mean": statistics.fmean(values),
        "runs": len(values),
    }
    estimate = mean(values)
    return numbers if estimate is None else numbers | {"low": estimate.low, "high": estimate.high}


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of several tests, corrected for their number (Holm 1979)."""
    corrected, highest = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = highest
    return corrected


@cache
def t_survival(t: float, freedom: float) -> float:
    """The probability that Student's t is farther from zero than `t`, on either side."""
    from scipy.special import stdtr  # imported late: commands that compute nothing stay quick

    return float(2 * stdtr(freedom, -abs(t)))


@cache
def t_interval(level: float, freedom: float) -> float:
    """The half-width about zero that holds Student's t with probability `level`."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))

"""Means and differences of means over seeds: intervals, tests and power by Student's t.

`contrast` compares two variants of a study. Its error has two parts.

The seeds. The variances of all variants are pooled if they are similar, since three seeds of two
variants alone give a poor estimate; otherwise Welch's method is used. Seeds are paired only if
variants share a teacher, or if seeds are shown to act alike on all variants.

The evaluation set. Another sample of items would have given another difference. So even runs that
agree to the last digit are not certain. For means of items' scores, resampling seeds and
items together (Multi-Bootstrap, arXiv:2106.16163) has a closed form, of which `item_error` takes
the items' part. The seeds' part is by Student's t: resampling three seeds underestimates it.

The levels of the tests that choose a method were chosen by simulation
(tests/unit/studies/test_simulations.py): they keep false verdicts at 5 % if variances differ.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95  # of every confidence interval
POWER = 0.80  # at the minimum detectable effect
CORRELATED = 0.2  # the least share of the variance common to seeds, for pairing
_CORRELATION_LEVEL = 0.05  # level of the test that seeds act alike on all variants
_NOISIER, _QUIETER = 0.5, 0.02  # levels of the tests that the two are as noisy as the others
_UNEQUAL_LEVEL = 0.3  # level of the test that one of the two is noisier; then only it has freedom
_KNOWN_FREEDOM = 1e6  # degrees of freedom of a known variance
_ESTIMATES = 2000  # of an error, over which a power is averaged

Values = Mapping[int, float]  # by seed


class ItemError(NamedTuple):
    """The sampling error of a mean or a difference by the items of an evaluation set."""

    variance: float = 0.0  # by resampling only the items
    chance: float = 0.0  # its part by a run's chance on items, which seeds include, too
    freedom: float = _KNOWN_FREEDOM

    def scaled(self, by: float) -> ItemError:
        """The error of a multiple."""
        return ItemError(self.variance * by**2, self.chance * by**2, self.freedom)


NO_ITEMS = ItemError()


@dataclass(frozen=True)
class Estimate:
    """A mean, or a difference of means: its value, standard error and degrees of freedom."""

    value: float
    error: float
    freedom: float
    seeds: int  # pairs of seeds, or the runs of both sides if not paired
    paired: bool = False
    method: str = ""  # how the error was estimated

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
        return detectable(self.error, self.freedom)

    def p(self, null: float = 0.0) -> float:
        """The two-sided p-value, if the true value were `null`."""
        return min(1.0, 2 * min(self.p_above(null), self.p_below(null)))

    def p_above(self, null: float = 0.0) -> float:
        """The p-value of the test that the true value is above `null`."""
        if not self.error:
            return 1.0  # without variance nothing is certain
        return t_below(-(self.value - null) / self.error, self.freedom)

    def p_below(self, null: float = 0.0) -> float:
        """The p-value of the test that the true value is below `null`."""
        return replace(self, value=-self.value).p_above(-null)

    def p_within(self, delta: float) -> float:
        """The p-value of two one-sided tests that the true value is between −delta and delta."""
        return max(self.p_above(-delta), self.p_below(delta))


def mean(values: Sequence[float]) -> Estimate | None:
    """The mean of two or more values; None for fewer, which have no standard error."""
    if len(values) < 2:
        return None
    variance, freedom = _pooled_variance([dict(enumerate(values))])
    error = math.sqrt(variance / len(values))
    return Estimate(statistics.fmean(values), error, freedom, len(values))


def contrast(
    scores: Mapping[str, Values],
    better: str,
    than: str,
    *,
    related: bool = False,
    items: ItemError = NO_ITEMS,
) -> Estimate | None:
    """The mean of one variant minus that of another; None if a side has less than two seeds.

    `scores` has all variants whose variance may be pooled. `related` says that the seeds of the two
    are correlated, as of students of one teacher. `items` is the sampling error by items.
    """
    ours, theirs = scores.get(better, {}), scores.get(than, {})
    common = sorted(ours.keys() & theirs.keys())
    complete = [one for one in scores.values() if {*common} <= one.keys()]
    if len(common) > 1 and (related or _seeds_correlate(complete, common)):
        others = [one for name, one in scores.items() if name not in (better, than)]
        others = [one for one in others if {*common} <= one.keys()]
        return _add_item_error(_paired(ours, theirs, common, others), items)
    estimate = _unpaired(ours, theirs, [one for one in scores.values() if len(one) > 1])
    return None if estimate is None else _add_item_error(estimate, items)


def level(
    scores: Mapping[str, Values], name: str, *, items: ItemError = NO_ITEMS
) -> Estimate | None:
    """The mean of one variant, its variance pooled with that of the others if similar."""
    estimate = mean([*scores.get(name, {}).values()])
    if estimate is None:
        return None
    own, count = _pooled_variance([scores[name]])
    rest, freedom = _pooled_variance(one for other, one in scores.items() if other != name)
    method = "alone"
    if freedom and _similar(own, count, rest, freedom):
        own, count = _pooled_variance(scores.values())
        method = f"pooled over {_count_repeated(scores.values())} variants"
    error = math.sqrt(own / estimate.seeds)
    return _add_item_error(replace(estimate, error=error, freedom=count, method=method), items)


def item_error(
    ours: Mapping[int, ArrayLike], theirs: Mapping[int, ArrayLike] | None = None
) -> ItemError:
    """The sampling error by items, from each seed's scores item by item.

    `theirs` are scores of the same items, to be subtracted. Rows of the same seed are paired, so
    that an effect of the seed on both is not counted as chance.
    """
    import numpy as np

    theirs = dict.fromkeys(ours, 0.0) if theirs is None else theirs
    seeds = sorted(ours.keys() & theirs.keys())
    gaps = np.array([np.asarray(ours[seed]) - np.asarray(theirs[seed]) for seed in seeds])
    if len(seeds) < 2:
        sides = [np.mean(np.array([*side.values()]), axis=0) for side in (ours, theirs)]
        gaps = np.array([sides[0] - sides[1]])
    runs, items = gaps.shape
    if items < 2:
        return NO_ITEMS
    variance, chance = (square / (runs * items) for square in _two_way(gaps))
    return ItemError(variance, min(chance, variance), items - 1)


def sum_of_items(errors: Iterable[ItemError]) -> ItemError:
    """The error of a sum over sets of items."""
    variances, chances, freedoms = zip(*errors, strict=True)
    return ItemError(sum(variances), sum(chances), _freedom(variances, freedoms))


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
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    raised = [min(1.0, (len(order) - rank) * p_values[at]) for rank, at in enumerate(order)]
    return _restore_order(order, accumulate(raised, max))


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """The p-values of several tests, corrected for the false discovery rate (1995)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__, reverse=True)
    raised = [p_values[at] * len(order) / (len(order) - rank) for rank, at in enumerate(order)]
    return _restore_order(order, accumulate(raised, min))


def _restore_order(order: Sequence[int], values: Iterable[float]) -> list[float]:
    """The values sorted back by their indices `order`."""
    return [value for _, value in sorted(zip(order, values, strict=True))]


def power(effect: float, error: float, freedom: float, *, alpha: float = 1 - LEVEL) -> float:
    """The probability that a two-sided test finds a true effect, with the right sign."""
    from scipy.special import nctdtr

    shift, reach = effect / error, t_interval(1 - alpha, freedom)
    below = float(nctdtr(freedom, shift, reach))
    # Beyond some 37 standard errors scipy's series underflows to NaN.
    return 1 - below if below == below else float(shift > reach)


def power_within(
    effect: float, delta: float, error: float, freedom: float, *, alpha: float = 1 - LEVEL
) -> float:
    """The probability that two one-sided tests place a true effect within delta.

    Both use one estimate of the error. For each such estimate the effect is normal, and the mean
    is over estimates of equal chance.
    """
    import numpy as np
    from scipy.special import chdtri, ndtr

    chances = (np.arange(_ESTIMATES) + 0.5) / _ESTIMATES
    reach = t_interval(1 - 2 * alpha, freedom) * np.sqrt(chdtri(freedom, chances) / freedom)
    high, low = (delta - effect) / error - reach, (-delta - effect) / error + reach
    return float(np.maximum(ndtr(high) - ndtr(low), 0.0).mean())


def detectable(error: float, freedom: float, *, alpha: float = 1 - LEVEL) -> float:
    """The true difference that is found with 80 % power."""
    from scipy.special import nctdtrinc

    reach = t_interval(1 - alpha, freedom)
    return error * float(nctdtrinc(freedom, 1 - POWER, reach))


@cache
def t_below(t: float, freedom: float) -> float:
    """The probability that Student's t is below `t`."""
    from scipy.special import stdtr  # imported late, for commands that do not need it

    return float(stdtr(freedom, t))


@cache
def t_interval(level: float, freedom: float) -> float:
    """The half-width about zero that holds Student's t with probability `level`."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


def _unpaired(ours: Values, theirs: Values, variants: Sequence[Values]) -> Estimate | None:
    """The difference by the pooled variance if variances are similar, else by Welch's method."""
    left, right = mean([*ours.values()]), mean([*theirs.values()])
    if left is None or right is None:
        return None
    value, seeds = left.value - right.value, left.seeds + right.seeds
    noisy, quiet = sorted([ours, theirs], key=lambda one: -_pooled_variance([one])[0])
    rest = [one for one in variants if one is not noisy]
    others = [one for one in variants if one is not ours and one is not theirs]
    both, between = _pooled_variance([ours, theirs]), _pooled_variance([noisy])
    repeated = _count_repeated(others) > 0
    is_quieter = repeated and _p_quieter(*both, *_pooled_variance(others)) <= _QUIETER
    is_noisier = 2 * _p_noisier(*between, *_pooled_variance(rest)) <= _NOISIER
    if repeated and not is_quieter and not is_noisier:
        pooled, freedom = _pooled_variance(variants)
        error = math.sqrt(pooled * (1 / left.seeds + 1 / right.seeds))
        method = f"pooled over {_count_repeated(variants)} variants"
        return Estimate(value, error, freedom, seeds, method=method)
    a, b = left.error**2, right.error**2
    # Only one side's degrees of freedom count where one is noisier than the other, or both are far
    # quieter than other variants, which may be chance.
    freedom = min(left.freedom, right.freedom)
    are_alike = 2 * _p_noisier(*between, *_pooled_variance([quiet])) > _UNEQUAL_LEVEL
    if a + b and are_alike and not is_quieter:
        freedom = (a + b) ** 2 / (a**2 / left.freedom + b**2 / right.freedom)
    return Estimate(value, math.sqrt(a + b), freedom, seeds, method="Welch")


def _paired(
    ours: Values, theirs: Values, common: Sequence[int], others: Sequence[Values]
) -> Estimate:
    """The paired difference, its variance pooled with the residual of others if similar."""
    difference = mean([ours[seed] - theirs[seed] for seed in common])
    assert difference is not None
    own, method, freedom = difference.error**2, "paired", difference.freedom
    if len(others) > 1:
        _, residual = _two_way(_score_matrix(others, common))
        rest, count = 2 * residual / len(common), (len(others) - 1) * (len(common) - 1)
        if _similar(own, freedom, rest, count):
            own = (freedom * own + count * rest) / (freedom + count)
            freedom, method = freedom + count, f"paired, pooled over {len(others) + 2} variants"
    return replace(difference, error=math.sqrt(own), freedom=freedom, paired=True, method=method)


def _seeds_correlate(variants: Sequence[Values], seeds: Sequence[int]) -> bool:
    """Whether seeds are shown to act alike on three or more variants."""
    if len(variants) < 3 or len(seeds) < 3:
        return False
    between, residual = _two_way(_score_matrix(variants, seeds))
    if not residual:
        return between > 0
    shared = (between - residual) / (between + (len(variants) - 1) * residual)
    freedom = len(seeds) - 1
    chance = _p_noisier(between, freedom, residual, (len(variants) - 1) * freedom)
    return chance < _CORRELATION_LEVEL and shared > CORRELATED


def _two_way(rows: NDArray[np.float64]) -> tuple[float, float]:
    """The mean squares between columns and of the residual of a two-way layout."""
    of_row, of_column = rows.mean(1, keepdims=True), rows.mean(0)
    rest = rows - of_row - of_column + rows.mean()
    height, freedom = len(rows), len(of_column) - 1
    between = height * float(((of_column - rows.mean()) ** 2).sum()) / freedom
    return between, float((rest**2).sum()) / (freedom * max(1, height - 1))


def _score_matrix(variants: Sequence[Values], seeds: Sequence[int]) -> NDArray[np.float64]:
    """[variants, seeds] scores."""
    import numpy as np

    return np.array([[one[seed] for seed in seeds] for one in variants])


def _pooled_variance(variants: Iterable[Values]) -> tuple[float, float]:
    """The pooled variance within variants, and its degrees of freedom."""
    squares = freedom = 0.0
    for one in variants:
        if len(one) > 1:
            centre = statistics.fmean(one.values())
            squares += sum((value - centre) ** 2 for value in one.values())
            freedom += len(one) - 1
    return (squares / freedom if freedom else 0.0), freedom


def _similar(own: float, freedom: float, rest: float, count: float) -> bool:
    """Whether a variance is shown to be neither above nor far below that of the rest."""
    chances = _p_noisier(own, freedom, rest, count), _p_quieter(own, freedom, rest, count)
    return chances[0] > _NOISIER and chances[1] > _QUIETER


def _p_noisier(own: float, freedom: float, rest: float, count: float) -> float:
    """The p-value of the test that a variance is above that of the rest."""
    from scipy.special import fdtrc

    if not rest or not count:
        return float(not own)
    return float(fdtrc(freedom, count, own / rest))


def _p_quieter(own: float, freedom: float, rest: float, count: float) -> float:
    return 1 - _p_noisier(own, freedom, rest, count) if rest else 1.0


def _count_repeated(variants: Iterable[Values]) -> int:
    return sum(len(one) > 1 for one in variants)


def _add_item_error(estimate: Estimate, items: ItemError) -> Estimate:
    """The estimate with the error of the evaluation set added to that of the seeds.

    The part that both include is counted once, and bounds the seeds' part from below.
    """
    seeds, own = estimate.error**2, items.variance - items.chance
    freedom = _freedom([seeds, own], [estimate.freedom, items.freedom]) if own else estimate.freedom
    return replace(estimate, error=math.sqrt(max(seeds, items.chance) + own), freedom=freedom)


def _freedom(variances: Sequence[float], freedoms: Sequence[float]) -> float:
    """The degrees of freedom of a sum of variances.

    Each counts by its share. Satterthwaite squares the shares; by simulation that gives too many if
    the variance of three seeds is small by chance.
    """
    if not (total := sum(variances)):
        return min(freedoms)
    shares = (one / total / freedom for one, freedom in zip(variances, freedoms, strict=True))
    return min(_KNOWN_FREEDOM, 1 / sum(shares))

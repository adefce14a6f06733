"""Intervals, tests and their power, against closed forms, printed tables and simulated studies."""

from __future__ import annotations

import math
import random
from pathlib import Path
from statistics import NormalDist, fmean, stdev

import pytest

from clozelab.statistics import Estimate, difference, holm, mean, summary, t_interval, t_survival


@pytest.mark.parametrize("t", [0.0, 0.1, 1.0, 2.5, 12.7, 300.0])
def test_the_tail_is_the_closed_form_where_there_is_one(t: float) -> None:
    assert t_survival(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), abs=1e-12)
    assert t_survival(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-12)


@pytest.mark.parametrize(("freedom", "reach"), [
    (1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (20, 2.086), (120, 1.980),
])  # fmt: skip
def test_the_reach_is_that_of_the_printed_tables(freedom: float, reach: float) -> None:
    assert t_interval(0.95, freedom) == pytest.approx(reach, abs=6e-4)


def test_many_degrees_of_freedom_are_a_normal_distribution() -> None:
    normal = NormalDist().inv_cdf(0.975)
    assert t_interval(0.95, 1e6) == pytest.approx(normal, abs=1e-5)
    assert 2.776 < t_interval(0.95, 3.5) < 3.182  # Welch's are seldom whole


def test_a_mean_is_told_with_its_interval() -> None:
    found = mean([88.0, 89.0, 90.0])
    assert found is not None
    half = 4.303 / math.sqrt(3)
    assert (found.value, found.seeds, found.freedom) == (89.0, 3, 2)
    assert (found.low, found.high) == pytest.approx((89 - half, 89 + half), abs=1e-3)
    assert mean([88.0]) is None and mean([]) is None


def test_a_summary_has_an_interval_only_of_several() -> None:
    assert summary([3.0]) == {"best": 3.0, "median": 3.0, "mean": 3.0, "runs": 1}
    both = summary([80.0, 90.0])
    assert (both["low"], both["high"]) == pytest.approx((85 - 63.53, 85 + 63.53), abs=0.01)


def test_seeds_that_pair_are_compared_pair_by_pair() -> None:
    ours, theirs = {0: 80.0, 1: 60.0, 2: 70.0}, {2: 69.0, 1: 59.2, 0: 78.8}
    found = difference(ours, theirs)
    assert found is not None and found.paired and found.seeds == 3
    assert found.value == pytest.approx(1.0) and found.half == pytest.approx(0.497, abs=1e-3)


def test_only_seeds_of_both_pair() -> None:
    found = difference({0: 5.0, 1: 6.0, 2: 99.0}, {0: 4.0, 1: 4.5, 7: 0.0})
    assert found is not None and found.seeds == 2 and found.value == pytest.approx(1.25)


def test_other_seeds_are_compared_as_welch_did() -> None:
    ours = dict(enumerate([27.5, 21.0, 19.0, 23.6, 17.0, 17.9]))
    theirs = {9 + n: x for n, x in enumerate([27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0])}
    found = difference(ours, theirs)
    assert found is not None and not found.paired and found.seeds == 14
    a, b = stdev(ours.values()) ** 2 / 6, stdev(theirs.values()) ** 2 / 8
    assert found.value == pytest.approx(fmean(ours.values()) - fmean(theirs.values()))
    assert found.error == pytest.approx(math.sqrt(a + b))
    assert found.freedom == pytest.approx((a + b) ** 2 / (a * a / 5 + b * b / 7))


def test_one_seed_tells_nothing_of_a_difference() -> None:
    assert difference({0: 9.0}, {0: 1.0}) is None
    assert difference({0: 9.0}, {1: 1.0, 2: 1.5}) is None
    assert difference({}, {}) is None


def test_equal_values_are_sure_of_themselves() -> None:
    found = difference({0: 2.0, 1: 2.0}, {5: 1.0, 6: 1.0})
    assert found is not None and found.low == found.high == 1.0
    assert found.p() == 0.0 and found.p(1.0) == 1.0


def test_a_chance_and_an_interval_agree() -> None:
    found = Estimate(1.2, 0.5, 4, 5)
    assert found.p(found.low) == pytest.approx(0.05, abs=1e-6)
    assert found.p(found.high) == pytest.approx(0.05, abs=1e-6)
    assert found.p() < 0.1 and found.p(1.2) == 1.0


def test_holm_raises_the_least_the_most_and_keeps_the_order() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == [] and holm([0.02]) == [0.02]


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Paired and Welch's, three seeds each: 95 % of 1500 within four standard errors."""
    draw, hits = random.Random(0).gauss, [0, 0]
    for _ in range(1500):
        noise = [draw(0, 2) for _ in range(3)]  # what a seed does to both variants
        ours = {seed: 1 + noise[seed] + draw(0, 1) for seed in range(3)}
        theirs = {seed: noise[seed] + draw(0, 1) for seed in range(3)}
        apart = {3 + seed: draw(0, 1) for seed in range(3)}
        for kind, other in enumerate((theirs, apart)):
            own = ours if kind == 0 else {seed: 1 + draw(0, 1) for seed in range(3)}
            found = difference(own, other)
            assert found is not None and found.paired == (kind == 0)
            hits[kind] += found.low < 1 < found.high
    error = math.sqrt(0.95 * 0.05 / 1500)
    assert abs(hits[0] / 1500 - 0.95) < 4 * error
    # Welch's is known to err on the safe side with so few.
    assert -4 * error < hits[1] / 1500 - 0.95 < 0.04


def test_the_minimum_detectable_effect_is_detected_four_times_in_five() -> None:
    """With five seeds, nearly: the t of a true difference is not quite Student's."""
    five = Estimate(0.0, 1 / math.sqrt(5), 4, 5)
    draw, seen = random.Random(1).gauss, 0
    for _ in range(1500):
        found = mean([five.detectable + draw(0, 1) for _ in range(5)])
        assert found is not None
        seen += found.low > 0
    assert 0.72 < seen / 1500 < 0.86


def test_the_documentation_has_the_right_numbers() -> None:
    page = Path(__file__).parents[3] / "docs" / "reading-results.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    rows = [line.split("|")[2:-1] for line in lines if line.startswith(("| seeds", "| detectable"))]
    assert len(rows) == 2 and len(rows[0]) == len(rows[1]) > 3
    for seeds, told in zip(*rows, strict=True):
        many = int(seeds)
        found = Estimate(0.0, 1 / math.sqrt(many), many - 1, many).detectable
        assert float(told) == pytest.approx(found, abs=0.0501)

"""Intervals, tests and their power, against closed forms, printed tables and simulated studies."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist, fmean, stdev

import numpy as np
import pytest

from clozelab.statistics import (
    Estimate,
    ItemError,
    Values,
    benjamini_hochberg,
    contrast,
    detectable,
    holm,
    item_error,
    level,
    mean,
    power,
    power_within,
    sum_of_items,
    summary,
    t_below,
    t_interval,
)


def difference(ours: Values, theirs: Values, *others: Values) -> Estimate | None:
    every = {"ours": ours, "theirs": theirs, **{str(n): values for n, values in enumerate(others)}}
    return contrast(every, "ours", "theirs")


@pytest.mark.parametrize("t", [0.0, 0.1, 1.0, 2.5, 12.7, 300.0])
def test_the_tail_is_the_closed_form_where_there_is_one(t: float) -> None:
    assert 2 * t_below(-t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), abs=1e-12)
    assert 2 * t_below(-t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-12)


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
    estimate = mean([88.0, 89.0, 90.0])
    assert estimate is not None
    half = 4.303 / math.sqrt(3)
    assert (estimate.value, estimate.seeds, estimate.freedom) == (89.0, 3, 2)
    assert (estimate.low, estimate.high) == pytest.approx((89 - half, 89 + half), abs=1e-3)
    assert mean([88.0]) is None and mean([]) is None


def test_a_summary_has_an_interval_only_of_several() -> None:
    assert summary([3.0]) == {"best": 3.0, "median": 3.0, "mean": 3.0, "runs": 1}
    both = summary([80.0, 90.0])
    assert (both["low"], both["high"]) == pytest.approx((85 - 63.53, 85 + 63.53), abs=0.01)


def test_seeds_are_paired_where_a_teacher_is_shared() -> None:
    scores = {"ours": {0: 80.0, 1: 60.0, 2: 70.0}, "theirs": {2: 69.0, 1: 59.2, 0: 78.8}}
    estimate = contrast(scores, "ours", "theirs", related=True)
    assert (
        estimate is not None
        and estimate.paired
        and estimate.seeds == 3
        and estimate.method == "paired"
    )
    assert estimate.value == pytest.approx(1.0) and estimate.half == pytest.approx(0.497, abs=1e-3)
    alone = contrast(scores, "ours", "theirs")
    assert alone is not None and not alone.paired and alone.half > 10


def test_seeds_are_paired_where_they_are_shown_to_act_alike() -> None:
    ours, theirs = {0: 80.0, 1: 60.0, 2: 70.0}, {0: 78.8, 1: 59.2, 2: 69.0}
    others = {0: 75.0, 1: 55.4, 2: 66.0}, {0: 81.0, 1: 61.5, 2: 70.4}
    estimate = difference(ours, theirs, *others)
    assert (
        estimate is not None
        and estimate.paired
        and estimate.method == "paired, pooled over 4 variants"
    )
    # As two pairs, whose differences are equally noisy.
    gaps = [[a[seed] - b[seed] for seed in a] for a, b in ((ours, theirs), others)]
    assert estimate.error == pytest.approx(math.sqrt(fmean(stdev(gap) ** 2 for gap in gaps) / 3))
    assert estimate.freedom == 4
    # Two variants alone show nothing of seeds, however much they agree.
    assert (lone := difference(ours, theirs)) is not None and not lone.paired


def test_what_two_variants_cannot_show_of_seeds_eight_can() -> None:
    rows = np.random.default_rng(2).normal(size=(8, 4)) + 0.6 * np.arange(4)
    values = [dict(enumerate(row)) for row in rows.tolist()]
    seeds, rest = rows.mean(0).var(ddof=1) * 8, rows - rows.mean(1, keepdims=True) - rows.mean(0)
    ratio = float(seeds / (((rest + rows.mean()) ** 2).sum() / 21))
    assert 3.07 < ratio < 9.28  # shown by F of 3 and 21 degrees of freedom, not by one of 3 and 3
    estimate = difference(*values)
    assert estimate is not None and estimate.paired


def test_noise_that_is_alike_is_pooled_over_variants() -> None:
    ours, theirs = {0: 5.0, 1: 6.0, 2: 5.4}, {0: 4.1, 1: 4.0, 2: 5.0}
    others = {0: 7.0, 1: 8.2, 2: 7.7}, {0: 9.0, 1: 8.0, 2: 8.3}
    estimate = difference(ours, theirs, *others)
    assert (
        estimate is not None
        and estimate.method == "pooled over 4 variants"
        and estimate.freedom == 8
    )
    variances = [stdev(seed_scores.values()) ** 2 for seed_scores in (ours, theirs, *others)]
    assert estimate.error == pytest.approx(math.sqrt(fmean(variances) * 2 / 3))
    noisy = difference({0: 5.0, 1: 60.0, 2: 30.0}, theirs, *others)
    assert noisy is not None and noisy.method == "Welch" and noisy.freedom == 2
    quiet = difference({0: 5.0, 1: 5.0001}, {0: 4.0, 1: 4.0001}, {0: 1.0, 1: 9.0, 2: 5.0})
    assert quiet is not None and quiet.method == "Welch" and quiet.half < 0.01


def test_two_variants_alone_are_compared_as_welch_did() -> None:
    ours = dict(enumerate([27.5, 21.0, 19.0, 23.6, 17.0, 17.9]))
    theirs = {9 + n: x for n, x in enumerate([27.1, 20.0, 19.8, 23.4, 25.4, 17.5, 26.8, 22.0])}
    estimate = difference(ours, theirs)
    assert estimate is not None and not estimate.paired and estimate.seeds == 14
    a, b = stdev(ours.values()) ** 2 / 6, stdev(theirs.values()) ** 2 / 8
    assert estimate.value == pytest.approx(fmean(ours.values()) - fmean(theirs.values()))
    assert estimate.error == pytest.approx(math.sqrt(a + b))
    assert estimate.freedom == pytest.approx((a + b) ** 2 / (a * a / 5 + b * b / 7))


def test_one_seed_tells_nothing_of_a_difference() -> None:
    assert difference({0: 9.0}, {0: 1.0}) is None
    assert difference({0: 9.0}, {1: 1.0, 2: 1.5}) is None
    assert difference({}, {}) is None and level({"a": {0: 1.0}}, "a") is None


def test_equal_values_are_never_certain_where_items_count() -> None:
    scores = {"a": {0: 49.3, 1: 49.3, 2: 49.3}, "b": {0: 47.3, 1: 47.3, 2: 47.3}}
    estimate = contrast(scores, "a", "b", items=ItemError(2 * 1.56**2))
    assert estimate is not None and estimate.half == pytest.approx(
        1.96 * 1.56 * math.sqrt(2), rel=1e-3
    )
    assert estimate.p() > 0.3
    alone = level(scores, "a", items=ItemError(1.56**2))
    assert alone is not None and (alone.low, alone.high) == pytest.approx((46.2, 52.4), abs=0.05)


def test_the_error_of_items_leaves_out_what_seeds_show_already() -> None:
    knows = np.array([100.0, 0.0, 100.0, 0.0])
    always = item_error({0: knows, 1: knows, 2: knows})
    assert always == ItemError(knows.var(ddof=1) / 4, 0.0, 3)
    luck = item_error({0: [100.0, 0.0], 1: [0.0, 100.0]})  # right by chance alone
    assert luck.variance == 0.0 and luck.chance == 0.0
    some = item_error({0: [100.0, 0.0, 100.0], 1: [100.0, 100.0, 0.0]})
    assert 0 < some.chance <= some.variance
    # What a seed does to both is no chance: a shared teacher's whims.
    both = item_error(
        {0: [3.0, 1.0, 2.0], 1: [0.0, 5.0, 1.0]}, {0: [2.0, 0.0, 1.0], 1: [0.0, 5.0, 1.0]}
    )
    assert both.variance == pytest.approx(0.0) and both.chance == pytest.approx(0.0)
    # Without a seed in common there is nothing to tell chance by.
    apart = item_error({0: [3.0, 1.0]}, {1: [1.0, 2.0]})
    assert apart.variance == pytest.approx(9 / 2 / 2) and apart.chance == 0.0
    assert item_error({0: [3.0], 1: [2.0]}) == ItemError()


def test_what_seeds_and_items_both_show_is_counted_once() -> None:
    items = ItemError(3.0, chance=1.0)
    noisy = contrast({"a": {0: 1.0, 1: 3.0}, "b": {0: 0.0, 1: 2.0}}, "a", "b", items=items)
    still = contrast({"a": {0: 1.0, 1: 1.0}, "b": {0: 0.0, 1: 0.0}}, "a", "b", items=items)
    assert noisy is not None and noisy.error**2 == pytest.approx(2.0 + (3.0 - 1.0))
    assert still is not None and still.error**2 == pytest.approx(1.0 + (3.0 - 1.0))


def test_few_items_have_few_degrees_of_freedom() -> None:
    scores = {"a": {0: 49.3, 1: 49.3}, "b": {0: 47.3, 1: 47.3}}
    few = contrast(scores, "a", "b", items=ItemError(4.0, freedom=5))
    assert few is not None and few.freedom == pytest.approx(5) and few.error == 2.0
    noisy = contrast({"a": {0: 1.0, 1: 3.0}, "b": {0: 0.0, 1: 2.0}}, "a", "b", items=ItemError(2.0))
    assert (
        noisy is not None and noisy.error == 2.0 and noisy.freedom == pytest.approx(2 * 2, rel=1e-4)
    )
    both = sum_of_items([ItemError(1.0, 0.5, 10), ItemError(1.0, 0.0, 30)])
    assert both == ItemError(2.0, 0.5, 15)
    assert both.scaled(1 / 2) == ItemError(0.5, 0.125, 15)  # of the mean: variances, not deviations


def test_a_level_has_the_noise_of_all_where_it_is_alike() -> None:
    scores = {"a": {0: 1.0, 1: 1.9}, "b": {0: 5.0, 1: 6.1}, "c": {0: 7.0, 1: 8.4}}
    estimate = level(scores, "a")
    assert (
        estimate is not None
        and estimate.freedom == 3
        and estimate.method == "pooled over 3 variants"
    )
    lone = level({"a": scores["a"]}, "a")
    assert lone is not None and lone.freedom == 1 and lone.method == "alone"


def test_a_chance_and_an_interval_agree() -> None:
    estimate = Estimate(1.2, 0.5, 4, 5)
    assert estimate.p(estimate.low) == pytest.approx(0.05, abs=1e-6)
    assert estimate.p(estimate.high) == pytest.approx(0.05, abs=1e-6)
    assert estimate.p() < 0.1 and estimate.p(1.2) == 1.0


def test_holm_raises_the_least_the_most_and_keeps_the_order() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == [] and holm([0.02]) == [0.02]


def test_the_correction_of_benjamini_and_hochberg_is_scipys() -> None:
    from scipy.stats import false_discovery_control

    p_values = [0.01, 0.04, 0.03, 0.2, 0.9, 0.011]
    assert benjamini_hochberg(p_values) == pytest.approx(list(false_discovery_control(p_values)))
    assert benjamini_hochberg([]) == [] and benjamini_hochberg([0.02]) == [0.02]


def test_two_one_sided_tests_place_a_value_within_bounds() -> None:
    estimate = Estimate(0.1, 0.1, 20, 10)
    assert estimate.p_within(0.5) == pytest.approx(t_below(-4.0, 20))
    assert estimate.p_within(0.15) > 0.25 and Estimate(1.0, 0.1, 20, 10).p_within(0.5) > 0.99


def test_the_power_of_a_huge_effect_is_one() -> None:
    assert [power(side * 1e3, 1.0, 18.0) for side in (1, -1)] == [1.0, 0.0]
    assert power(40.0, 1.0, 18.0) == pytest.approx(1.0)


@pytest.mark.parametrize("freedom", [2, 4, 12.5, 60])
def test_power_is_that_of_simulated_tests(freedom: float) -> None:
    random = np.random.default_rng(0)
    noise, spread = random.normal(size=20_000), random.chisquare(freedom, 20_000) / freedom
    for effect in (0.0, 2.0, detectable(1.0, freedom)):
        hits = float(np.mean((noise + effect) / np.sqrt(spread) > t_interval(0.95, freedom)))
        assert power(effect, 1.0, freedom) == pytest.approx(hits, abs=0.012)
    reach = t_interval(0.90, freedom) * np.sqrt(spread)
    for effect, delta in ((0.0, 1.0), (0.0, 2.0), (1.0, 2.5), (1.0, 5.0), (-1.0, 5.0), (4.0, 3.0)):
        within = float(np.mean((np.abs(noise + effect) + reach) < delta))
        assert power_within(effect, delta, 1.0, freedom) == pytest.approx(within, abs=0.012)


def test_the_minimum_detectable_effect_is_detected_four_times_in_five() -> None:
    assert power(detectable(2.0, 4), 2.0, 4) == pytest.approx(0.8, abs=1e-6)


def test_the_documentation_has_the_right_numbers() -> None:
    page = Path(__file__).parents[3] / "docs" / "reading-results.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    rows = [line.split("|")[2:-1] for line in lines if line.startswith(("| seeds", "| detectable"))]
    assert len(rows) == 2 and len(rows[0]) == len(rows[1]) > 3
    for seeds, stated in zip(*rows, strict=True):
        size = detectable(math.sqrt(2 / int(seeds)), 1.5 * (int(seeds) - 1))
        assert float(stated) == pytest.approx(size, abs=0.0501)

"""Pearson and Spearman: by hand, and numbers that scipy 1.17 gave."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from clozelab.finetuning.metrics.numbers import pearson, spearman

VALUES = st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=2, max_size=20)


@pytest.mark.parametrize(
    ("gold", "predicted", "line", "rank"),
    [
        (
            [2.5, 1, 0.5, 4, 0, 2.5, 0],
            [2.7, 2.2, 0.4, 2.5, 1.5, 1.6, 0.8],
            71.0742315594,
            76.3762615826,
        ),
        (
            [1, 0.5, 2.5, 4, 1, 5, 2.5],
            [2.3, 2.8, 2.3, 3.2, 1.7, 5.7, 2.9],
            80.1822122941,
            71.5626447332,
        ),
        (
            [5, 0.5, 0, 2.5, 4, 0.5, 1],
            [4.8, 1.3, -2.0, 2.1, 3.7, 1.2, 3.3],
            80.4128954336,
            95.4993710457,
        ),
    ],
)
def test_correlations_are_those_of_scipy(
    gold: list[float], predicted: list[float], line: float, rank: float
) -> None:
    assert pearson(gold, predicted) == pytest.approx(line, abs=1e-8)
    assert spearman(gold, predicted) == pytest.approx(rank, abs=1e-8)


def test_equal_numbers_share_the_mean_of_their_ranks() -> None:
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4, about 2.5: -1.5 0 0 1.5 and -1.5 -.5 .5 1.5;
    # product 4.5, squares 4.5 and 5 → 4.5 / sqrt(22.5).
    assert spearman([1, 7, 7, 9], [0, 1, 2, 3]) == pytest.approx(100 * 4.5 / 22.5**0.5)
    # Pearson of 0 0 1 against 0 1 2: (-1/3)(-1) + 0 + (2/3)(1) = 1; squares 2/3 and 2.
    assert pearson([0, 0, 1], [0, 1, 2]) == pytest.approx(100 / (4 / 3) ** 0.5)


@pytest.mark.parametrize("score", [pearson, spearman])
def test_what_tells_nothing_scores_nothing(score) -> None:  # type: ignore[no-untyped-def]
    # 0.1 ten times: their mean is not 0.1, so the variance is not quite 0.
    assert score([0.1] * 10, range(10)) == score(range(10), [0.1] * 10) == 0
    assert score([], []) == score([1.0], [2.0]) == 0
    assert score([1, 2, 3], [1, float("nan"), 3]) == score([1, 2, 3], [1, 2, float("inf")]) == 0
    with pytest.raises(ValueError, match="2 gold numbers and 1 predicted"):
        score([1, 2], [1])


def test_huge_and_tiny_numbers_keep_their_correlation() -> None:
    gold = np.array([1.0, 2.0, 4.0, 3.0])
    for scale in (1e300, 1e-300):
        assert pearson(gold, gold * scale) == pytest.approx(100)
        assert pearson(gold * scale, -gold) == pytest.approx(-100)


@pytest.mark.thorough
@given(VALUES)
def test_only_order_matters_to_ranks_and_only_shape_to_the_line(
    pairs: list[tuple[int, int]],
) -> None:
    gold, predicted = (np.array(side, dtype=float) for side in zip(*pairs, strict=True))
    assert spearman(gold, predicted) == pytest.approx(spearman(gold, predicted**3), abs=1e-9)
    assert pearson(gold, predicted) == pytest.approx(pearson(gold, 3 * predicted - 7), abs=1e-6)
    for score in (pearson, spearman):
        whole = score(gold, predicted)
        assert score(predicted, gold) == pytest.approx(whole, abs=1e-9)
        assert score(gold, -predicted) == pytest.approx(-whole, abs=1e-9)
        assert score(gold[::-1], predicted[::-1]) == pytest.approx(whole, abs=1e-9)
        assert -100 <= whole <= 100


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_perfect_is_a_hundred(gold: list[float]) -> None:
    assume(max(gold) - min(gold) > 1e-3)
    assert pearson(gold, gold) == pytest.approx(100)
    assert spearman(gold, gold) == pytest.approx(100)

"""Accuracy, F1 and Matthews' correlation: by hand, and numbers that scikit-learn 1.9 gave."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozelab.finetuning.metrics.classes import accuracy, f1, macro_f1, matthews

LABELS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1)


@pytest.mark.parametrize(
    ("gold", "predicted", "expected"),
    [  # accuracy, F1 of class a, macro F1, Matthews
        ("babaaabaa", "babaaaaba", (77.7777777778, 83.3333333333, 75.0, 50.0)),
        ("aacabbacacbc", "aaaaacabbbbc", (50.0, 72.7272727273, 44.8773448773, 24.1889723423)),
        ("bbacdcdcaadbcbd", "baccdcacaacdcba", (60.0, 50.0, 57.5, 49.4166211107)),
    ],
)
def test_scores_are_those_of_scikit_learn(
    gold: str, predicted: str, expected: tuple[float, ...]
) -> None:
    scores = (
        accuracy(gold, predicted),
        f1(gold, predicted, positive="a"),
        macro_f1(gold, predicted),
        matthews(gold, predicted),
    )
    assert scores == pytest.approx(expected, abs=1e-9)


def test_a_case_by_hand() -> None:
    gold, predicted = "yyyynnnnnn", "yyynynnnnn"  # 3 hits, 1 missed, 1 false, 5 rightly not
    assert accuracy(gold, predicted) == 80  # 8 of 10
    assert f1(gold, predicted, positive="y") == pytest.approx(75)  # P = R = 3/4
    assert f1(gold, predicted, positive="n") == pytest.approx(100 * 5 / 6)  # P = R = 5/6
    assert macro_f1(gold, predicted) == pytest.approx(100 * (3 / 4 + 5 / 6) / 2)
    # (3·5 - 1·1) / sqrt(4·4·6·6) = 14/24
    assert matthews(gold, predicted) == pytest.approx(100 * 14 / 24)


def test_a_constant_scores_what_theory_says() -> None:
    gold = "y" * 7 + "n" * 3
    assert accuracy(gold, "y" * 10) == 70
    assert f1(gold, "y" * 10, positive="y") == pytest.approx(100 * 14 / 17)  # P .7, R 1
    assert f1(gold, "y" * 10, positive="n") == 0
    assert matthews(gold, "y" * 10) == matthews(gold, "n" * 10) == matthews("y" * 10, gold) == 0


def test_all_wrong_of_two_classes_is_minus_a_hundred() -> None:
    assert matthews("ababa", "babab") == pytest.approx(-100)


def test_f1_of_a_class_that_is_nowhere_is_nothing() -> None:
    assert f1("aa", "aa", positive="b") == 0


def test_macro_f1_counts_a_class_that_is_only_predicted() -> None:
    # a: P 1, R 1/2 → 2/3; b: predicted once, never there → 0.
    assert macro_f1("aa", "ab") == pytest.approx(100 / 3)


def test_no_examples_score_nothing_and_unequal_lengths_are_refused() -> None:
    assert accuracy([], []) == macro_f1([], []) == matthews([], []) == 0
    for score in (accuracy, macro_f1, matthews):
        with pytest.raises(ValueError, match="shorter"):
            score("ab", "a")


@given(LABELS, st.randoms())
def test_order_and_names_of_classes_do_not_matter(pairs: list[tuple[str, str]], chance) -> None:  # type: ignore[no-untyped-def]
    mixed = chance.sample(pairs, len(pairs))
    renamed = [tuple({"a": "x", "b": "c", "c": "b"}[label] for label in pair) for pair in pairs]
    for score in (accuracy, macro_f1, matthews):
        whole = score(*zip(*pairs, strict=True))
        assert score(*zip(*mixed, strict=True)) == pytest.approx(whole)
        assert score(*zip(*renamed, strict=True)) == pytest.approx(whole)
        assert score(*zip(*((b, a) for a, b in pairs), strict=True)) == pytest.approx(whole)
        assert -100 - 1e-9 <= whole <= 100 + 1e-9


@given(st.lists(st.sampled_from("abc"), min_size=1))
def test_perfect_is_a_hundred(gold: list[str]) -> None:
    assert accuracy(gold, gold) == macro_f1(gold, gold) == 100
    assert matthews(gold, gold) == pytest.approx(100 if len(set(gold)) > 1 else 0)

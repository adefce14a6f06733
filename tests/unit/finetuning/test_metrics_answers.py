"""SQuAD 1.1 and 2.0: cases worked by hand from the rules of the official scripts."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozelab.finetuning.metrics.answers import (
    ENGLISH,
    best_threshold,
    normalise,
    overlap,
    squad1,
    squad2,
)

WORDS = [
    "a",
    "the",
    "An",
    "cat",
    "dog",
    "Cat's",
    "the.",
    "—",
    "U.S.",
    "théâtre",
    "another",
    ".",
    "",
]
TEXT = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)
QUESTION = st.tuples(
    st.lists(TEXT, max_size=3), TEXT, st.one_of(st.sampled_from([-1.0, 0.0, 1.0]), st.floats(-9, 9))
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat's\tpaw.", "cats paw"),
        ("another theatre, banana", "another theatre banana"),  # articles inside words stay
        ("a.k.a. the-an", "aka thean"),  # punctuation goes first, so no article is left here
        ("A a AN the", ""),
        ("“the” end—a", "“ ” end—"),  # only ASCII punctuation goes; an article beside another does
        ("théâtre", "théâtre"),
        ("U.S.\u00a0$5\n", "us 5"),  # a space is whatever splits words
        ("ÀN", "àn"),
        ("a_b", "ab"),
    ],
)
def test_a_text_is_normalised_as_the_scripts_do_it(text: str, expected: str) -> None:
    assert normalise(text) == expected


@pytest.mark.parametrize(
    ("gold", "predicted", "expected"),
    [
        ("the quick brown fox", "brown fox", 4 / 5),  # shared 2, P 1, R 2/3
        ("cat cat dog", "cat dog dog", 2 / 3),  # bags: one cat and one dog shared of 3 and 3
        ("dog cat", "cat dog", 1.0),  # order does not matter, but to the exact match
        ("1998", "in 1998", 2 / 3),
        ("cat", "catalogue", 0.0),
    ],
)
def test_overlap_is_f1_of_bags_of_words(gold: str, predicted: str, expected: float) -> None:
    assert overlap(gold, predicted) == pytest.approx(expected)
    assert ENGLISH.overlap_or_none(gold, predicted) == overlap(gold, predicted)


def test_what_is_empty_once_normalised_agrees_in_the_second_version_only() -> None:
    for gold, predicted in [("", ""), ("the", ""), ("", "a."), ("The", "an")]:
        assert ENGLISH.exact(gold, predicted) == 1
        assert overlap(gold, predicted) == 0  # 1.1 shares no word, so EM may be above F1 here
        assert ENGLISH.overlap_or_none(gold, predicted) == 1
    for gold, predicted in [("cat", "the"), ("the", "cat"), ("", "cat"), ("cat", "")]:
        assert ENGLISH.exact(gold, predicted) == ENGLISH.overlap_or_none(gold, predicted) == 0


def test_the_best_gold_answer_counts_and_twice_counts_once() -> None:
    gold = [["Paris", "the city of Paris", "Paris"], ["1998", "1998"]]
    # "city of Paris": exact by the second answer. "in 1998": F1 2/3.
    scores = squad1(gold, ["city of Paris!", "in 1998"])
    assert scores == pytest.approx({"exact": 50, "f1": 100 * (1 + 2 / 3) / 2})


def test_the_second_version_tells_questions_with_and_without_answer_apart() -> None:
    gold = [["the cat", "cat"], ["dog"], [], [], ["The", "A."]]
    predicted = ["a cat sat", "", "", "cat", ""]
    # 1: F1 of "cat" with "cat sat": P 1/2, R 1 → 2/3. 2: 0. 3: right. 4: wrong.
    # 5: its answers are articles alone, so the gold is the empty text, and it is right;
    #    yet the question counts among those with answers.
    expected = {
        "exact": 40,  # 3 and 5 of 5
        "f1": 100 * (2 / 3 + 1 + 1) / 5,
        "HasAns_exact": 100 / 3,
        "HasAns_f1": 100 * (2 / 3 + 1) / 3,
        "NoAns_exact": 50,
        "NoAns_f1": 50,
    }
    assert squad2(gold, predicted) == pytest.approx(expected)


def test_an_answer_of_articles_alone_is_dropped_beside_another() -> None:
    assert squad2([["the", "cat"]], [""])["exact"] == 0
    assert squad1([["the", "cat"]], [""])["exact"] == 100  # 1.1 drops nothing


def test_kinds_of_questions_that_are_not_there_are_left_out() -> None:
    assert set(squad2([["cat"]], ["cat"])) == {"exact", "f1", "HasAns_exact", "HasAns_f1"}
    assert set(squad2([[]], ["cat"])) == {"exact", "f1", "NoAns_exact", "NoAns_f1"}
    assert squad1([], []) == squad2([], []) == {"exact": 0, "f1": 0}


def test_refusing_every_question_scores_the_part_without_answers() -> None:
    gold = [["cat"]] * 3 + [[]] * 2
    assert squad2(gold, [""] * 5)["f1"] == squad2(gold, [""] * 5)["exact"] == 40


# Null scores ascending, so that thresholds keep the first 0, 1, 2, 3 or 4 answers.
#   question  answers    prediction  null   F1
#   1         cat        cat         -3     1
#   2         none       dog         -1     0
#   3         big dog    dog          2     2/3
#   4         none       cat          5     0
# Kept 0: 2 questions right without answer. 1: 3. 2: 2. 3: F1 2 2/3. 4: F1 1 2/3.
SWEEP = ([["cat"], [], ["big dog"], []], ["cat", "dog", "dog", "cat"], [-3.0, -1.0, 2.0, 5.0])


def test_the_best_threshold_by_hand() -> None:
    assert best_threshold(*SWEEP) == -3
    # If "fish" and "dog" are right, none, 1 or 3 kept score 2 of 4: of these the lowest.
    assert best_threshold([["fish"], [], ["dog"], []], *SWEEP[1:]) < -3
    assert best_threshold([["cat"], [], ["dog"], ["cat"]], *SWEEP[1:]) == 5  # all kept: 3 of 4


def test_no_threshold_lies_between_equal_null_scores() -> None:
    # All withdrawn: 2 of 3. All kept: 1. Only the first kept: 3 of 3, which the script reports.
    gold, predicted, nulls = [["cat"], [], []], ["cat", "dog", "dog"], [0.5, 0.5, 0.5]
    assert best_threshold(gold, predicted, nulls) == 0


def test_articles_alone_are_no_answer_when_a_threshold_is_looked_for() -> None:
    gold, predicted, nulls = [[], ["cat"]], ["the", "cat"], [0.1, 0.2]
    # Withdrawn: 1 of 2. "the" kept is right still, so both kept are 2; the script counts 1, 0, 1.
    assert best_threshold(gold, predicted, nulls) == 0.2


def test_a_probability_that_withdraws_all_is_zero_as_in_the_script() -> None:
    assert best_threshold([[], []], ["cat", "dog"], [0.2, 0.9]) == best_threshold([], [], []) == 0


@given(st.lists(QUESTION, min_size=1, max_size=6))
def test_no_threshold_scores_more_than_the_best(
    questions: list[tuple[list[str], str, float]],
) -> None:
    gold, predicted, nulls = zip(*questions, strict=True)

    def at(threshold: float) -> float:
        answers = ["" if x > threshold else p for x, p in zip(nulls, predicted, strict=True)]
        return squad2(gold, answers)["f1"]

    best = at(best_threshold(gold, predicted, nulls))
    assert best == pytest.approx(max(map(at, [-100, *nulls])))


@given(st.lists(QUESTION, min_size=1, max_size=6))
def test_exact_match_is_never_above_f1_in_the_second_version(
    questions: list[tuple[list[str], str, float]],
) -> None:
    gold, predicted, _ = zip(*questions, strict=True)
    scores = squad2(gold, predicted)
    assert scores["exact"] <= scores["f1"] + 1e-9
    assert squad2(gold[::-1], predicted[::-1]) == pytest.approx(scores)
    assert squad2([[*golds, *golds] for golds in gold], predicted) == pytest.approx(scores)


@given(TEXT, TEXT)
def test_two_answers_agree_as_much_either_way(first: str, second: str) -> None:
    for score in (ENGLISH.exact, overlap, ENGLISH.overlap_or_none):
        assert score(first, second) == pytest.approx(score(second, first))
    if normalise(first):
        assert ENGLISH.exact(first, second) <= overlap(first, second)
        assert overlap(first, first) == 1


def test_the_order_of_gold_answers_does_not_matter() -> None:
    scores = [squad2([order], ["a big cat"]) for order in permutations(["cat", "big dog", "the"])]
    assert all(score == scores[0] for score in scores)

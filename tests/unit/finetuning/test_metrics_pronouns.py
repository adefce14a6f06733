"""GAP: a case worked by hand from the rules of its scorer."""

from __future__ import annotations

import pytest

from clozelab.errors import UserError
from clozelab.finetuning.metrics.clusters import PronounAnswer, gap

ROWS = [
    PronounAnswer("He", (True, False), (True, False)),  # hit
    PronounAnswer("his", (True, False), (False, True)),  # missed A, false B
    PronounAnswer("She", (False, True), (False, True)),  # hit
    PronounAnswer("her", (False, False), (True, False)),  # false A
    PronounAnswer("hers", (True, False), None),  # no prediction: both names are missed
]


def test_scores_by_hand() -> None:
    scores = gap(ROWS)
    # Masculine: 1 hit of 2, 1 of 2 predicted right → F1 1/2.
    assert scores["masculine_f1"] == pytest.approx(50)
    # Feminine: gold 1 (She) + 2 (missing), 1 hit → R 1/3; predicted 2, P 1/2 → F1 2/5.
    assert scores["feminine_recall"] == pytest.approx(100 / 3)
    assert scores["feminine_precision"] == pytest.approx(50)
    assert scores["feminine_f1"] == pytest.approx(40)
    # Overall: 2 hits, R 2/5, P 2/4 → F1 4/9; bias 40/50.
    assert scores["f1"] == pytest.approx(400 / 9)
    assert scores["bias"] == pytest.approx(0.8)


def test_perfect_is_a_hundred_without_bias() -> None:
    scores = gap([row._replace(predicted=row.gold) for row in ROWS])
    assert scores["f1"] == scores["masculine_f1"] == scores["feminine_f1"] == 100
    assert scores["bias"] == 1


def test_a_ratio_with_nothing_is_zero_and_never_left_out() -> None:
    assert gap([])["bias"] == gap([])["f1"] == 0
    he, she = (PronounAnswer(word, (True, False), (True, False)) for word in ("he", "she"))
    for rows in ([he], [she], ROWS[:2]):
        assert gap(rows)["bias"] == 0 and set(gap(rows)) == set(gap(ROWS))


def test_saying_both_names_always_recalls_all() -> None:
    rows = [PronounAnswer("he", (True, False), (True, True))] * 3 + [
        PronounAnswer("she", (False, False), (True, True))
    ]
    scores = gap(rows)
    assert scores["recall"] == 100 and scores["precision"] == pytest.approx(100 * 3 / 8)


def test_a_pronoun_without_gender_is_refused() -> None:
    with pytest.raises(UserError, match="'they' is not one that GAP asks about"):
        gap([PronounAnswer("they", (True, False), (True, False))])

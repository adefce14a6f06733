"""Entities and their scores: by hand, and numbers that seqeval 1.2.2 gave."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozelab.errors import UserError
from clozelab.finetuning.metrics.entities import Scheme, scores, spans

TAGS = st.lists(st.sampled_from([f"{r}-{t}" for r in "BIES" for t in "XY"] + ["O", "B", "I"]))


def sentences(text: str) -> list[list[str]]:
    return [sentence.split() for sentence in text.split("|")]


def f1(gold: list[list[str]], predicted: list[list[str]]) -> float:
    return scores(gold, predicted)["f1"]


def entities_of(tags: str, scheme: Scheme | None = None) -> list[tuple[str, int, int]]:
    return [tuple(entity) for entity in spans(tags.split(), scheme)]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("B-X I-X O B-Y", [("X", 0, 1), ("Y", 3, 3)]),
        ("O I-X I-X", [("X", 1, 2)]),  # an I after an O begins one
        ("B-X I-Y I-Y", [("X", 0, 0), ("Y", 1, 2)]),  # so does a change of type
        ("B-X B-X I-X", [("X", 0, 0), ("X", 1, 2)]),
        ("I-X I-X B-X", [("X", 0, 1), ("X", 2, 2)]),  # IOB1
        ("B-X I-X E-X S-X", [("X", 0, 2), ("X", 3, 3)]),  # BIOES
        ("I-X E-X E-X I-X", [("X", 0, 1), ("X", 2, 2), ("X", 3, 3)]),  # IOE2
        ("S-X I-X E-Y", [("X", 0, 0), ("X", 1, 1), ("Y", 2, 2)]),
        ("B I O E", [("_", 0, 1), ("_", 3, 3)]),  # without types
        ("B I-X", [("_", 0, 0), ("X", 1, 1)]),
        ("B-person-real I-person-real", [("person-real", 0, 1)]),
        ("O O", []),
        ("", []),
    ],
)
def test_tags_are_read_as_conlleval_does(tags: str, expected: list[tuple[str, int, int]]) -> None:
    assert entities_of(tags) == expected


@pytest.mark.parametrize(
    ("scheme", "tags", "expected"),
    [
        ("iob2", "I-X I-X O B-X I-X", [("X", 3, 4)]),  # what no B begins is none
        ("iob2", "B-X I-Y I-X", [("X", 0, 0)]),
        ("iob2", "B-X B-X", [("X", 0, 0), ("X", 1, 1)]),
        ("iob1", "I-X I-X B-X I-Y", [("X", 0, 1), ("X", 2, 2), ("Y", 3, 3)]),
        ("iob1", "B-X O", []),  # a B that touches none of its type begins none
        ("iob1", "B-X I-X", [("X", 1, 1)]),
        ("iob1", "I-X B-X B-Y", [("X", 0, 0)]),
        ("bioes", "B-X I-X E-X S-Y", [("X", 0, 2), ("Y", 3, 3)]),
        ("bioes", "B-X I-X O E-X", []),  # what no E ends is none
        ("bioes", "B-X E-Y B-X B-X E-X", [("X", 3, 4)]),
        ("bioes", "S-X I-X E-X", [("X", 0, 0)]),
    ],
)
def test_tags_are_read_strictly_as_seqeval_does(
    scheme: Scheme, tags: str, expected: list[tuple[str, int, int]]
) -> None:
    assert entities_of(tags, scheme) == expected


@pytest.mark.parametrize(
    ("scheme", "gold", "predicted", "expected"),
    [  # precision, recall, F1 over two sentences of random tags
        (
            None,
            "B-Y S-Y E-Y E-X E-Y B-X B-X | E-X B-Y S-X B-X S-X",
            "B-Y S-Y E-Y E-X S-Y B-X B-X | E-X O S-X B-X S-X",
            (100.0, 91.6666666667, 95.652173913),
        ),
        (
            None,
            "S-Y B-Y S-Y I-Y I-Y I-X I-Y | I-X S-Y O B-X O",
            "S-Y B-Y E-Y I-Y I-Y B-X I-Y | I-X E-X O B-X B-Y",
            (62.5, 55.5555555556, 58.8235294118),
        ),
        (
            "iob1",
            "B-X O I-X O O I-Y B-X | B-X O O B-X I-X",
            "B-X I-X I-X O I-Y I-Y I-X | O O O B-X I-X",
            (25.0, 33.3333333333, 28.5714285714),
        ),
        (
            "iob1",
            "B-Y B-X I-Y B-X B-Y O I-Y | I-X I-Y B-Y B-Y O",
            "B-Y B-X B-Y B-X O B-X B-X | I-X I-Y B-Y O O",
            (75.0, 50.0, 60.0),
        ),
        (
            "iob2",
            "B-Y I-X B-X B-Y I-X B-X O | I-Y O B-Y B-Y B-X",
            "B-Y I-X B-X B-Y I-X B-X B-Y | I-Y O I-X I-X B-X",
            (83.3333333333, 71.4285714286, 76.9230769231),
        ),
        (
            "bioes",
            "O O I-Y B-Y I-Y E-Y B-X | B-Y E-Y O I-Y O",
            "O O I-Y O I-Y I-X O | B-Y E-Y O I-X O",
            (100.0, 50.0, 66.6666666667),
        ),
        (
            "bioes",
            "E-Y E-X E-Y O B-Y O S-Y | I-X B-Y I-Y E-Y E-Y",
            "E-Y E-X E-Y B-X E-Y O B-X | E-X B-Y I-Y E-Y O",
            (100.0, 50.0, 66.6666666667),
        ),
    ],
)
def test_scores_are_those_of_seqeval(
    scheme: Scheme | None, gold: str, predicted: str, expected: tuple[float, ...]
) -> None:
    own_scores = scores(sentences(gold), sentences(predicted), scheme=scheme)
    assert tuple(own_scores.values()) == pytest.approx(expected, abs=1e-8)


def test_entities_by_hand() -> None:
    gold = sentences("B-X I-X O B-Y | B-X O")
    predicted = sentences("B-X O O B-Y | B-X B-Y")
    # Of 3 there and 4 found 2 are right: the first X has the wrong end, the last Y is none.
    found = {"precision": 50, "recall": 200 / 3, "f1": 400 / 7}
    assert scores(gold, predicted) == pytest.approx(found)


def test_the_same_place_in_another_sentence_is_another_entity() -> None:
    assert f1(sentences("B-X O | O O"), sentences("O O | B-X O")) == 0


def test_finding_nothing_and_having_nothing_score_nothing() -> None:
    nothing = {"precision": 0, "recall": 0, "f1": 0}
    assert scores(sentences("B-X O"), sentences("O O")) == nothing
    assert scores(sentences("O O"), sentences("O O")) == nothing == scores([], [])


def test_bad_tags_are_refused() -> None:
    with pytest.raises(UserError, match="tag 'PER' is neither O nor B-"):
        spans(["PER"])
    with pytest.raises(UserError, match="tag 2, 'E-X', is not of iob2, which has only I, O, B"):
        spans(["B-X", "E-X"], "iob2")


@given(st.lists(st.tuples(TAGS, TAGS), max_size=4))
def test_perfect_is_a_hundred_and_sides_swap_precision_for_recall(
    pairs: list[tuple[list[str], list[str]]],
) -> None:
    gold = [first[: len(other)] for first, other in pairs]
    predicted = [other[: len(first)] for first, other in pairs]
    own_scores = scores(gold, predicted)
    assert own_scores == scores(gold[::-1], predicted[::-1])
    swapped = scores(predicted, gold)
    assert (swapped["precision"], swapped["recall"]) == (
        own_scores["recall"],
        own_scores["precision"],
    )
    assert f1(gold, gold) == (100 if any(map(spans, gold)) else 0)


@given(TAGS)
def test_entities_lie_apart_in_order_and_cover_what_is_not_outside(tags: list[str]) -> None:
    covered = [place for _, first, last in spans(tags) for place in range(first, last + 1)]
    assert covered == [place for place, tag in enumerate(tags) if tag != "O"]

"""Schemes of tags: legality, guessing and conversion."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozelab.contracts import UserError
from clozelab.tasks.metrics.entities import spans
from clozelab.tasks.metrics.schemes import Scheme, convert, illegal, legal, scheme_of

SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
# Entities as (words outside before it, type, words in it): any text has such a list.
ENTITIES = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["X", "Y", "a-b"]), st.integers(1, 3))
)

SAME = {  # X of two words, X right after it, Y right after that, then outside, then X of three
    "iob1": "I-X I-X B-X I-Y O I-X I-X I-X",
    "iob2": "B-X I-X B-X B-Y O B-X I-X I-X",
    "bioes": "B-X E-X S-X S-Y O B-X I-X E-X",
}


def written(entities: list[tuple[int, str, int]]) -> list[str]:
    tags = []
    for outside, kind, words in entities:
        tags += ["O"] * outside + [f"B-{kind}"] + [f"I-{kind}"] * (words - 1)
    return tags


@pytest.mark.parametrize(("source", "target"), list(product(SCHEMES, SCHEMES)))
def test_the_same_entities_by_hand(source: Scheme, target: Scheme) -> None:
    assert convert(SAME[source].split(), source, target) == SAME[target].split()


def test_tags_without_types_are_converted_too() -> None:
    assert convert(["B", "I", "O", "B"], "iob2", "bioes") == ["B", "E", "O", "S"]
    assert convert([], "iob1", "bioes") == []


@pytest.mark.parametrize(
    ("scheme", "tags", "place", "problem"),
    [
        ("iob2", "O I-X", 1, "I-X cannot stand after O in iob2"),
        ("iob2", "I-X", 0, "I-X cannot stand at the begin in iob2"),
        ("iob2", "B-X I-Y I-X", 1, "I-Y cannot stand after B-X in iob2"),
        ("iob2", "B-X E-X", 1, "iob2 has no E"),
        ("iob1", "B-X", 0, "B-X cannot stand at the begin in iob1"),
        ("iob1", "I-X B-Y", 1, "B-Y cannot stand after I-X in iob1"),
        ("bioes", "B-X O", 1, "O cannot stand after B-X in bioes"),
        ("bioes", "S-X E-X", 1, "E-X cannot stand after S-X in bioes"),
        ("bioes", "B-X I-Y E-Y", 1, "I-Y cannot stand after B-X in bioes"),
        ("bioes", "O B-X I-X", 2, "I-X cannot stand at the end in bioes"),
    ],
)
def test_the_first_illegal_place_is_named(
    scheme: Scheme, tags: str, place: int, problem: str
) -> None:
    assert illegal(tags.split(), scheme) == (place, problem)
    assert not legal(tags.split(), scheme)
    with pytest.raises(UserError, match=f"^tag {place + 1}: {problem}: mend it"):
        convert(tags.split(), scheme, "iob2")


def test_the_scheme_is_guessed() -> None:
    for scheme, tags in SAME.items():
        assert scheme_of([["O"], tags.split()]) == scheme
    assert scheme_of([["O", "O"], []]) == "iob2"
    assert scheme_of([["S-X"]]) == "bioes"
    assert scheme_of([["I-X"]]) == "iob1"
    assert scheme_of([["I-X", "E-X", "O", "E-X"]]) is None  # IOE
    # One slip among many does not change it.
    assert scheme_of([["B-X", "I-X", "O", "B-Y"], ["O", "I-X"]]) == "iob2"


@settings(deadline=None, derandomize=True)
@given(ENTITIES)
def test_every_way_round_comes_back_and_says_the_same(entities: list[tuple[int, str, int]]) -> None:
    tags = written(entities)
    for first, second in product(SCHEMES, SCHEMES):
        one = convert(tags, "iob2", first)
        assert legal(one, first)
        assert convert(convert(one, first, second), second, "iob2") == tags
        assert spans(one) == spans(one, first) == spans(tags)  # strict or not
    if entities:
        assert all(scheme_of([convert(tags, "iob2", scheme)]) == scheme for scheme in SCHEMES)

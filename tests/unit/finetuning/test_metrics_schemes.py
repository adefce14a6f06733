"""Schemes of tags: what each allows, and that all say the same."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozelab.finetuning.metrics.entities import Scheme, is_legal, spans

SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
# Entities as (words outside before it, type, words in it): any text has such a list.
ENTITIES = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["X", "Y", "a-b"]), st.integers(1, 3))
)

SAME: dict[Scheme, str] = {
    # X of two words, X right after it, Y right after that, then outside, then X of three
    "iob1": "I-X I-X B-X I-Y O I-X I-X I-X",
    "iob2": "B-X I-X B-X B-Y O B-X I-X I-X",
    "bioes": "B-X E-X S-X S-Y O B-X I-X E-X",
}


def written(entities: list[tuple[int, str, int]], scheme: Scheme) -> list[str]:
    tags: list[str] = []
    for outside, kind, words in entities:
        tags += ["O"] * outside
        touches = bool(tags) and tags[-1].partition("-")[2] == kind
        roles = ["B", *"I" * (words - 1)]
        if scheme == "iob1" and not touches:
            roles[0] = "I"
        if scheme == "bioes":
            roles[-1] = "E" if words > 1 else "S"
        tags += [f"{role}-{kind}" for role in roles]
    return tags


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_same_entities_are_legal_in_their_own_scheme_alone(scheme: Scheme) -> None:
    for other, tags in SAME.items():
        assert is_legal(tags.split(), scheme) == (scheme == other)
    assert is_legal([], scheme) and is_legal(["O", "O"], scheme)


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("iob2", "O I-X"),
        ("iob2", "I-X"),
        ("iob2", "B-X I-Y I-X"),
        ("iob2", "B-X E-X"),
        ("iob1", "B-X"),
        ("iob1", "I-X B-Y"),
        ("bioes", "B-X O"),
        ("bioes", "S-X E-X"),
        ("bioes", "B-X I-Y E-Y"),
        ("bioes", "O B-X I-X"),
    ],
)
def test_tags_that_break_a_scheme_are_illegal(scheme: Scheme, tags: str) -> None:
    assert not is_legal(tags.split(), scheme)


@given(ENTITIES)
def test_entities_are_legal_in_every_scheme_and_read_the_same(
    entities: list[tuple[int, str, int]],
) -> None:
    tags = written(entities, "iob2")
    for scheme in SCHEMES:
        tagged = written(entities, scheme)
        assert is_legal(tagged, scheme)
        assert spans(tagged) == spans(tagged, scheme) == spans(tags)  # strict or not

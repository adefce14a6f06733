"""Ranges of fields: stated once, in the type, and checked wherever a part is made."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import pytest

from clozelab.config.recipe import read
from clozelab.errors import UserError
from clozelab.masking.token import Token
from clozelab.ranges import BelowOne, Checked, PositiveInt, Share, at_least
from clozelab.training.optimiser import Adamw, Muon


@dataclass(frozen=True)
class _Part(Checked):
    share: Share = 0.5
    pair: tuple[BelowOne, BelowOne] = (0.9, 0.99)
    count: PositiveInt | None = None
    length: Annotated[int, at_least(3, "a block holds at least 3 tokens")] = 3
    word: Literal["long", "short"] | None = None
    other: str = ""


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"share": 1.5}, "share = 1.5: must be a share, between 0 and 1"),
        ({"share": math.nan}, "share = nan: must be a share, between 0 and 1"),
        ({"share": "much"}, "share = much: must be a share, between 0 and 1"),
        ({"pair": (0.5, 1.0)}, "pair = [0.5, 1.0]: must each be at least 0 and below 1"),
        ({"count": 0}, "count = 0: must be at least 1"),
        ({"length": 2}, "length = 2: a block holds at least 3 tokens"),
        ({"word": "wide"}, "word = wide: must be one of long, short"),
    ],
)
def test_what_is_out_of_its_range_is_refused_in_python_too(
    values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError) as refused:
        _Part(**values)
    assert str(refused.value) == sentence
    with pytest.raises(UserError):
        replace(_Part(), **values)


def test_what_is_in_its_range_is_taken_and_none_is_in_any() -> None:
    assert _Part(share=0, pair=(0, 0), count=None) != _Part(share=1, count=1, length=4)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Token(mask_rate=1.0), "mask_rate = 1.0: must be above 0"),
        (lambda: Token(cap=0), "cap = 0: leave it out"),
        (lambda: Token(cap=3, count="bernoulli"), "cap = 3: has no effect when each token"),
        (lambda: Adamw(0.0), "learning_rate = 0.0: must be above 0, for instance 1e-4"),
        (lambda: Adamw(1e-3, clip=-1.0), "clip = -1.0: must be at least 0"),
        (lambda: Muon(1e-3, iterations=100), "iterations = 100: must be at least 1 and below 100"),
    ],
)
def test_parts_state_their_ranges(make: Any, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        make()
    assert str(refused.value).startswith(sentence)


def test_a_recipe_says_where() -> None:
    with pytest.raises(UserError, match=r"^bert: masking\.mask_rate = 0\.0: must be above 0"):
        read("bert", overrides=["masking.mask_rate=0"])
    with pytest.raises(UserError, match=r"^bert: optimiser\.betas = \[0\.9, 1\.0\]: must each"):
        read("bert", overrides=["optimiser.betas=[0.9, 1.0]"])

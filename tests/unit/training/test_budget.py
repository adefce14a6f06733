"""Budgets: what a user may write, and how many steps it buys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozelab.errors import UserError
from clozelab.training.budget import Budget, parse, steps


@pytest.mark.parametrize(
    ("word", "kind", "amount"),
    [
        ("90s", "seconds", 90),
        ("20m", "seconds", 1200),
        ("1.5h", "seconds", 5400),
        ("500ktok", "tokens", 5e5),
        ("300Mtok", "tokens", 3e8),
        ("2Gtok", "tokens", 2e9),
        ("700tok", "tokens", 700),
        ("12steps", "steps", 12),
    ],
)
def test_a_number_and_its_unit_are_a_budget(word: str, kind: str, amount: float) -> None:
    budget = parse(word)
    assert (budget.kind, budget.amount) == (kind, amount)


@pytest.mark.parametrize(
    "word",
    ["", "20", "m", "20 m", "-5m", "20M", "3mtok", "1e3s", "5mins", "²m", "1.s", "12steps\n"],
)
def test_anything_else_is_refused_with_examples(word: str) -> None:
    with pytest.raises(UserError, match=r"not a budget.*20m.*300Mtok.*12steps"):
        parse(word)


def test_nothing_and_parts_of_a_step_are_refused() -> None:
    with pytest.raises(UserError, match="0m: must be above 0"):
        parse("0m")
    with pytest.raises(UserError, match="give 2steps"):
        parse("1.6steps")


def test_steps_are_as_many_as_fit() -> None:
    assert steps(parse("12steps"), tokens_a_step=1e9, seconds_a_step=None) == 12
    assert steps(parse("1ktok"), tokens_a_step=300, seconds_a_step=None) == 3
    assert steps(parse("1m"), tokens_a_step=1, seconds_a_step=0.7) == 85
    assert steps(Budget("seconds", 0.3), tokens_a_step=1, seconds_a_step=0.1) == 3


@given(st.integers(1, 10**6), st.floats(1e-4, 1e5))
def test_a_whole_number_of_steps_fits_in_as_many_times_one(count: int, each: float) -> None:
    budget = Budget("tokens", count * each)
    assert steps(budget, tokens_a_step=each, seconds_a_step=None) == count


def test_a_budget_below_one_step_is_refused_and_told_what_one_takes() -> None:
    with pytest.raises(UserError, match=r"500 tokens are too few.* one step takes 32,768 tokens"):
        steps(parse("500tok"), tokens_a_step=32768, seconds_a_step=None)
    with pytest.raises(UserError, match=r"2 seconds are too few.* one step takes 3\.5 seconds"):
        steps(parse("2s"), tokens_a_step=1, seconds_a_step=3.5)


def test_a_budget_of_time_needs_the_time_of_a_step() -> None:
    with pytest.raises(ValueError, match="seconds a step takes"):
        steps(parse("2s"), tokens_a_step=1, seconds_a_step=None)

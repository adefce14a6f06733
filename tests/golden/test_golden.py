"""Losses, batches and records are those of `golden.json`, which `python tools/golden.py` writes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.golden_numbers import (
    DROPOUT,
    RUNS,
    SECTIONS,
    TUNINGS,
    dropout,
    pretraining,
    recorded,
    result,
    tuning,
)

torch.set_num_threads(1)
GOLDEN = recorded()
# Recipes that differ from another in a table or two: left, as changed recipes are, to `make test`.
ALIKE = ("bert_cased", "bert_multilingual", "bert_whole_word", "roberta_wwm")


def close(values: Any) -> Any:
    """The same numbers but for the rounding of another processor."""
    return pytest.approx(values, rel=1e-9, abs=1e-15)


def check(now: dict[str, Any], before: dict[str, Any]) -> None:
    """Digests first: other batches have other losses."""
    for what, digests in before.get("digests", {}).items():
        there = {*now["digests"][what].values()}
        changed = [place for place, digest in digests.items() if digest not in there]
        assert not changed, f"{what}: other values in {', '.join(changed)}"
    for name in before.keys() - {"digests"}:
        if name == "losses":
            assert now[name].keys() == before[name].keys()
            for objective, losses in before[name].items():
                assert now[name][objective] == close(losses), f"the loss of {objective}"
        else:
            assert now[name] == close(before[name]), name


def test_every_case_is_recorded() -> None:
    cases = {section: [*names] for section, (_, names) in SECTIONS.items()}
    assert {section: [*recorded_cases] for section, recorded_cases in GOLDEN.items()} == cases


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.thorough] * ("," in n or n in ALIKE)) for n in RUNS]
)
def test_a_recipe_has_the_batches_and_losses_that_it_had(name: str) -> None:
    check(pretraining(name), GOLDEN["pretraining"][name])


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="has another generator")
@pytest.mark.parametrize("name", DROPOUT)
def test_dropout_is_what_it_was(name: str) -> None:
    check(dropout(name), GOLDEN["dropout"][name])


@pytest.mark.parametrize("name", TUNINGS)
def test_a_task_has_the_batches_and_losses_that_it_had(name: str) -> None:
    check(tuning(name), GOLDEN["fine-tuning"][name])


@pytest.mark.parametrize("name", SECTIONS["results"][1])
def test_a_recorded_result_opens_and_tells_all_that_it_told(name: str) -> None:
    check(result(name), GOLDEN["results"][name])

"""Every recipe's losses and batches are those recorded; `python tools/golden.py` records them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from recording import CASES, DROPPING, measured, recorded

torch.set_num_threads(1)
GOLDEN = recorded()


def close(values: Any) -> Any:
    """The same numbers but for the rounding of another processor."""
    return pytest.approx(values, rel=1e-9, abs=1e-15)


def assert_same_numbers(now: dict[str, Any], before: dict[str, Any]) -> None:
    assert now["losses"].keys() == before["losses"].keys()
    for objective, losses in before["losses"].items():
        assert now["losses"][objective] == close(losses), objective
    for name in ("gradient_norms", "learning_rates", "parameter_norm"):
        assert now[name] == close(before[name]), name


def test_every_case_is_recorded() -> None:
    assert GOLDEN.keys() == CASES.keys() | DROPPING.keys()


@pytest.mark.parametrize("name", CASES)
def test_losses_and_batches_are_those_recorded(name: str) -> None:
    now, before = measured(name), GOLDEN[name]
    for what, digests in before["digests"].items():
        there = {*now["digests"][what].values()}
        changed = [place for place, digest in digests.items() if digest not in there]
        assert not changed, f"{what}: other values in {', '.join(changed)}"
    assert_same_numbers(now, before)


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="another generator")
@pytest.mark.parametrize("name", DROPPING)
def test_what_is_dropped_out_is_that_recorded(name: str) -> None:
    assert_same_numbers(measured(name), GOLDEN[name])

"""Runs and studies whose parts come from outside."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from support.outside_parts import NAME, restored  # noqa: F401
from support.pretrain_runs import pretrain_job, run_pretraining
from support.small_studies import STATIC, read_study, run_study

from clozelab import registry
from clozelab.errors import UserError
from clozelab.models.load import load
from clozelab.pretraining import starting
from clozelab.runs.directory import Run
from clozelab.studies import spec as studies

MINE = {"name": "nth", "says": "each n-th", "set": ["masking.use=each_nth", "masking.n=6"]}


def forget() -> None:
    """As in a new process: the module is not loaded, its parts are not registered."""
    sys.modules.pop(NAME, None)
    for slot, table in registry._outside.items():
        for name in [name for name, (_, module) in table.items() if module == NAME]:
            del table[name], registry._tables[slot][name]
    registry.load_given.cache_clear()


def test_a_run_is_resumed_and_loaded_by_whom_has_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.load(NAME)
    job = pretrain_job("roberta", "masking.use=each_nth", "masking.n=4", steps=2)
    run_pretraining(job, tmp_path / "run")
    assert f'imports = ["{NAME}"]' in (tmp_path / "run" / "recipe.toml").read_text()
    forget()
    monkeypatch.delenv(registry.IMPORTS)
    for reopen in (starting.resumed, lambda place: load(str(place))):
        with pytest.raises(UserError, match=f"if you trust it, give --import {NAME}"):
            reopen(tmp_path / "run")
    registry.load(NAME)
    assert load(str(tmp_path / "run"))
    masking: Any = starting.resumed(tmp_path / "run").recipe.masking
    assert masking.n == 4


@pytest.mark.parametrize("at_once", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_study_has_variants_and_measures_from_outside(at_once: int, tmp_path: Path) -> None:
    registry.load(NAME)
    study = read_study(tmp_path, STATIC, MINE, measures=["held_out.masked_lm", "own.layers"])
    run_study(study, tmp_path / "out", at_once=at_once)  # two are in processes of their own
    result = Run(tmp_path / "out").result() or {}
    assert [cell["failed"] for cell in result["cells"]] == [None, None]
    assert [cell["scores"]["own.layers"] for cell in result["cells"]] == [20.0, 20.0]
    recorded = tmp_path / "out" / "study.toml"
    assert f'imports = ["{NAME}"]' in recorded.read_text()
    assert studies.read(recorded) == study
    with pytest.raises(UserError, match=r"own\.layer is unknown: after own\. did you mean layers"):
        read_study(tmp_path, STATIC, MINE, measures=["own.layer"])

"""The sweep of fine-tuning settings: all tasks count alike, and groups choose for themselves."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SETTINGS = ((5e-5, 3.0), (1e-4, 3.0), (1e-4, 10.0))


@pytest.fixture(scope="module")
def sweep() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "benchmarks" / "tuning_sweep.py"))


def tuned(work: Path, task: str, *scores: float) -> None:
    """A folder of fine-tunings with a score for each setting."""
    cells = [
        {"settings": {"learning_rate": rate, "epochs": epochs}, "selected": {"mean": score}}
        for (rate, epochs), score in zip(SETTINGS, scores, strict=True)
    ]
    (work / task).mkdir(parents=True)
    (work / task / "result.json").write_text(json.dumps({"cells": cells}), encoding="utf-8")


def test_the_best_setting_is_that_of_all_tasks_of_a_group(
    sweep: dict[str, Any], tmp_path: Path
) -> None:
    tuned(tmp_path, "mr", 70.0, 72.0, 71.0)
    tuned(tmp_path, "trec", 50.0, 60.0, 80.0)
    tuned(tmp_path, "qqp", 80.0, 75.0, 70.0)
    tuned(tmp_path, "qqpmnli", 81.5, 75.0, 70.0)
    choices = sweep["chosen"](tmp_path, ["mr", "trec", "qqp"])
    small, large = choices["small"], choices["large"]
    assert (small["learning_rate"], small["epochs"]) == (1e-4, 10.0)  # +16.7 and 0 of two tasks
    assert dict((tuple(s), v) for *s, v in small["over_tasks"])[1e-4, 10.0] == pytest.approx(8.333)
    assert (large["learning_rate"], large["epochs"]) == (5e-5, 3.0)
    assert large["mnli_first"] == {"qqp": 1.5} and small["mnli_first"] == {}


def test_a_level_alone_gives_a_task_no_weight(sweep: dict[str, Any]) -> None:
    tables = {"a": {(1.0, 1.0): 90.0, (2.0, 1.0): 91.0}, "b": {(1.0, 1.0): 12.0, (2.0, 1.0): 10.0}}
    assert sweep["centred"](tables) == {(1.0, 1.0): 0.25, (2.0, 1.0): -0.25}
    tables["b"].pop((2.0, 1.0))
    assert [*sweep["centred"](tables)] == [(1.0, 1.0)]  # what not every task has tried


def test_what_is_not_tried_yet_chooses_nothing(sweep: dict[str, Any], tmp_path: Path) -> None:
    assert sweep["chosen"](tmp_path, ["mr", "qqp"]) == {}

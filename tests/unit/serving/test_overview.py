"""The overview: true to the folders, whatever becomes of them while it looks."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.processes import run_process
from support.study_folders import SCORES, study

from clozelab.config import recipe as recipes
from clozelab.diagnosis.reading import read_run as read_case
from clozelab.reporting import page as reports
from clozelab.reporting.records import gather
from clozelab.runs.directory import PLAN, Run
from clozelab.serving import folder_state
from clozelab.serving.overview import overview

STEPS = 100


def make_run(
    folder: Path, *, steps: int = STEPS, loss: float = 2.0, overrides: tuple[str, ...] = ()
) -> Run:
    """A run so far, ten tokens and two seconds a step."""
    changes = [f"schedule.steps={STEPS}", "schedule.warmup=10", *overrides]
    recipe = recipes.read("bert", size="tiny", overrides=changes)
    machine = {"seed": 0, "data": ["books:1"]}
    run = Run.create(folder, recipe_toml=recipes.to_toml(recipe), machine=machine)
    for step in range(1, steps + 1):
        both = {"masked_lm": {"loss": loss + 5 / step}, "next_sentence": {"loss": 0.7}}
        more = {"learning_rate": 1e-3, "norm": 1.0, "tokens": 10, "seconds": 2.0}
        run.append({"kind": "step", "step": step, **both, **more, "tokens_a_second": 5.0})
    if steps == STEPS:
        run.write_result({"steps": STEPS, "tokens": 10 * STEPS, "seconds": 2.0 * STEPS})
    return run


def look(*places: Path) -> dict[str, Any]:
    """The overview as a browser gets it."""
    page: dict[str, Any] = json.loads(json.dumps(overview(places), allow_nan=False))
    return page


def age(folder: Path, seconds: float = 3600) -> None:
    """As if nothing had been written for so long."""
    then = time.time() - seconds
    for file in folder.rglob("*"):
        os.utime(file, (then, then))


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    places = [tmp_path / name for name in ("done", "half")]
    make_run(places[0])
    make_run(places[1], steps=40, overrides=("objectives.1.weight=0.0",))
    return places


def test_a_run_is_finished_running_or_stopped(runs: list[Path]) -> None:
    done, half = look(*runs)["runs"]
    assert (done["state"], half["state"]) == ("finished", "running")
    assert (half["step"], half["steps"], half["tokens"]) == (40, STEPS, 400)
    assert half["seconds_left"] == pytest.approx(2.0 * 60) and done["seconds_left"] is None
    assert half["tokens_a_second"] == 5.0
    age(runs[1])
    (half,) = look(runs[1])["runs"]
    assert half["state"] == "stopped" and half["seconds_left"] is None
    with Run(runs[1]).writing():  # however long its step takes
        assert look(runs[1])["runs"][0]["state"] == "running"


def test_heads_that_are_not_trained_are_not_shown(runs: list[Path]) -> None:
    page = look(*runs)
    done, half = page["runs"]
    assert done["losses"]["next_sentence"] == {"train": 0.7}
    assert "next_sentence" not in half["losses"]
    (figure,) = [chart for chart in page["charts"] if chart["title"].startswith("next sentence")]
    assert [line["name"] for line in figure["lines"]] == ["done"]


@pytest.mark.parametrize("best", [60, 0])
def test_losses_are_those_of_the_weights_that_are_kept(best: int, tmp_path: Path) -> None:
    run = make_run(tmp_path / "adapted")
    measured = {
        step: {"loss": loss, "accuracy_mask": loss / 10}
        for step, loss in {0: 4.5, 60: 1.25, STEPS: 1.75}.items()
    }
    for step, means in measured.items():
        run.append({"kind": "held_out", "step": step, "masked_lm": means})
        run.append({"kind": "probe", "step": step, "sst2": {"accuracy": 50.0 + step}})
    kept = measured[best]["loss"]
    run.write_result({**(run.result() or {}), "best_step": best})
    (row,) = look(run.path)["runs"]
    assert row["losses"]["masked_lm"]["held_out"] == kept
    assert row["probes"] == {"sst2 accuracy": 50.0 + best}
    page = reports.page(*gather([run.path]), title="x").markdown()
    assert f" {kept:.3f} |" in page and " 1.750 |" not in page
    assert f"{kept:.4f} at step {best}" in run._repr_html_()
    log = read_case(str(run.path), log_only=True).log
    assert log is not None and log.accuracy["mask"] == pytest.approx(kept / 10)


def test_curves_are_those_of_pages(runs: list[Path]) -> None:
    page = look(*runs)
    titles = [chart["title"] for chart in page["charts"]]
    assert titles[-3:] == ["learning rate", "gradient norm before clipping", "throughput"]
    loss = page["charts"][0]
    assert [line["name"] for line in loss["lines"]] == ["done", "half"]
    assert loss["lines"][1]["y"][-1] == 2 + 5 / 40
    clock = page["clocks"][loss["lines"][1]["clock"]]
    assert (clock["steps"][-1], clock["tokens"][-1], clock["seconds"][-1]) == (40, 400, 80)


def test_losses_are_compared_only_under_one_tokenizer(runs: list[Path]) -> None:
    assert look(*runs)["comparable"] is True
    Run(runs[1]).remember({"tokenizer_digest": "another"})
    page = look(*runs)
    assert page["comparable"] is False
    lines = [
        len(chart["lines"]) for chart in page["charts"] if chart["title"].startswith("masked lm")
    ]
    assert lines == [1, 1]


def test_differences_of_recipes(runs: list[Path]) -> None:
    (row,) = look(*runs)["differences"]["rows"]
    assert row == ["objectives.1.weight", "1.0", "0.0"]
    assert look(runs[0])["differences"] is None


def test_the_doctor_is_heard(tmp_path: Path) -> None:
    make_run(tmp_path / "well", loss=2.0)
    ill = make_run(tmp_path / "ill", steps=60)
    ill.append({"kind": "diverged", "step": 60, "what": "the loss of masked_lm"})
    well, bad = (look(tmp_path / name)["runs"][0]["findings"] for name in ("well", "ill"))
    assert any(finding["level"] == "ill" for finding in bad)
    assert all(finding["level"] != "healthy" and finding["remedy"] for finding in (*well, *bad))
    assert not any("NaN" in finding["title"] for finding in well)


def test_what_is_half_written_or_gone_is_no_error(runs: list[Path]) -> None:
    log = runs[1] / "metrics.jsonl"
    with log.open("a") as file:
        file.write('{"kind": "step", "step": 41, "masked_lm": {"lo')
    assert [row["state"] for row in look(*runs)["runs"]] == ["finished", "running"]
    (runs[0] / "result.json").write_text('{"steps": 1')
    rows = look(*runs)["runs"]
    assert rows[0]["state"] == "unreadable" and "result.json" in rows[0]["error"]
    shutil.rmtree(runs[0])
    rows = look(*runs)["runs"]
    assert rows[0] == {"name": "done", "state": "unreadable", "error": "the folder is gone"}
    assert rows[1]["step"] == 40


def test_a_folder_that_vanishes_while_it_is_read(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove_first(self: Run) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        raise FileNotFoundError(self.path)

    monkeypatch.setattr(Run, "machine", remove_first)
    rows = look(*runs)["runs"]
    assert [row["error"] for row in rows] == ["the folder is gone"] * 2


@pytest.mark.parametrize("name", ["recipe.toml", "machine.toml", "metrics.jsonl", "result.json"])
@pytest.mark.parametrize("content", [b"", b"\xff", b"[1]", b"{}", b'{"kind": "step"}\n'])
def test_damaged_records_leave_the_others_alone(
    name: str, content: bytes, runs: list[Path]
) -> None:
    (runs[0] / name).write_bytes(content)
    rows = look(*runs)["runs"]
    assert rows[1]["step"] == 40 and "state" in rows[0]


def test_nothing_is_read_twice_until_it_changes(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = look(*runs)
    reads: list[Path] = []
    whole = Run.events
    monkeypatch.setattr(
        Run, "events", lambda self, kind=None: reads.append(self.path) or whole(self, kind)
    )
    assert look(*runs) == before and not reads
    Run(runs[1]).append({"kind": "held_out", "step": 40, "masked_lm": {"loss": 1.5}})
    after = look(*runs)
    assert {*reads} == {runs[1]} and after["runs"][1]["losses"]["masked_lm"]["held_out"] == 1.5


def test_it_only_reads(runs: list[Path], tmp_path: Path) -> None:
    study(tmp_path / "study")
    files = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    look(*runs, tmp_path / "study")
    assert files == {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}


def test_a_study_fills_cell_by_cell(tmp_path: Path) -> None:
    part = {**SCORES, "dynamic": [SCORES["dynamic"][0], None, None], "single": [None] * 3}
    place = study(tmp_path / "s", scores=part, failed={("single", 0): "gave up"},
                  begun=[("dynamic", 1), ("dynamic", 2)])  # fmt: skip
    age(place / "cells/dynamic/seed-2")
    (overview_of_study,) = look(place)["studies"]
    assert (
        overview_of_study["done"],
        overview_of_study["failed"],
        overview_of_study["planned"],
        overview_of_study["state"],
    ) == (
        4,
        1,
        9,
        "stopped",
    )
    cells = {
        variant["name"]: [cell["state"] for cell in variant["cells"]]
        for variant in overview_of_study["variants"]
    }
    assert cells == {
        "static": ["done"] * 3,
        "dynamic": ["done", "running", "stopped"],
        "single": ["failed", "waiting", "waiting"],
    }
    assert overview_of_study["variants"][1]["cells"][1]["share"] < 0.5
    assert (
        overview_of_study["verdicts"]
        and overview_of_study["tables"][0]["columns"][0] == "variant"
        and overview_of_study["charts"]
    )
    Run(place).write_result({"study": "s", "cells": []})
    assert look(place)["studies"][0]["done"] == 0


def test_fine_tunings_have_their_scores(tmp_path: Path) -> None:
    spread = {"best": 90.0, "median": 85.0, "mean": 85.0, "runs": 1}
    cell = {"name": "", "settings": {}, "selected": spread, "scores": {"accuracy": spread}}
    cell |= {"seeds": {"0": {"accuracy": 85.0}}, "diverged": 0}
    recipe = recipes.to_toml(recipes.read("bert", size="tiny"))
    Run.create(tmp_path / "t/seed-0", recipe_toml=recipe, machine={}).write_result({"seconds": 6.0})
    data = {"task": "sst2", "train": None, "dev": None}
    plan = {"model": "runs/a", "fresh": False, "data": data, "tuning": {"learning_rate": 1e-5}}
    (tmp_path / "t" / PLAN).write_text(json.dumps(plan))
    (row,) = look(tmp_path / "t")["tunings"]
    assert row == {"name": "t", "task": "sst2", "state": "stopped", "done": 1}
    for number, place in enumerate(("seed-1", "epochs=2/seed-0"), 2):
        Run.create(tmp_path / "t" / place, recipe_toml=recipe, machine={}).write_result({})
        assert look(tmp_path / "t")["tunings"][0]["done"] == number
    shutil.copytree(tmp_path / "t" / "seed-1", tmp_path / "t" / "seed-1-old")
    assert look(tmp_path / "t")["tunings"][0]["done"] == 3
    result = {"task": "sst2", "best": "seed-0", "selected": 85.0, "cells": [cell]}
    Run(tmp_path / "t").write_result({**result, "constant": {"accuracy": 50.9}})
    (row,) = look(tmp_path / "t")["tunings"]
    assert [cells[:2] for cells in row["table"]["rows"]] == [
        ["a", {"text": "85.0", "value": 85.0}],
        ["a constant answer", {"text": "50.9", "value": 50.9}],
    ]


def test_it_needs_no_torch_and_forgets_what_is_not_asked_for(runs: list[Path]) -> None:
    code = "import sys, clozelab.serving.overview; sys.exit('torch' in sys.modules)"
    run_process([sys.executable, "-c", code], check=True)
    readings = folder_state.Readings()
    for place in runs:
        readings.of(place, lambda path: path.name)
    readings.forget_others([runs[0]])
    assert {place for place, _ in readings._cache} == {runs[0]}

"""Several fine-tunings of an encoder at the same time, each in its own process."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
import torch
from support.corpora import ENVIRONMENT
from support.finetune_tasks import sample_file
from support.pretrain_runs import MACHINE, store
from support.processes import start_process
from support.small_studies import (
    DYNAMIC,
    SAVE_OPTIONS,
    STATIC,
    plan_of,
    read_study,
    reviews,
    run_study,
    write_study,
)

from clozelab.errors import UserError
from clozelab.runs.directory import PLAN, Run, json_or_empty
from clozelab.runs.events import Ended
from clozelab.studies import run as runs
from clozelab.studies.cells import CellEvent, SideBySide
from clozelab.studies.run import CellFinished, StudyEvent, follow
from clozelab.training.checkpoint import newest

torch.set_num_threads(1)

TUNED = ["batch_size=4", "length=32", "epochs=2", "learning_rate=1e-3"]
TWICE: dict[str, Any] = {"tunings": 2, "finetune": TUNED}


def matches(place: Path, count: int = 16) -> str:
    """A second task of one's own, in a folder."""
    place.mkdir(parents=True)
    for split, size in (("train", count), ("dev", 16)):
        shutil.copy(sample_file("pairs", size), place / f"{split}.tsv")
    return f"pairs={place}"


def cells(out: Path) -> list[dict[str, Any]]:
    return list((Run(out).result() or {})["cells"])


def scores(out: Path) -> list[dict[str, float]]:
    """The scores of each cell, none of which failed."""
    assert not [cell for cell in cells(out) if cell["failed"]]
    return [cell["scores"] for cell in cells(out)]


def tuned(events: list[StudyEvent]) -> list[str]:
    """The stages of fine-tuning that have ended."""
    ended = [one for one in events if isinstance(one, CellEvent) and isinstance(one.event, Ended)]
    return [one.stage for one in ended if one.stage != "pretraining"]


def test_tunings_side_by_side_stop_and_continue_and_come_to_the_same(tmp_path: Path) -> None:
    tasks = [reviews(), matches(tmp_path / "matches")]
    study = read_study(tmp_path, STATIC, tasks=tasks, **TWICE)
    alone, together = tmp_path / "one", tmp_path / "two"
    run_study(study, alone)
    plan, events = plan_of(study, together, tunings_at_once=2), list[StudyEvent]()
    running = follow(plan, together, machine=MACHINE, saving=SAVE_OPTIONS)
    for event in running:
        events.append(event)
        if tuned(events):
            break
    running.close()  # type: ignore[attr-defined]
    (first,) = tuned(events)
    assert not cells(together) and first in ("reviews/seed-0", "reviews/seed-1")
    assert not [*together.glob("cells/static/seed-0/tasks/matches/seed-1")]  # not even begun
    rest = tuned(run_study(study, together, tunings_at_once=2))
    assert {"matches/seed-0", "matches/seed-1"} <= {*rest} and first not in rest
    assert scores(alone) == scores(together) and len(scores(alone)[0]) > 2
    for folder in alone.glob("cells/static/seed-0/tasks/*"):
        mine, other = (Run(one).result() for one in (folder, together / folder.relative_to(alone)))
        assert mine is not None and other is not None
        assert {**mine, "seconds": 0.0} == {**other, "seconds": 0.0} and mine["seconds"] > 0
    assert not [*together.glob("cells/*/*/tasks/*/*/checkpoints")]
    assert json_or_empty(together / PLAN)["tunings_at_once"] == 2
    before = cells(together)
    for seed in together.glob("cells/*/*/tasks/*/seed-*"):  # as packed records leave them
        shutil.rmtree(seed)
    assert not tuned(run_study(study, together))  # with another number nothing is done twice
    assert cells(together) == before and before[0]["tuning_seconds"] > 0
    for task in together.glob("cells/*/*/tasks/*"):  # whose seconds old records do not have
        Run(task).write_result(
            {k: v for k, v in (Run(task).result() or {}).items() if k != "seconds"}
        )
    run_study(study, together)
    assert cells(together) == before


@pytest.mark.slow
def test_cells_at_once_have_tunings_at_once(tmp_path: Path) -> None:
    tasks = [reviews(), matches(tmp_path / "matches")]
    study = read_study(tmp_path, STATIC, DYNAMIC, tasks=tasks, **TWICE)
    run_study(study, tmp_path / "one")
    run_study(study, tmp_path / "two", at_once=2, tunings_at_once=3)
    assert scores(tmp_path / "one") == scores(tmp_path / "two")


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 2])
def test_a_tuning_that_fails_stops_those_beside_it_and_fails_its_cell(
    at_once: int, tmp_path: Path
) -> None:
    study = read_study(tmp_path, STATIC, tasks=[reviews()], **TWICE)
    out, how = tmp_path / "out", {"at_once": at_once, "tunings_at_once": 2}
    run_study(study, out)
    before = scores(out)
    folder = out / "cells/static/seed-0/tasks/reviews"
    for place in (folder, folder / "seed-0", folder / "seed-1"):
        (place / "result.json").unlink()
    with Run(folder / "seed-0").writing():
        (end,) = [
            event for event in run_study(study, out, **how) if isinstance(event, CellFinished)
        ]
    assert f"process {os.getpid()}" in (end.failed or "") and cells(out)[0]["failed"]
    again = run_study(study, out, **how)
    assert [event.failed for event in again if isinstance(event, CellFinished)] == [None]
    assert scores(out) == before and "reviews.accuracy" in before[0]


@contextmanager
def long_study(place: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], list[Path]]]:
    """A study as a command, and the fine-tunings that take steps."""
    tasks = [matches(place / "matches", 512)]
    file = write_study(place / "masks.toml", STATIC, tasks=tasks, **TWICE)
    command = [sys.executable, "-m", "clozelab", "study", str(file), "--data", store("wordpiece")]
    command += ["--out", str(place / "out"), "--budget", "3steps", "--device", "cpu", *options]
    trials = [place / f"out/cells/static/seed-0/tasks/matches/seed-{seed}" for seed in (0, 1)]
    process = start_process(command, env={**ENVIRONMENT, "OMP_NUM_THREADS": "1"})
    try:
        end = time.monotonic() + 120
        while not all(one.exists() and len(Run(one).events("step")) > 5 for one in trials):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        yield process, trials
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sign", "at_once"), [(signal.SIGINT, "1"), (signal.SIGTERM, "2"), (signal.SIGKILL, "2")]
)
def test_tunings_that_are_interrupted_continue(
    sign: signal.Signals, at_once: str, tmp_path: Path
) -> None:
    options = ("--at-once", at_once, "--tunings-at-once", "2")
    with long_study(tmp_path, *options) as (process, trials):
        (os.killpg if sign == signal.SIGINT else os.kill)(process.pid, sign)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == (-sign if sign == signal.SIGKILL else 128 + sign), stderr
        assert "Traceback" not in stderr, stderr
        if sign != signal.SIGKILL:
            assert "the same command continues from there" in stderr, stderr
        gone(process.pid)
    left = {one for one in trials if Run(one).result() is None}
    assert left and not cells(tmp_path / "out")
    assert all(newest(one / "checkpoints")[0] is not None for one in left)
    study = read_study(tmp_path, STATIC, tasks=[f"pairs={tmp_path / 'matches'}"], **TWICE)
    run_study(study, tmp_path / "out", at_once=int(at_once), tunings_at_once=2)
    assert all(Run(one).events("resume") for one in left)
    run_study(study, tmp_path / "straight")
    assert scores(tmp_path / "out") == scores(tmp_path / "straight")


def gone(group: int) -> None:
    """Wait until no process of a group is left."""
    end = time.monotonic() + 30
    with suppress(ProcessLookupError):
        while time.monotonic() < end:
            os.killpg(group, 0)
            time.sleep(0.05)
        raise AssertionError(f"processes of group {group} are left")


def test_the_parts_of_tunings_are_parts_of_their_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "cores", lambda: 16)
    parts: list[SideBySide | None] = []

    def run_cell(job: Any) -> Iterator[CellEvent]:
        parts.append(job.tunings)
        yield from ()

    monkeypatch.setattr(runs, "run_cell", run_cell)
    study = read_study(tmp_path, STATIC, tasks=[reviews()], tunings=3)
    run_study(study, tmp_path / "some", tunings_at_once=2)
    run_study(study, tmp_path / "all", tunings_at_once=8)  # there are three
    run_study(study, tmp_path / "none")
    run_study(replace(study, tasks=()), tmp_path / "without", tunings_at_once=2)
    two, three = (SideBySide(n, 16 // n, replace(MACHINE, sharers=2 * n)) for n in (2, 3))
    assert parts == [two, three, None, None]
    shared = replace(MACHINE, sharers=4)  # of four cells at once, each with four cores
    plan = plan_of(study, at_once=4, tunings_at_once=2)
    assert runs._tunings(plan, shared, threads=4) == SideBySide(2, 2, replace(shared, sharers=16))


def test_tunings_at_once_are_counted_from_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--tunings-at-once 0: must be at least 1"):
        plan_of(read_study(tmp_path, STATIC), tunings_at_once=0)


def test_the_queue_of_recorded_studies_may_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = Path(__file__).parents[2] / "tools"
    monkeypatch.syspath_prepend(str(tools))
    options = run_path(str(tools / "run_studies.py"))["options"]
    entry = {"name": "one", "at_once": 1, "tunings_at_once": 4}
    assert options(entry) == ["--at-once", "1", "--tunings-at-once", "4"]


@pytest.mark.slow
def test_the_terminal_names_each_tuning_and_its_scores(tmp_path: Path) -> None:
    with long_study(tmp_path, "--at-once", "1", "--tunings-at-once", "2") as (process, _):
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    lines = re.findall(r"^matches/seed-(\d): 128 steps, dev .*accuracy \d+\.\d\d", stderr, re.M)
    assert sorted(lines) == ["0", "1"], stderr

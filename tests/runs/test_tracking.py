"""Trackers: what they are told of a run, and that none of them can stop one."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from threading import Event as Flag
from typing import Any, ClassVar

import pytest
import torch
from support.finetune_tasks import base_model, sample_file
from support.pretrain_runs import MACHINE, QUIET, checkpoint, of_kind, pretrain_job, run_pretraining

import clozelab
from clozelab import tracking
from clozelab.cli import main
from clozelab.config.renamed import OldNameWarning
from clozelab.errors import UserError
from clozelab.pretraining import starting
from clozelab.pretraining.pretrain import pretrain, resume
from clozelab.runs.directory import Run
from clozelab.runs.events import Ended, Said
from clozelab.runs.options import SaveOptions
from clozelab.runs.tracked import rows, runs_at
from clozelab.tracking import TrackedRun, numbers

torch.set_num_threads(1)


class Fake:
    """A tracker that remembers what it was told, in the order in which it was."""

    calls: ClassVar[list[tuple[Any, ...]]] = []

    def begin(self, run: TrackedRun) -> str:
        self.calls.append(("begin", run))
        return "in the memory of a test"

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.calls.append(("log", step, metrics))

    def end(self, status: str) -> None:
        self.calls.append(("end", status))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    """It takes the place of wandb."""
    monkeypatch.setattr(Fake, "calls", [])
    monkeypatch.setitem(tracking.TRACKERS, "wandb", Fake)
    return Fake


def saving(*names: str, **options: Any) -> SaveOptions:
    return replace(QUIET, track=names, **options)


# What a tracker is told


def test_a_tracker_is_told_config_metrics_result_and_tags(tmp_path: Path, fake: type[Fake]) -> None:
    events = run_pretraining(
        pretrain_job("roberta", steps=3), tmp_path / "a", saving=saving("wandb", tags=["mine"])
    )
    (_, run), *logged, (_, status) = fake.calls
    assert (run.name, run.group, status) == ("a", None, "finished")
    assert run.config["masking.use"] == "token" and run.config["machine.device"] == "cpu"
    assert list(run.tags) == ["pretrain", "roberta", "mine"]
    assert [step for _, step, metrics in logged if "train/masked_lm/loss" in metrics] == [1, 2, 3]
    held_out = [metrics for _, _, metrics in logged if "held_out/masked_lm/loss" in metrics]
    result = logged[-1][2]
    assert result["result/held_out/masked_lm/loss"] == held_out[-1]["held_out/masked_lm/loss"]
    assert result["result/steps"] == 3
    assert "wandb: in the memory of a test" in [event.text for event in of_kind(Said, events)]
    # What is sent of a finished run is the same.
    sent = list(rows(Run(tmp_path / "a")))
    assert [each[0] for each in sent] == [each[1] for each in logged]
    assert sent[-1][1] == pytest.approx(result)


def test_a_resumed_run_goes_on_in_its_tracker(tmp_path: Path, fake: type[Fake]) -> None:
    place = tmp_path / "a"
    job, often = pretrain_job("roberta", steps=4), saving("wandb", save_every=2, keep=0)
    started = pretrain(job, place, machine=MACHINE, saving=often)
    for event in started:
        if getattr(event, "number", 0) == 3:
            started.close()
    assert fake.calls[-1] == ("end", "failed")
    first = fake.calls[0][1]
    list(resume(starting.resumed(place), place, machine=MACHINE, saving=QUIET))
    again = [each[1] for each in fake.calls if each[0] == "begin"][1]
    assert again.id == first.id and fake.calls[-1] == ("end", "finished")
    assert [each[1] for each in fake.calls if each[0] == "log"][-1] == 4


def test_a_resumed_run_can_go_on_without(tmp_path: Path, fake: type[Fake]) -> None:
    place = tmp_path / "a"
    run_pretraining(pretrain_job("roberta", steps=2), place, saving=saving("wandb"))
    fake.calls.clear()
    events, without = list[Any](), saving("none")
    for _ in range(2):  # which is recorded, too
        events += resume(starting.resumed(place), place, machine=MACHINE, saving=without)
        without = QUIET
    assert not [event.text for event in of_kind(Said, events) if "continues without" in event.text]
    assert Run(place).machine()["tracking"] == {}
    assert fake.calls == []


def test_trials_of_a_fine_tuning_are_a_group(
    tmp_path: Path, fake: type[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"train": sample_file("definitions", 8), "dev": sample_file("definitions", 8)}
    options: dict[str, Any] = {"set": ["steps=2"], "seeds": 2, "progress": False}
    monkeypatch.setattr(tracking, "find_spec", lambda name: True)
    clozelab.finetune(
        base_model(), "classify", **files, **options, out=tmp_path / "t", track="wandb"
    )
    runs = [each[1] for each in fake.calls if each[0] == "begin"]
    # A folder above may be called as one of ours is.
    place = (tmp_path / "t").rename(tmp_path / "checkpoints")
    assert [run.path.name for run in runs_at(place)] == ["seed-0", "seed-1"]
    assert [run.name for run in runs] == ["t/seed-0", "t/seed-1"]
    assert {run.group for run in runs} == {"t"} and "finetune" in runs[0].tags
    assert len({run.id for run in runs}) == 2
    assert any("dev/accuracy" in each[2] for each in fake.calls if each[0] == "log")


# What fails


class Raises(Fake):
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        raise ConnectionError("no route to host")


class RaisesAtTheStart(Fake):
    def begin(self, run: TrackedRun) -> str:
        raise RuntimeError("not logged in")


class Exits(Fake):
    def begin(self, run: TrackedRun) -> str:
        sys.exit(1)


class HangsAtTheStart(Fake):
    never = Flag()

    def begin(self, run: TrackedRun) -> str:
        self.never.wait()
        return ""


class HangsAtTheEnd(HangsAtTheStart):
    def begin(self, run: TrackedRun) -> str:
        return "there"

    def end(self, status: str) -> None:
        self.never.wait()


@pytest.fixture(scope="module")
def untracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("untracked") / "run"
    run_pretraining(pretrain_job("roberta", steps=3), place)
    return place


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (Raises, r"wandb: failed \(ConnectionError: no route to host\)"),
        (RaisesAtTheStart, r"wandb: failed \(RuntimeError: not logged in\)"),
        (Exits, r"wandb: failed \(SystemExit: 1\)"),
        (HangsAtTheStart, r"wandb: did not answer within 0\.1 s"),
        (HangsAtTheEnd, r"wandb: did not answer within 0\.1 s"),
    ],
)
def test_a_tracker_that_fails_stops_no_run(
    tmp_path: Path,
    untracked: Path,
    monkeypatch: pytest.MonkeyPatch,
    broken: type[Fake],
    says: str,
) -> None:
    monkeypatch.setitem(tracking.TRACKERS, "wandb", broken)
    monkeypatch.setattr(tracking, "LAST_WAIT", 0.1)
    place = tmp_path / "a"
    events = run_pretraining(pretrain_job("roberta", steps=3), place, saving=saving("wandb"))
    assert of_kind(Ended, events)[0].whole
    warned = [
        event.text
        for event in of_kind(Said, events)
        if "the run continues without it" in event.text
    ]
    assert len(warned) == 1, warned
    assert re.match(says, warned[0])
    assert f"clozelab track {place} --to wandb --again" in warned[0]
    mine, other = checkpoint(place, 3).weights(), checkpoint(untracked, 3).weights()
    assert all(torch.equal(mine[name], other[name]) for name in other)


def test_numbers_that_are_not_finite_are_left_out() -> None:
    values = {"masked_lm": {"loss": 2.0, "accuracy": float("nan")}, "name": "x", "n": None, "k": 1}
    assert numbers(values, "dev") == {"dev/masked_lm/loss": 2.0, "dev/k": 1.0}


# What is refused


def test_a_tracker_without_its_package_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    where = ["--out", str(tmp_path / "a"), "--data", str(tmp_path / "nothing")]
    for command in (
        ["pretrain", "roberta", *where],
        ["finetune", "nothing", "sst2", "--out", str(tmp_path / "a")],
        ["adapt", "nothing", *where],
        ["distil", "nothing", *where],
    ):
        assert main([*command, "--track", "mlflow"]) == 2
        message = " ".join(capsys.readouterr().err.split())
        assert message == "clozelab: --track mlflow: mlflow is not installed; pip install mlflow"
    assert main(["track", str(tmp_path), "--to", "trackio"]) == 2
    assert "--to trackio: trackio is not installed; pip install" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_tracker_that_is_not_known_is_refused() -> None:
    with pytest.raises(UserError, match="--track wandbb: is not a tracker; did you mean wandb"):
        clozelab.pretrain("roberta", data="c", out="o", track="wandbb")
    with pytest.raises(UserError, match="--track none: is not a tracker"):
        clozelab.pretrain("roberta", data="c", out="o", track="none,tensorboard")


def test_a_folder_without_a_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: True)
    with pytest.raises(UserError, match="has no run; name a folder made by"):
        clozelab.track(tmp_path, to="wandb", progress=False)


def test_the_old_option_is_read_and_warns() -> None:
    pytest.importorskip("tensorboard")
    with pytest.warns(OldNameWarning, match="--tensorboard is now called --track tensorboard"):
        options = SaveOptions(tensorboard=True)
    assert options.track == ("tensorboard",)


# Runs that are done


def test_a_finished_run_is_sent_once_unless_asked_again(
    tmp_path: Path, fake: type[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: True)
    place = tmp_path / "a"
    run_pretraining(pretrain_job("roberta", steps=2), place)
    ids = []
    for again in (False, False, True):
        fake.calls.clear()
        clozelab.track(place, to="wandb", tags="x,y", again=again, progress=False)
        ids.append([(each[1].id, list(each[1].tags)) for each in fake.calls if each[0] == "begin"])
    assert ids[1] == [] and ids[0] != ids[2] and ids[0][0][1][-2:] == ["x", "y"]
    assert fake.calls[-1] == ("end", "finished")


def test_a_tracker_that_fails_is_told_of_a_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: True)
    monkeypatch.setitem(tracking.TRACKERS, "wandb", Raises)
    run_pretraining(pretrain_job("roberta", steps=2), tmp_path / "a")
    with pytest.raises(UserError, match=r"wandb failed \(ConnectionError: no route to host\)"):
        clozelab.track(tmp_path / "a", to="wandb", progress=False)


# The real packages, offline


def tracked_for_real(name: str, place: Path) -> Run:
    """A run that is tracked as it goes, which must work without a warning."""
    events = run_pretraining(
        pretrain_job("roberta", steps=3), place, saving=saving(name, tags=["mine"])
    )
    assert not [event.text for event in of_kind(Said, events) if "continues without" in event.text]
    return Run(place)


def loss_of(run: Run) -> float:
    return run.curves()["masked_lm.loss"][-1][1]


def test_tensorboard_has_the_curves(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tracked_for_real("tensorboard", tmp_path / "a")
    board = EventAccumulator(str(tmp_path / "a" / "tensorboard"))
    board.Reload()
    assert [each.step for each in board.Scalars("train/masked_lm/loss")] == [1, 2, 3]
    assert board.Scalars("train/masked_lm/loss")[-1].value == pytest.approx(loss_of(run))
    assert board.Scalars("result/steps")[-1].value == 3
    text = board.Tensors("config/text_summary")[0].tensor_proto.string_val[0]
    assert b"masking.use = token" in text


@pytest.mark.thorough
def test_wandb_has_the_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tracked_for_real("wandb", tmp_path / "a")
    (file,) = (tmp_path / "a" / "wandb").glob("offline-run-*/*.wandb")
    content = file.read_bytes()
    assert b"train/masked_lm/loss" in content and b"result/steps" in content
    assert b"masking.use" in content and b"mine" in content
    assert run.machine()["tracking"]["wandb"] in file.name


@pytest.mark.slow
def test_mlflow_has_the_run_in_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")  # which the small package of MLflow is without
    monkeypatch.setattr(tracking, "LAST_WAIT", 120.0)  # making the database takes seconds
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/m.db")
    run = tracked_for_real("mlflow", tmp_path / "a")
    with sqlite3.connect(tmp_path / "m.db") as database:
        (status, name) = database.execute("select status, name from runs").fetchone()
        assert (status, name) == ("FINISHED", "a")
        losses = "select step, value from metrics where key = 'train/masked_lm/loss' order by step"
        steps = database.execute(losses).fetchall()
        assert [step for step, _ in steps] == [1, 2, 3]
        assert steps[-1][1] == pytest.approx(loss_of(run))
        params = dict(database.execute("select key, value from params").fetchall())
        assert params["masking.use"] == "token"
        assert ("mine",) in database.execute("select key from tags").fetchall()
    # The same run is found again.
    again = clozelab.track(tmp_path / "a", to="mlflow", progress=False)
    assert again == []
    clozelab.track(tmp_path / "a", to="mlflow", again=True, progress=False)
    with sqlite3.connect(tmp_path / "m.db") as database:
        assert database.execute("select count(*) from runs").fetchone() == (2,)


@pytest.mark.thorough
def test_trackio_has_the_run_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "t"))  # read when it is imported
    monkeypatch.delenv("TRACKIO_PROJECT", raising=False)
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", tmp_path / "t", raising=False)
    run = tracked_for_real("trackio", tmp_path / "a")
    name = f"a-{run.machine()['tracking']['trackio']}"
    logs = SQLiteStorage.get_logs("clozelab", name)
    losses = [row["train/masked_lm/loss"] for row in logs if "train/masked_lm/loss" in row]
    assert len(losses) == 3 and losses[-1] == pytest.approx(loss_of(run))
    assert any(row.get("result/steps") == 3 for row in logs)

"""Fine-tunings that are stopped, killed or side by side: they go on to the same weights."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from support.corpora import ENVIRONMENT
from support.finetune_tasks import (
    SHORT,
    base_model,
    equal,
    events,
    finetune_request,
    run_finetuning,
    sample_file,
    weights,
)
from support.pretrain_runs import MACHINE
from support.processes import start_process

from clozelab.errors import UserError
from clozelab.finetuning.finetune import follow, planned
from clozelab.runs.directory import Run
from clozelab.runs.events import Began, Ended, Said, Saved, Scored
from clozelab.runs.machine import Machine
from clozelab.runs.session import SaveOptions
from clozelab.text.building import cores
from clozelab.training.checkpoint import newest
from clozelab.training.loop import Step

torch.set_num_threads(1)

LONG = ("batch_size=4", "learning_rate=1e-3", "length=64", "epochs=2")


def command(out: Path, *arguments: str, epochs: int = 2) -> list[str]:
    """A fine-tuning of two epochs as a command, and its settings."""
    settings = [word for setting in (*LONG[:3], f"epochs={epochs}") for word in ("--set", setting)]
    files = [
        "--train",
        sample_file("pairs", 256),
        "--dev",
        sample_file("pairs", 16),
        "--out",
        str(out),
    ]
    start = [sys.executable, "-m", "clozelab", "finetune", base_model(), "pairs", "--device", "cpu"]
    return [*start, *files, *settings, *arguments]


def steps_done(place: Path) -> int:
    return len(Run(place).events("step")) if place.exists() else 0


@contextmanager
def running(
    arguments: list[str], places: list[Path], *, after: int
) -> Iterator[subprocess.Popen[str]]:
    """A command whose trials have taken some steps; at the end none of its processes is left."""
    process = start_process(arguments, env={**ENVIRONMENT, "OMP_NUM_THREADS": "1"})
    try:
        for _ in range(600):
            if all(steps_done(place) >= after for place in places) or process.poll() is not None:
                break
            time.sleep(0.1)
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def interrupted(arguments: list[str], places: list[Path], *, after: int) -> str:
    """What a command says that is told to stop when its trials have taken some steps."""
    with running(arguments, places, after=after) as process:
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 130 and "Traceback" not in stderr, stderr
        return stderr


def gone(group: int, *, seconds: float) -> bool:
    """Whether every process of a group ends in that time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds that nothing interrupted."""
    out = tmp_path_factory.mktemp("straight") / "out"
    request = finetune_request(
        "pairs", sample_file("pairs", 256), *LONG, dev=sample_file("pairs", 16)
    )
    run_finetuning(planned(request, seeds=2), out)
    return out


def test_a_run_that_was_interrupted_goes_on_to_the_same_weights(
    tmp_path: Path, straight: Path
) -> None:
    out = tmp_path / "out"
    message = interrupted(command(out), [out / "seed-0"], after=70)
    assert "saved" in message and "run the same command again" in message
    newest_checkpoint, _ = newest(out / "seed-0" / "checkpoints")
    assert newest_checkpoint is not None and 70 <= newest_checkpoint.step < 128
    assert (
        newest_checkpoint.state()["best"]["step"] == 64
    )  # the first epoch's, which is kept as well
    request = finetune_request(
        "pairs", sample_file("pairs", 256), *LONG, dev=sample_file("pairs", 16)
    )
    happened = run_finetuning(request, out)
    assert events(Step, happened)[0].number == newest_checkpoint.step + 1
    assert equal(weights(out / "seed-0"), weights(straight / "seed-0"))
    mine, other = (Run(place / "seed-0").result() for place in (out, straight))
    assert mine is not None and other is not None
    assert mine["dev"] == other["dev"] and mine["tokens"] == other["tokens"]


@pytest.mark.slow
def test_trials_side_by_side_are_saved_when_told_to_stop(tmp_path: Path, straight: Path) -> None:
    out = tmp_path / "out"
    places = [out / "seed-0", out / "seed-1"]
    interrupted(command(out, "--seeds", "2", "--at-once", "2"), places, after=5)
    assert all(newest(place / "checkpoints")[0] is not None for place in places)
    request = finetune_request(
        "pairs", sample_file("pairs", 256), *LONG, dev=sample_file("pairs", 16)
    )
    # On a busy machine one may be done before the other has taken its first steps.
    left = {place.name for place in places if Run(place).result() is None}
    happened = run_finetuning(planned(request, seeds=2), out, at_once=2)
    assert left and {record.trial for record in happened} == left
    assert [event.whole for event in events(Ended, happened)] == [True] * len(left)
    for place in places:
        assert equal(weights(place), weights(straight / place.name))


@pytest.mark.slow
def test_a_command_that_alone_is_told_to_stop_stops_its_processes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    places = [out / "seed-0", out / "seed-1"]
    running_command = command(out, "--seeds", "2", "--at-once", "2", epochs=1000)
    with running(running_command, places, after=5) as process:
        process.terminate()
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 143, stderr
        assert "Traceback" not in stderr and "the same command continues from there" in stderr, (
            stderr
        )
        assert gone(process.pid, seconds=10)
    assert all(newest(place / "checkpoints")[0] is not None for place in places)


@pytest.mark.slow
def test_the_processes_of_a_command_that_was_killed_save_and_end(tmp_path: Path) -> None:
    out = tmp_path / "out"
    places = [out / "seed-0", out / "seed-1"]
    running_command = command(out, "--seeds", "2", "--at-once", "2", epochs=1000)
    with running(running_command, places, after=5) as process:
        process.kill()
        process.wait()
        assert gone(process.pid, seconds=30)  # 4 where the machine has nothing else to do
    assert all(newest(place / "checkpoints")[0] is not None for place in places)


@pytest.mark.slow
def test_a_trial_that_had_not_begun_does_not_begin_when_told_to_stop(tmp_path: Path) -> None:
    out = tmp_path / "out"
    places = [out / "seed-0", out / "seed-1"]
    interrupted(command(out, "--seeds", "3", "--at-once", "2"), places, after=5)
    assert all((place / "recipe.toml").exists() for place in places)
    assert not (out / "seed-2").exists()


@pytest.mark.parametrize("moment", [Step, Scored, Saved])
def test_a_signal_at_the_end_of_a_trial_keeps_the_next_from_beginning(
    tmp_path: Path, moment: type
) -> None:
    plan, out = (
        planned(finetune_request("pairs", sample_file("pairs", 16), *SHORT), seeds=2),
        tmp_path / "out",
    )

    def told_to_stop() -> None:
        for happened in follow(plan, out, machine=MACHINE, saving=SaveOptions()):
            is_last = getattr(happened.event, "number", getattr(happened.event, "step", 0)) == 2
            if isinstance(happened.event, moment) and is_last:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        told_to_stop()
    assert Run(out / "seed-0").result() is not None and not (out / "seed-1").exists()
    assert len(events(Step, run_finetuning(plan, out))) == 2  # of the other


def test_a_run_that_was_killed_before_it_saved_begins_again(tmp_path: Path) -> None:
    request, out = finetune_request("pairs", sample_file("pairs", 16), *SHORT), tmp_path / "out"
    run_finetuning(request, tmp_path / "straight")
    running = follow(planned(request), out, machine=MACHINE, saving=SaveOptions())
    for happened in running:
        if isinstance(happened.event, Step) and happened.event.number == 2:
            break
    running.close()  # type: ignore[attr-defined]
    assert steps_done(out / "seed-0") == 1 and not (out / "seed-0" / "result.json").exists()
    assert events(Step, run_finetuning(request, out))[0].number == 1
    assert steps_done(out / "seed-0") == 2
    assert equal(weights(out / "seed-0"), weights(tmp_path / "straight" / "seed-0"))


def test_a_trial_goes_on_with_the_machine_that_it_had(tmp_path: Path) -> None:
    request, out = finetune_request("pairs", sample_file("pairs", 16), *SHORT), tmp_path / "out"
    machine = Machine(device="cpu", precision="bf16", workers=0, micro_batch=2)
    for again, changes in ((Machine(), 0), (Machine(precision="fp32"), 1)):
        for happened in follow(planned(request), out, machine=machine, saving=SaveOptions()):
            if isinstance(happened.event, Step):
                break
        (began,) = events(Began, happened := run_finetuning(request, out, machine=again))
        assert began.precision == (again.precision or "bf16")
        assert began.micro_tokens == Run(out / "seed-0").machine()["micro_tokens"] == 128
        assert len(Run(out / "seed-0").events("changed")) == changes
        shutil.rmtree(out)


def test_after_a_kill_behind_the_last_checkpoint_the_files_are_the_same(tmp_path: Path) -> None:
    request, out = finetune_request("pairs", sample_file("pairs", 16), *SHORT), tmp_path / "out"
    run_finetuning(request, out)
    place = out / "seed-0"
    files = [*(place / name for name in ("result.json", "task.toml")), out / "result.json"]
    before = {file: file.read_bytes() for file in files}
    lines = [event for event in Run(place).events() if event["kind"] != "resume"]
    for file in files:
        file.unlink()
    for left in (".step-00000001.old", ".step-00000002.part"):  # of a save that was killed
        (place / "checkpoints" / left).mkdir()
    happened = run_finetuning(request, out)
    assert not events(Step, happened) and events(Ended, happened)[0].whole
    assert {file: file.read_bytes() for file in files} == before
    assert [event for event in Run(place).events() if event["kind"] != "resume"] == lines
    assert [file.name for file in (place / "checkpoints").iterdir()] == ["step-00000002"]


def test_a_trial_that_another_process_still_writes_is_left_alone(tmp_path: Path) -> None:
    request, out = finetune_request("pairs", sample_file("pairs", 16), *SHORT), tmp_path / "out"
    first = run_finetuning(request, out)
    assert events(Ended, first)[0].whole
    (out / "seed-0" / "result.json").unlink()
    with Run(out / "seed-0").writing(), pytest.raises(UserError, match=f"process {os.getpid()},"):
        run_finetuning(request, out)


@pytest.mark.slow
def test_trials_side_by_side_are_the_same_and_one_that_diverges_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    settings = tuple(word for word in SHORT if not word.startswith("learning_rate"))
    request = finetune_request("pairs", sample_file("pairs", 16), *settings, "warmup=0")
    run_finetuning(planned(request, grid=["learning_rate=1e-3"]), tmp_path / "alone")
    plan, out = planned(request, grid=["learning_rate=1e-3,1e30"]), tmp_path / "out"
    happened = run_finetuning(plan, out, at_once=2)
    assert any("lower learning_rate" in event.text for event in events(Said, happened))
    assert sum("diverged" in event.result for event in events(Ended, happened)) == 1
    place = Path("learning_rate-0.001") / "seed-0"
    assert equal(weights(out / place), weights(tmp_path / "alone" / place))
    assert Run(out / place).machine()["threads"] == max(1, cores() // 2)  # each has its share
    result = Run(out).result()
    assert result is not None and result["best"] == str(place) and len(result["cells"]) == 1
    assert "diverged" in (Run(out / "learning_rate-1e+30" / "seed-0").result() or {})
    assert not events(Step, run_finetuning(plan, out))  # nor is it tried again


def test_a_task_on_which_every_run_diverges_has_no_best(tmp_path: Path) -> None:
    settings = [word for word in SHORT if not word.startswith("learning_rate")]
    request = finetune_request(
        "pairs", sample_file("pairs", 16), *settings, "warmup=0", "learning_rate=1e30"
    )
    with pytest.raises(UserError, match="every run diverged"):
        run_finetuning(planned(request), tmp_path / "out")

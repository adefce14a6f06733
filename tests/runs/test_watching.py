"""A run says what limits it, and is warned when it sits on the unigram plateau."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.progress import Progress, TextColumn
from rich.text import Text
from support.pretrain_runs import HERE, MACHINE, QUIET, of_kind, pretrain_job, run_pretraining

from clozelab.api import watching
from clozelab.api.watching import View, Watch
from clozelab.pretraining import starting
from clozelab.pretraining.pretrain import pretrain, resume
from clozelab.pretraining.trainer import PretrainTrainer
from clozelab.runs import diagnostics
from clozelab.runs.directory import Run
from clozelab.runs.events import Began, Ended, Said, Scored
from clozelab.runs.session import SaveOptions
from clozelab.training import loop
from clozelab.training.loop import Prepared, Step, train
from clozelab.training.timing import StepTimer

torch.set_num_threads(1)
STILL = ("optimiser.learning_rate=1e-9", "schedule.decay=constant")


# What limits a run


def test_a_step_says_how_long_its_text_was_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    trainer = PretrainTrainer(pretrain_job("roberta", steps=3), MACHINE, HERE)

    def slowly() -> Iterator[Prepared]:
        for job in trainer.steps.jobs(0, trainer.steps.start()):
            now[0] += 5
            yield job()

    steps = []
    for step in train(trainer.train_state, slowly(), HERE):
        steps.append(step)
        now[0] += 100  # what the caller does is nobody's waiting
    assert [(step.waited, step.slack, step.busy) for step in steps] == [(5.0, 0.0, None)] * 3
    assert sum(step.seconds for step in steps) == 15.0


class Ticks:
    """An event of a device whose clock goes on by a second whenever it is asked."""

    now = 0
    read = 0

    def __init__(self, enable_timing: bool, blocking: bool) -> None:
        assert enable_timing and blocking  # whoever waits for it leaves the core to others

    def record(self) -> None:
        Ticks.now += 1
        self.at = Ticks.now

    def synchronize(self) -> None:
        self.done = True

    def elapsed_time(self, later: Ticks) -> float:
        Ticks.read += 1
        return 1000.0 * (later.at - self.at)


def test_a_device_is_busy_from_each_beginning_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Ticks)
    monkeypatch.setattr(Ticks, "now", 0)
    work = StepTimer(torch.device("cuda"), 0.0)
    with work:
        Ticks.now += 9
    Ticks.now += 100  # between the two it rests
    with work:
        pass
    assert not Ticks.read
    assert work.busy() == 10.0 + 1.0
    failed = StepTimer(torch.device("cuda"), 0.0)
    with pytest.raises(KeyError), failed:
        raise KeyError
    assert len(failed.events) == 1 and StepTimer(HERE.device, 0.0).busy() is None


def test_the_log_and_the_result_keep_what_was_measured(tmp_path: Path) -> None:
    events = run_pretraining(pretrain_job("roberta", steps=6), tmp_path / "run")
    entries = Run(tmp_path / "run").events("step")
    steps = of_kind(Step, events)
    assert [entry["waited"] for entry in entries] == [step.waited for step in steps]
    assert [entry["slack"] for entry in entries] == [step.slack for step in steps]
    assert not any("busy" in entry for entry in entries)
    assert (Run(tmp_path / "run").result() or {})["limited_by"] in ("feed", "arithmetic", "shared")


@pytest.mark.parametrize(
    ("waited", "busy", "peak", "sentence"),
    [
        (0.9, 0.05, 1e6, "250% of peak · feed-bound"),
        (0.0, 0.5, 1e6, "250% of peak · host-bound"),
        (0.0, 1.0, 1e6, "250% of peak · arithmetic-bound"),
        (0.0, 1.0, 1e7, "25% of peak · memory-bound"),
        (0.5, None, None, "tokens/s · feed-bound"),
        (0.0, None, None, "tokens/s · arithmetic-bound"),
        (0.0, 1.0, None, "2,500 tokens/s"),
    ],
)
def test_the_line_ends_with_what_limits_the_run(
    waited: float, busy: float | None, peak: float | None, sentence: str
) -> None:
    console = Console(file=io.StringIO(), width=200)
    bars = Progress(TextColumn("{task.fields[status]}"), console=console, disable=True)
    view = View(bars, Watch())
    recipe: Any = pretrain_job("roberta").recipe
    view.show(Began("a", recipe, 0, 9, 1, "gpu", "bf16", 1, flops_a_token=1000.0, peak=peak))
    for number in range(1, 8):
        sums = {"masked_lm": {"loss": 14.0, "count": 2}}
        clock = {"waited": waited, "slack": 0.5, "busy": busy}
        view.show(Step(number, sums, 0.0, 0.0, 2500, 1.0, **clock))  # type: ignore[arg-type]
    (task_,) = bars.tasks
    assert task_.fields["status"].startswith("masked_lm 7.000 · 2,500 tokens/s")
    assert task_.fields["status"].endswith(sentence)


def test_the_line_is_of_recent_steps_and_not_of_the_last_alone() -> None:
    bars = Progress(disable=True)
    view = View(bars, Watch())
    recipe: Any = pretrain_job("roberta").recipe
    view.show(Began("a", recipe, 0, 9, 1, "cpu", "fp32", 1, flops_a_token=1.0, peak=None))
    for number, seconds in enumerate([90.0, 90.0, 1.0, 1.0, 3.0], 1):
        view.show(Step(number, {}, 0.0, 0.0, 1000, seconds))
    speed = 1000 * (1 + 0.9 + 0.81) / (3 + 0.9 + 0.81)
    assert bars.tasks[0].fields["status"] == f" · {speed:,.0f} tokens/s · arithmetic-bound"


def test_signs_of_markup_in_a_name_are_shown_beside_its_bar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    monkeypatch.setattr(watching, "err", console)
    with Watch().bars() as bars:
        bars.add_task("a[/b]", status="loss [c] 1.0")
    text = Text.from_ansi(console.file.getvalue()).plain  # type: ignore[attr-defined]
    assert "a[/b]" in text and "loss [c] 1.0" in text


# The plateau


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches of 15 steps."""
    monkeypatch.setattr(diagnostics, "_FEWEST", 15)


def warned(events: list[Any]) -> list[int]:
    """After which steps a run was warned."""
    steps, last = [], 0
    for event in events:
        if isinstance(event, Step):
            last = event.number
        elif isinstance(event, Said) and "on the unigram plateau" in event.text:
            steps.append(last)
    return steps


@pytest.mark.usefixtures("brief")
def test_a_run_that_does_not_learn_is_warned_once_with_the_cause(tmp_path: Path) -> None:
    events = run_pretraining(
        pretrain_job("roberta", *STILL, steps=80, seed=2, variant="embedded"), tmp_path / "run"
    )
    assert warned(events) == [31]
    (notice,) = (event.text for event in of_kind(Said, events) if "plateau" in event.text)
    assert notice.endswith(
        "a learning rate of 1e-09 is unusual: raise it with --set optimiser.learning_rate=…"
    )


@pytest.mark.usefixtures("brief")
def test_a_run_that_learns_is_not(tmp_path: Path) -> None:
    rate = "optimiser.learning_rate=0.01"
    job = pretrain_job("roberta", rate, steps=48, batch_size=8, variant="embedded")
    events = run_pretraining(job, tmp_path / "run")
    losses = [step.sums["masked_lm"] for step in of_kind(Step, events)]
    assert losses[-1]["loss"] / losses[-1]["count"] < losses[0]["loss"] / losses[0]["count"] - 1
    assert warned(events) == []


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(("stop", "again"), [(20, [31]), (40, [])])
def test_a_run_that_goes_on_remembers_its_losses_and_what_was_said(
    stop: int, again: list[int], tmp_path: Path
) -> None:
    job, place = pretrain_job("roberta", *STILL, steps=64, seed=2), tmp_path / "run"
    saving = SaveOptions(save_every=20, evaluate_every=0, evaluate_blocks=8)
    events = pretrain(job, place, machine=MACHINE, saving=saving)
    before = []
    for event in events:
        before.append(event)
        if isinstance(event, Step) and event.number == stop + 1:
            break
    events.close()  # type: ignore[attr-defined]
    assert warned(before) == ([] if again else [31])
    after = list(resume(starting.resumed(place), place, machine=MACHINE, saving=saving))
    assert of_kind(Step, after)[0].number == stop + 1 and warned(after) == again


def test_a_log_without_losses_of_old_is_read_all_the_same(tmp_path: Path) -> None:
    place = tmp_path / "run"
    run_pretraining(
        pretrain_job("roberta", steps=4), place, saving=SaveOptions(save_every=2, evaluate_every=0)
    )
    lines = (place / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    plain = [json.loads(line) for line in lines]
    for entry in plain:
        entry.pop("waited", None)
        entry.pop("slack", None)
        entry["masked_lm"] = {**entry.get("masked_lm", {}), "loss": None}
    text = "".join(json.dumps(entry) + "\n" for entry in plain)
    (place / "metrics.jsonl").write_text(text, encoding="utf-8")
    (place / "result.json").unlink()
    for file in (place / "checkpoints").glob("step-00000004/*.safetensors"):
        file.write_bytes(b"")
    events = list(resume(starting.resumed(place), place, machine=MACHINE, saving=QUIET))
    assert [step.number for step in of_kind(Step, events)] == [3, 4]


def test_scores_that_one_answer_for_all_would_have_are_said_to_be_such() -> None:
    said: list[str] = []
    view = View.__new__(View)
    view.watch = SimpleNamespace(say=said.append)  # type: ignore[assignment]
    for accuracy in (95.0, 95.5):
        view._scored(Scored(8, {"accuracy": accuracy}, 8, {}, accuracy, {"accuracy": 95.0}))
    assert said[0] == "step 8: dev accuracy 95.00, the same as a constant prediction"
    assert said[1] == "step 8: dev accuracy 95.50"


def test_a_run_of_another_process_tells_its_scores_or_that_it_diverged() -> None:
    said: list[str] = []
    watch: Any = SimpleNamespace(say=said.append)
    view = View(Progress(disable=True), watch)
    view.show_stage(Ended(8, True, {"dev": {"step": 8, "macro_f1": 51.5}}), "seed-0")
    view.show_stage(Ended(8, True, {"diverged": "step 2: the loss is nan"}), "seed-1")
    assert said == ["seed-0: 8 steps, dev macro f1 51.50", "seed-1: diverged"]

"""Steps that other processes prepare are those that this one would prepare, whatever happens."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.pretrain_runs import HERE, MACHINE, pretrain_job, shrunk, store
from support.processes import run_process

from clozelab import registry
from clozelab.config.recipe import Recipe
from clozelab.contracts import Batch
from clozelab.errors import UserError
from clozelab.pretraining import step_processes, trainer
from clozelab.pretraining.fitting import fitted
from clozelab.pretraining.step_processes import StepProcesses
from clozelab.pretraining.steps import Steps
from clozelab.pretraining.trainer import PretrainTrainer
from clozelab.runs.processes import Workers, kept_workers
from clozelab.text.store.corpus import open_stores
from clozelab.training.loop import Prepared

KINDS = {
    "roberta": ("byte_bpe", "byte_bpe"),
    "bert": ("wordpiece",),
    "xlnet": ("unigram",),
    "elmo": ("byte_bpe",),
    "gpt_bert": ("byte_bpe",),
    "simcse": ("wordpiece",),
}


@pytest.fixture(scope="module", autouse=True)
def few_processes() -> Iterator[None]:
    yield
    kept_workers(threads=1).stop()


def make_steps(recipe: Recipe, *kinds: str, **settings: Any) -> Steps:
    stores = open_stores([store(kind, skip=30 * number) for number, kind in enumerate(kinds)])
    wanted = {"seed": 3, "tokens": 256, "gpu": False, **settings}
    return Steps(fitted(recipe, stores[0][0]), stores, **wanted)


def started(steps: Steps, *, count: int = 1) -> StepProcesses:
    """Processes that have started: all that follows comes from them."""
    processes = StepProcesses(steps, count=count)
    for process in processes._starting:
        process.result(timeout=120)
    return processes


def plain(batch: Batch) -> Any:
    """A batch as numbers."""
    inputs = {n: v.tolist() if isinstance(v, torch.Tensor) else v for n, v in
              batch.input._asdict().items()}  # fmt: skip
    targets = {n: {c: v.tolist() for c, v in t.items()} for n, t in batch.targets.items()}
    dtypes = [v.dtype for v in batch.input if isinstance(v, torch.Tensor)]
    return inputs, targets, dtypes


def same(mine: Prepared, other: Prepared) -> bool:
    assert [plain(batch) for batch in mine.batches] == [plain(batch) for batch in other.batches]
    quiet = {"batches": (), "blank": None}
    return replace(mine, **quiet) == replace(other, **quiet)


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("prepared here")


@pytest.mark.parametrize("name", KINDS)
def test_a_step_of_another_process_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = make_steps(shrunk(name), *KINDS[name])
    mine = [job() for job in steps.jobs(0, steps.start())]
    processes = started(steps)
    monkeypatch.setattr(steps, "ready", refuse)
    other = [job() for job in steps.jobs(0, steps.start(), ready=processes.ready)]
    assert len(mine) == len(other) > 1 and processes._works
    assert all(same(a, b) for a, b in zip(mine, other, strict=True))


def test_a_step_that_is_too_large_for_its_buffer_gets_a_larger_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_processes, "_BYTES", 100)
    steps = make_steps(shrunk("bert"), "wordpiece")
    processes = started(steps)
    mine = [job() for job in steps.jobs(0, steps.start())]
    other = [job() for job in steps.jobs(0, steps.start(), ready=processes.ready)]
    assert processes._works and all(same(a, b) for a, b in zip(mine, other, strict=True))
    (buffer,) = (processes._buffers.get() for _ in range(processes._buffers.qsize()))
    assert len(buffer._memory.buf or b"") > 100


def test_steps_are_prepared_here_until_the_processes_have_started() -> None:
    steps = make_steps(shrunk("bert"), "wordpiece")
    processes = StepProcesses(steps, count=1)
    unfinished = SimpleNamespace(done=lambda: False)
    late, processes._starting = processes._starting, [unfinished]  # type: ignore[list-item]
    processes._workers = None  # type: ignore[assignment]
    job = next(steps.jobs(0, steps.start(), ready=processes.ready))
    assert same(job(), next(steps.jobs(0, steps.start()))()) and processes._works is None
    late[0].result(timeout=120)


def test_this_process_goes_on_where_another_is_killed() -> None:
    steps = make_steps(shrunk("bert"), "wordpiece")
    processes = started(steps)
    mine = [job() for job in steps.jobs(0, steps.start())]
    jobs = steps.jobs(0, steps.start(), ready=processes.ready)
    first = next(jobs)()
    for worker in kept_workers(threads=1)._idle:
        os.kill(worker.process.pid or 0, signal.SIGKILL)
        worker.process.join()
    rest = [job() for job in jobs]
    assert all(same(a, b) for a, b in zip(mine, [first, *rest], strict=True))


def test_an_error_of_a_step_is_that_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = make_steps(shrunk("bert"), "wordpiece")
    processes = started(steps)
    (job,) = [next(steps.jobs(0, steps.start(), ready=processes.ready))]

    def fail(*_: Any, **__: Any) -> Any:
        raise UserError("the corpus: is gone")

    monkeypatch.setattr(Workers, "call", fail)
    monkeypatch.setattr(steps, "ready", fail)
    with pytest.raises(UserError, match="the corpus: is gone"):
        job()


def test_a_process_among_several_has_a_blank_batch() -> None:
    steps = make_steps(shrunk("bert"), "wordpiece", rank=1, size=2)
    processes = started(steps)
    (mine, other) = (
        next(steps.jobs(0, steps.start(), ready=ready))() for ready in (None, processes.ready)
    )
    assert mine.blank is not None and other.blank is not None
    assert plain(mine.blank) == plain(other.blank) and same(mine, other)


def test_buffers_are_freed_with_their_processes() -> None:
    processes = StepProcesses(make_steps(shrunk("bert"), "wordpiece"), count=2)
    names = [processes._buffers.get().name for _ in range(2)]
    for process in processes._starting:
        process.result(timeout=120)
    del processes
    for name in names:
        with pytest.raises(FileNotFoundError):
            SharedMemory(name)


def test_text_that_still_arrives_and_parts_of_a_script_stay_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = make_steps(shrunk("bert"), "wordpiece")
    assert StepProcesses.serve(steps)
    with monkeypatch.context() as changed:
        changed.setattr(registry, "script_has_parts", lambda: True)
        assert not StepProcesses.serve(steps)
    steps.stores = [(SimpleNamespace(is_arriving=True), 1.0)]  # type: ignore[list-item]
    assert not StepProcesses.serve(steps)


@pytest.mark.parametrize(
    ("gpu", "workers", "expected"), [(True, 2, 2), (True, 0, None), (False, 2, None)]
)
def test_a_gpu_has_a_process_for_each_thread_of_the_feed(
    gpu: bool, workers: int, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def made(steps: Steps, *, count: int) -> Any:
        counts.append(count)
        return SimpleNamespace(ready=steps.ready)

    made.serve = lambda steps: True  # type: ignore[attr-defined]
    monkeypatch.setattr(trainer, "StepProcesses", made)
    trained = PretrainTrainer(pretrain_job("bert"), replace(MACHINE, workers=workers), HERE)
    trained.steps.gpu = gpu
    next(trained.jobs(0, trained.steps.start()))
    assert counts == ([] if expected is None else [expected])


SCRIPT = """
import sys
from clozelab.config import recipe as recipes
from clozelab.pretraining.fitting import fitted
from clozelab.pretraining.step_processes import StepProcesses
from clozelab.pretraining.steps import Steps
from clozelab.text.store.corpus import open_stores

stores = open_stores([sys.argv[1]])
recipe = recipes.read("bert", size="1x64", overrides=["blocks.length=32", "schedule.phases=[]"])
steps = Steps(fitted(recipe, stores[0][0]), stores, seed=0, tokens=64, gpu=False)
processes = StepProcesses(steps, count=2)
for process in processes._starting:
    process.result()
for job, _ in zip(steps.jobs(0, steps.start(), ready=processes.ready), range(3)):
    print(job().tokens > 0, processes._works)
"""


def test_processes_end_with_a_script_that_has_no_guard(tmp_path: Path) -> None:
    """It is not run again by them, and nothing is left in shared memory."""
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    began = time.monotonic()
    done = run_process(
        [sys.executable, str(tmp_path / "script.py"), store("wordpiece")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["True"] * 6 and done.stderr == ""
    assert time.monotonic() - began < 120

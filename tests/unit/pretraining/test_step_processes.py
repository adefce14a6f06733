"""Steps that other processes prepare are those that this one would prepare, whatever happens."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.pretrain_runs import HERE, MACHINE, pretrain_job, shrunk, store
from support.processes import run_process

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
    step_processes._pool.cache_clear()
    kept_workers(threads=1, use="steps").stop()


def make_steps(recipe: Recipe, *kinds: str, **settings: Any) -> Steps:
    stores = open_stores([store(kind, skip=30 * number) for number, kind in enumerate(kinds)])
    wanted = {"seed": 3, "tokens": 256, "gpu": False, **settings}
    return Steps(fitted(recipe, stores[0][0]), stores, **wanted)


def started(steps: Steps, *, count: int = 1) -> StepProcesses:
    """Processes that have started: all that follows comes from them."""
    processes = StepProcesses(steps, steps.start(), count=count)
    for opening in processes._pool._opening:
        opening.result(timeout=120)
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
    step_processes._pool.cache_clear()
    steps = make_steps(shrunk("bert"), "wordpiece")
    processes = started(steps)
    mine = [job() for job in steps.jobs(0, steps.start())]
    other = [job() for job in steps.jobs(0, steps.start(), ready=processes.ready)]
    assert processes._works and all(same(a, b) for a, b in zip(mine, other, strict=True))
    buffer = processes._pool._buffers.get()
    assert len(buffer._memory.buf or b"") > 100
    step_processes._pool.cache_clear()


def test_steps_are_prepared_here_until_all_processes_have_them_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = make_steps(shrunk("bert"), "wordpiece")
    processes = started(steps)
    monkeypatch.setattr(processes._pool, "prepare", refuse)
    unfinished: Any = SimpleNamespace(done=lambda: False)
    monkeypatch.setattr(processes._pool, "_opening", [*processes._pool._opening, unfinished])
    job = next(steps.jobs(0, steps.start(), ready=processes.ready))
    assert same(job(), next(steps.jobs(0, steps.start()))()) and processes._works


def test_later_steps_are_opened_by_the_same_processes_and_buffers() -> None:
    """As where a schedule is refitted: each time here until they are open."""
    recipe, pids, names = shrunk("bert"), set(), set()
    for seed in range(4):
        steps = make_steps(recipe, "wordpiece", seed=seed)
        mine = [job() for job in steps.jobs(0, steps.start())]
        for wait in (False, True):
            processes = StepProcesses(steps, steps.start(), count=1)
            for opening in processes._pool._opening if wait else ():
                opening.result(timeout=120)
            other = [job() for job in steps.jobs(0, steps.start(), ready=processes.ready)]
            assert all(same(a, b) for a, b in zip(mine, other, strict=True))
        idle = kept_workers(threads=1, use="steps")._idle
        pids |= {worker.process.pid for worker in idle}
        buffer = processes._pool._buffers.get()
        processes._pool._buffers.put(buffer)
        names.add(buffer.name)
    assert len(pids) == len(names) == 1


def test_a_process_that_is_killed_is_replaced() -> None:
    steps = make_steps(shrunk("bert"), "wordpiece")
    processes = started(steps)
    mine = [job() for job in steps.jobs(0, steps.start())]
    jobs = steps.jobs(0, steps.start(), ready=processes.ready)
    first = next(jobs)()
    (worker,) = kept_workers(threads=1, use="steps")._idle
    os.kill(worker.process.pid or 0, signal.SIGKILL)
    worker.process.join()
    rest = [job() for job in jobs]
    assert processes._works and all(same(a, b) for a, b in zip(mine, [first, *rest], strict=True))


def fail(*_: Any, **__: Any) -> Any:
    raise UserError("the corpus: is gone")


def test_where_a_process_fails_this_one_prepares_the_rest_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = make_steps(shrunk("bert"), "wordpiece")
    processes = started(steps)
    mine = [job() for job in steps.jobs(0, steps.start())]
    monkeypatch.setattr(Workers, "call", fail)
    with pytest.warns(RuntimeWarning, match="a thread prepares the steps.*the corpus: is gone"):
        other = [job() for job in steps.jobs(0, steps.start(), ready=processes.ready)]
    assert not processes._works and all(same(a, b) for a, b in zip(mine, other, strict=True))
    monkeypatch.setattr(steps, "ready", fail)
    with pytest.raises(UserError, match="the corpus: is gone"):
        next(steps.jobs(0, steps.start(), ready=processes.ready))()


@pytest.mark.parametrize("place", ["SharedBuffer", "kept_workers", "pickle.dumps"])
def test_where_processes_cannot_be_started_this_one_prepares_all(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without shared memory, in a daemonic process, or with a part that has no name."""
    step_processes._pool.cache_clear()
    steps = make_steps(shrunk("bert"), "wordpiece")
    monkeypatch.setattr(f"clozelab.pretraining.step_processes.{place}", fail)
    with pytest.warns(RuntimeWarning, match="a thread prepares the steps"):
        processes = StepProcesses(steps, steps.start(), count=1)
    (job,) = [next(steps.jobs(0, steps.start(), ready=processes.ready))]
    assert job().tokens


def test_a_process_among_several_has_a_blank_batch() -> None:
    steps = make_steps(shrunk("bert"), "wordpiece", rank=1, size=2)
    processes = started(steps)
    (mine, other) = (
        next(steps.jobs(0, steps.start(), ready=ready))() for ready in (None, processes.ready)
    )
    assert mine.blank is not None and other.blank is not None
    assert plain(mine.blank) == plain(other.blank) and same(mine, other)


def test_text_that_still_arrives_and_parts_from_outside_stay_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = make_steps(shrunk("bert"), "wordpiece")
    assert StepProcesses.can_prepare(steps)
    for place, value in (
        ("clozelab.registry.script_has_parts", True),
        ("clozelab.config.slots.modules", ["my_package.parts"]),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(place, lambda *_, value=value: value)
            assert not StepProcesses.can_prepare(steps)
    steps.stores = [(SimpleNamespace(is_arriving=True), 1.0)]  # type: ignore[list-item]
    assert not StepProcesses.can_prepare(steps)


@pytest.mark.parametrize(
    ("gpu", "workers", "expected"), [(True, 2, 2), (True, 0, None), (False, 2, None)]
)
def test_a_gpu_has_a_process_for_each_thread_of_the_feed(
    gpu: bool, workers: int, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def step_processes_of(steps: Steps, cursor: Any, *, count: int) -> Any:
        counts.append(count)
        return SimpleNamespace(ready=steps.ready)

    step_processes_of.can_prepare = lambda steps: True  # type: ignore[attr-defined]
    monkeypatch.setattr(trainer, "StepProcesses", step_processes_of)
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
processes = StepProcesses(steps, steps.start(), count=2)
for opening in processes._pool._opening:
    opening.result()
for job, _ in zip(steps.jobs(0, steps.start(), ready=processes.ready), range(3)):
    print(job().tokens > 0, processes._works)
"""


def test_processes_end_with_a_script_that_has_no_guard(tmp_path: Path) -> None:
    """It is not run again by them, and nothing is left in shared memory."""
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    done = run_process(
        [sys.executable, str(tmp_path / "script.py"), store("wordpiece")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["True"] * 6 and done.stderr == ""

"""The cache of compiled models: what it keeps between runs, and how much of a GPU it may have."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
import torch
from support.pretrain_runs import HERE, pretrain_job
from torch import nn

from clozelab.errors import UserError
from clozelab.pretraining.trainer import PretrainTrainer
from clozelab.runs import warm
from clozelab.runs.machine import Machine
from clozelab.studies import run

TOTAL = 120 << 30


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """No test leaves a model to the next."""
    yield
    warm.forget()


class Gpu:
    """A GPU on which this process has reserved some memory, which models and their graphs keep."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reserved = self.emptied = 0
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (TOTAL, TOTAL))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: self.reserved)
        monkeypatch.setattr(torch.cuda, "empty_cache", self.empty)

    def empty(self) -> None:
        """As torch does, which cannot free what is still used."""
        self.emptied += 1


def is_kept(shape: str) -> bool:
    """Whether a run of a shape would find its model compiled."""
    return warm.compiled_for(shape, nn.Linear(2, 2)) is not None


def test_models_are_dropped_if_they_have_half_of_the_part_of_their_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = Gpu(monkeypatch)
    with warm.keeping(sharers=6):
        warm.keep("small", nn.Linear(2, 2))
        gpu.reserved = TOTAL // 12
        warm.clear()
        assert is_kept("small") and gpu.emptied == 1
        texts = warm.shared("texts", list[str])
        gpu.reserved += 1 << 20
        warm.clear()
        assert not is_kept("small") and gpu.emptied == 3  # once more, when they are gone
        assert warm.shared("texts", list[str]) is texts  # which are in the memory of the CPU
    with warm.keeping():  # alone, a process has the whole device
        warm.keep("small", nn.Linear(2, 2))
        warm.clear()
        assert is_kept("small")


def test_a_compiled_model_that_is_not_kept_is_freed_at_once() -> None:
    model = nn.Linear(2, 2)
    model.compile(backend="eager")  # it refers to itself from now on
    alive = ref(model)
    gc.disable()
    try:
        del model
        with warm.keeping():
            assert alive() is not None
            warm.clear()
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("fails", [False, True])
def test_a_process_gives_memory_back_after_each_cell(
    monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """The last stage measures the model, which needs memory of its own."""
    gpu = Gpu(monkeypatch)

    def run_cell(job: Any) -> Iterator[Any]:
        warm.keep("small", nn.Linear(2, 2))
        yield SimpleNamespace(event=None)
        gpu.reserved = TOTAL // 4
        if fails:
            raise UserError("no room")

    monkeypatch.setattr(run, "run_cell", run_cell)
    monkeypatch.setattr(run, "record_failure", lambda job, error: str(error))
    job: Any = SimpleNamespace(machine=Machine(sharers=4), tunings=None)
    outcome = run.run_alone(job)
    assert outcome.whole and outcome.failed == ("no room" if fails else None)
    assert gpu.emptied == 2  # with the models, which have more than half of a quarter


def test_a_student_of_another_teacher_gets_that_teacher() -> None:
    """Its parameters may have the same shapes, and its layers compute something else."""
    job = pretrain_job("distilbert")
    other: Any = deepcopy(job.teacher)
    other.encoder.shape = replace(other.encoder.shape, heads=2 * other.encoder.shape.heads)
    machine = Machine(device="cpu", workers=0, compile=True)
    with warm.keeping():
        for teacher in (job.teacher, other, job.teacher):
            trainer = PretrainTrainer(replace(job, teacher=teacher), machine, HERE)
            used: list[Any] = [one.encoder for one in (*trainer.model.teacher, teacher)]
            assert used[0].shape == used[1].shape

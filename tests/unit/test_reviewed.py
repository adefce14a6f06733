"""What a review of the training found: memory let go, processes in step, rows a memory can follow."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from learning import HERE, MACHINE, QUIET, shrunk, task

from clozelab.contracts import UserError
from clozelab.runs.machine import Machine
from clozelab.runs.model import Model
from clozelab.runs.pretrain import pretrain
from clozelab.runs.setup import Setup
from clozelab.training import loop
from clozelab.training.loop import Prepared, train
from clozelab.training.world import World

torch.set_num_threads(1)
CUDA = torch.device("cuda", 0)


class Activations:
    """Something that a forward pass holds."""


def test_what_filled_the_memory_is_gone_before_the_step_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[weakref.ref[Activations]] = []
    forward, shrink = Model.forward, Setup.shrink

    def tight(self: Model, batch: Any) -> Any:
        activations = Activations()
        if self.training and len(batch.input.ids) > 64:
            held.append(weakref.ref(activations))
            raise torch.OutOfMemoryError("no room")
        return forward(self, batch)

    def look(self: Setup) -> str:
        assert [one() for one in held] == [None] * len(held)
        return shrink(self)

    monkeypatch.setattr(Model, "forward", tight)
    monkeypatch.setattr(Setup, "shrink", look)
    gc.disable()  # a cycle would be freed only when the collector happens to run
    try:
        machine = Machine(device="cpu", workers=0, micro_batch=8)
        list(pretrain(task("roberta", sequences=8), tmp_path, machine=machine, habits=QUIET))
    finally:
        gc.enable()
    assert len(held) == 2


@pytest.mark.parametrize(
    ("size", "device", "batches", "expected"),
    [(1, CUDA, 1, True), (1, CUDA, 2, False), (2, CUDA, 1, False), (1, HERE.device, 1, False)],
)
def test_steps_overlap_only_where_no_other_process_could_come_to_another_place(
    size: int, device: torch.device, batches: int, expected: bool
) -> None:
    blank: Any = None
    prepared = Prepared(0, [blank] * batches, blank, {}, 0)
    assert loop._overlaps(prepared, World(0, size, device)) is expected


def test_a_blank_batch_is_sent_to_the_device_only_where_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = Setup(task("bert", steps=1), MACHINE, HERE)
    (job,) = setup.steps.jobs(0, setup.steps.start())
    prepared = job()
    sent: list[Any] = []
    on = loop._on
    monkeypatch.setattr(loop, "_on", lambda batch, _: sent.append(batch) or on(batch, HERE.device))
    monkeypatch.setattr(World, "most", lambda self, value: value + self.rank)
    there = loop._sent(prepared, torch.device("meta"))
    assert len(loop._batches(there, World(0, 2, HERE.device))) == len(prepared.batches)
    assert sent == list(prepared.batches)
    assert len(loop._batches(there, World(1, 2, HERE.device))) == len(prepared.batches) + 1
    assert sent[-1] is prepared.blank


def test_processes_stop_timing_after_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has not had its ten seconds stops with another that has."""
    setup = Setup(task("roberta", steps=50), MACHINE, HERE)
    taken: list[int] = []

    def counted(*given: Any) -> Any:
        for step in train(*given):
            taken.append(step.number)
            yield step

    monkeypatch.setattr("clozelab.runs.setup.train", counted)
    monkeypatch.setattr(World, "most", lambda self, value: int(taken[-1:] == [5]) or value)
    setup._seconds_a_step()
    assert taken == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("asked", [None, True, False])
def test_sharded_weights_are_not_compiled_unless_asked(asked: bool | None) -> None:
    recipe = shrunk("bert")
    assert Machine(compile=asked, shard=True).compiles(CUDA, recipe) is bool(asked)
    assert Machine(compile=asked).compiles(CUDA, recipe) is (asked is not False)


@pytest.mark.parametrize("reuse", [8, 15, 20])
def test_a_memory_of_half_a_block_needs_blocks_that_go_on_there(reuse: int) -> None:
    with pytest.raises(UserError, match=rf"blocks.reuse = {reuse} .*; use 16, or set encoder"):
        shrunk("xlnet", f"blocks.reuse={reuse}")
    shrunk("xlnet", f"blocks.reuse={reuse}", "encoder.memory=0")


def test_a_memory_needs_the_same_rows_in_every_step() -> None:
    with pytest.raises(UserError, match=r"schedule.ramp changes how many rows"):
        shrunk("xlnet", "schedule.ramp=[[2, 0.5]]")
    shrunk("xlnet", "schedule.ramp=[[2, 0.5]]", "encoder.memory=0")

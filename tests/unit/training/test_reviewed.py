"""What a review of the training found: memory let go, processes in step, rows to follow."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from support.pretrain_runs import HERE, MACHINE, QUIET, pretrain_job, shrunk

from clozelab.api.watching import Watch, follow_run
from clozelab.errors import UserError
from clozelab.models.build import PretrainingModel
from clozelab.pretraining.pretrain import pretrain
from clozelab.pretraining.steps import Steps
from clozelab.pretraining.trainer import PretrainTrainer
from clozelab.runs.events import Ended, Said
from clozelab.runs.machine import Machine
from clozelab.training import loop
from clozelab.training.loop import Prepared
from clozelab.training.memory import check_room
from clozelab.training.optimiser import Muon
from clozelab.training.world import World

torch.set_num_threads(1)
CUDA = torch.device("cuda", 0)


class Activations:
    """Something that a forward pass holds."""


def test_what_filled_the_memory_is_gone_before_the_step_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[weakref.ref[Activations]] = []
    forward, shrink = PretrainingModel.forward, PretrainTrainer.shrink

    def tight(self: PretrainingModel, batch: Any) -> Any:
        activations = Activations()
        if self.training and len(batch.input.ids) > 64:
            held.append(weakref.ref(activations))
            raise torch.OutOfMemoryError("no room")
        return forward(self, batch)

    def look(self: PretrainTrainer) -> str:
        assert [reference() for reference in held] == [None] * len(held)
        return shrink(self)

    monkeypatch.setattr(PretrainingModel, "forward", tight)
    monkeypatch.setattr(PretrainTrainer, "shrink", look)
    gc.disable()  # a cycle would be freed only when the collector happens to run
    try:
        machine = Machine(device="cpu", workers=0, micro_batch=8)
        list(
            pretrain(pretrain_job("roberta", batch_size=8), tmp_path, machine=machine, saving=QUIET)
        )
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
    trainer = PretrainTrainer(pretrain_job("bert", steps=1), MACHINE, HERE)
    (job,) = trainer.steps.jobs(0, trainer.steps.start())
    prepared = job()
    sent: list[Any] = []
    on = loop.moved
    monkeypatch.setattr(loop, "moved", lambda each, _: sent.append(each) or on(each, HERE.device))
    monkeypatch.setattr(World, "all_reduce_max", lambda self, value: value + self.rank)
    there = loop._to_device(prepared, torch.device("meta"))
    assert len(loop._with_blanks(there, World(0, 2, HERE.device))) == len(prepared.batches)
    assert sent == list(prepared.batches)
    assert len(loop._with_blanks(there, World(1, 2, HERE.device))) == len(prepared.batches) + 1
    assert sent[-1] is prepared.blank


@pytest.mark.parametrize("requested", [None, True, False])
def test_sharded_weights_are_not_compiled_unless_asked(requested: bool | None) -> None:
    recipe = shrunk("bert")
    assert Machine(compile=requested, shard=True).compiles(CUDA, recipe) is bool(requested)
    assert Machine(compile=requested).compiles(CUDA, recipe) is (requested is not False)


@pytest.mark.parametrize("reuse", [8, 15, 20])
def test_a_memory_of_half_a_block_needs_blocks_that_go_on_there(reuse: int) -> None:
    with pytest.raises(UserError, match=rf"blocks.reuse = {reuse} .*; use 16, or set encoder"):
        shrunk("xlnet", f"blocks.reuse={reuse}")
    shrunk("xlnet", f"blocks.reuse={reuse}", "encoder.memory=0")


def test_a_memory_needs_the_same_rows_in_every_step() -> None:
    with pytest.raises(UserError, match=r"schedule.ramp changes how many rows"):
        shrunk("xlnet", "schedule.ramp=[[2, 0.5]]")
    shrunk("xlnet", "schedule.ramp=[[2, 0.5]]", "encoder.memory=0")


def test_stores_are_mixed_by_sizes_that_are_reckoned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    job = pretrain_job("bert", batch_size=4, steps=40)
    (only_store,) = job.stores
    steps = Steps(job.recipe, [only_store, only_store], seed=0, tokens=256, gpu=False)
    sources = steps.sources(0)
    shares = [steps._mixed(sources, step, 8).tolist() for step in range(3)]
    monkeypatch.setattr(type(sources[0]), "plan", None)  # a plan of old epochs is not made again
    assert [steps._mixed(sources, step, 8).tolist() for step in range(3)] == shares


def test_muon_leaves_a_heads_projection_to_adam() -> None:
    names = ("encoder.ffn.0.inner.weight", "heads.distillation.projection.weight")
    matrices = [(name, torch.nn.Parameter(torch.ones(4, 4))) for name in names]
    first, second = Muon(learning_rate=1e-3).build(matrices)
    assert [
        optimiser.param_groups[0]["params"][0] is p
        for optimiser, (_, p) in zip((first, second), matrices, strict=True)
    ] == [True, True]


@pytest.mark.parametrize("rank", [0, 1])
def test_of_several_processes_one_speaks(
    rank: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    events = iter([Said("the corpus repeats"), Ended(3, True, {"tokens": 9})])
    follow_run(events, Path("run"), Watch())
    output = capsys.readouterr().err
    assert ("repeats" in output, "3 steps" in output) == (rank == 0, rank == 0)


def test_a_model_that_memory_cannot_hold_is_refused_before_it_is_made() -> None:
    check_room(10**9, torch.device("cpu"), memory=2**34)
    check_room(4 * 10**9, CUDA, memory=2**34)
    with pytest.raises(UserError, match=r"2.0 billion parameters takes 30 GiB .* machine has 16;"):
        check_room(2 * 10**9, torch.device("cpu"), memory=2**34)

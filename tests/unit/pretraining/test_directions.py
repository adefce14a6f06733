"""Blocks that are read causally beside others: which they are, and what is learned from each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.pretrain_runs import (
    HERE,
    MACHINE,
    double_precision_trainer,
    pretrain_job,
    shrunk,
    steps_of,
    store,
)
from torch import Tensor

from clozelab.config.recipe import read
from clozelab.contracts import Batch, Input, Targets
from clozelab.errors import UserError
from clozelab.pretraining.fitting import fitted
from clozelab.pretraining.held_out import HeldOut
from clozelab.pretraining.source import BlockSource
from clozelab.pretraining.steps import Steps
from clozelab.pretraining.trainer import PretrainTrainer
from clozelab.runs.events import drained
from clozelab.text.store.corpus import open_stores
from clozelab.training.loop import Prepared, follow_measure, train

torch.set_num_threads(1)
HALF = "schedule.causal=[[0.5, 1.0]]"


def trainer_of(name: str = "gpt_bert", *overrides: str, **shape: int) -> PretrainTrainer:
    return double_precision_trainer(pretrain_job(name, *overrides, **shape))


def first_step(trainer: PretrainTrainer) -> Prepared:
    return next(iter(trainer.steps.jobs(0, trainer.steps.start())))()


def labels(batch: Batch, name: str) -> int:
    return int((batch.targets[name]["labels"] != Targets.IGNORED).sum())


def source(recipe: Any = None) -> BlockSource:
    (corpus, _), *_ = open_stores([store("byte_bpe")])
    recipe = recipe or shrunk("gpt_bert")
    return BlockSource(recipe, corpus, blocks=recipe.blocks, split="train", seed=0)


def states(trainer: PretrainTrainer, inputs: Input) -> Tensor:
    with torch.no_grad():
        hidden_states: Tensor = trainer.model.encode(inputs).hidden_states
    return hidden_states


def test_a_causal_block_never_sees_what_follows() -> None:
    """A later token is changed: no state before it moves, unless the block is read both ways."""
    trainer = trainer_of("gpt_bert", HALF, batch_size=16)
    directions = set()
    for batch in first_step(trainer).batches:
        inputs = batch.input
        starts, before = inputs.cu_seqlens.long(), states(trainer, inputs)
        for block in range(len(starts) - 1):
            first, last = int(starts[block]), int(starts[block + 1])
            for changed in (first + (last - first) // 2, last - 1):
                ids = inputs.ids.clone()
                ids[changed] = (ids[changed] + 7) % 500
                moved = (states(trainer, inputs._replace(ids=ids)) != before).any(-1)
                assert moved[changed] and not moved[:first].any() and not moved[last:].any()
                assert moved[first:changed].any() != inputs.causal
        directions.add(inputs.causal)
    assert directions == {False, True}


def test_no_loss_of_a_causal_block_knows_its_target() -> None:
    """The gradient of a prediction reaches no token from its target on."""
    trainer = trainer_of("gpt_bert", HALF, batch_size=16)
    (batch,) = [
        causal_batch for causal_batch in first_step(trainer).batches if causal_batch.input.causal
    ]
    embeddings: Any = trainer.model.encoder.embeddings
    read: list[Tensor] = []
    hook = embeddings.register_forward_hook(lambda *_: read.append(_[2].requires_grad_()))
    encoded = trainer.model.encode(batch.input)
    hook.remove()
    targets = batch.targets["causal_lm"]
    for number in range(0, len(targets["at"]), 17):
        row_targets = {name: values[number : number + 1] for name, values in targets.items()}
        trainer.model.zero_grad()
        (seen,) = torch.autograd.grad(
            trainer.model.heads["causal_lm"](encoded, row_targets)["loss"],
            read[0],
            retain_graph=True,
        )
        at = int(row_targets["at"])
        assert seen[at].any() and not seen[at + 1 :].any()
        assert batch.input.ids[at + 1] == row_targets["labels"]


def test_a_block_has_its_direction_whatever_is_beside_it() -> None:
    blocks = source()
    numbers = np.arange(blocks.size)
    drawn = blocks.causal(0, numbers, 0.3)
    some = np.array([5, 17, 2])
    assert np.array_equal(blocks.causal(0, some, 0.3), drawn[some])
    assert not np.array_equal(blocks.causal(1, numbers, 0.3), drawn)
    assert blocks.causal(0, numbers, 1.0).all() and not blocks.causal(0, numbers, 0.0).any()
    block_numbers = np.arange(20_000)
    share = blocks.causal(0, block_numbers, 1 / 16).mean()
    assert share == pytest.approx(1 / 16, abs=4.5 * (1 / 16 * 15 / 16 / len(block_numbers)) ** 0.5)


def test_a_step_has_causal_blocks_without_masks_beside_masked_ones() -> None:
    trainer = trainer_of("gpt_bert", HALF, batch_size=16)
    step, mask = first_step(trainer), trainer.job.stores[0][0].vocabulary.role("mask")
    assert {batch.input.causal for batch in step.batches} == {False, True}
    for batch in step.batches:
        real = int(batch.input.real)  # type: ignore[arg-type]
        blocks = int((batch.input.cu_seqlens[:-1] < real).sum())
        masked, causal = labels(batch, "masked_lm"), labels(batch, "causal_lm")
        if batch.input.causal:  # every token but the first of each block
            assert (masked, causal) == (0, real - blocks)
            assert mask not in batch.input.ids
        else:
            assert masked > 0 and causal == 0
            assert mask in batch.input.ids
    assert step.tokens == sum(int(batch.input.real) for batch in step.batches)  # type: ignore[arg-type]
    for name in ("masked_lm", "causal_lm"):
        assert step.counts[name] == sum(labels(batch, name) for batch in step.batches)


def test_masked_targets_stand_one_place_before_their_token() -> None:
    blocks = source()
    numbers = np.arange(12)
    usual, shifted = (
        source(shrunk("gpt_bert", f"objectives.0.shift={shift}")).examples(0, numbers, progress=1.0)
        for shift in (0, 1)
    )
    first, second = (pack.targets["masked_lm"] for pack in (usual, shifted))
    assert np.array_equal(first.starts, second.starts)
    assert np.array_equal(first.columns["labels"], second.columns["labels"])
    assert np.array_equal(first.columns["at"] - 1, second.columns["at"])
    plain = blocks.plan(0).blocks(numbers)
    token = plain.starts[:-1].repeat(np.diff(second.starts)) + second.columns["at"] + 1
    assert np.array_equal(plain.ids[token], second.columns["labels"])


def test_the_first_phase_is_a_causal_model_and_the_second_goes_on_from_it() -> None:
    """Up to the switch the weights are those of a causal encoder; then its moments go on."""
    both = trainer_of("causal_then_masked", steps=6)
    alone = trainer_of(
        "causal_then_masked", "encoder.causal=true", "masking.use=nothing", "schedule.causal=[]",
        'objectives=[{use="causal_lm", head="transform"}]', steps=6,
    )  # fmt: skip
    mine, other = (
        train(each.train_state, [job() for job in each.jobs(0, each.steps.start())], HERE)
        for each in (both, alone)
    )
    heads = {"heads.causal_lm": "heads.masked_lm"}
    for number in range(1, 7):
        steps = next(mine), next(other)
        theirs = {
            name.replace(*next(iter(heads.items()))): value
            for name, value in alone.model.named_parameters()
        }
        same = all(torch.equal(p, theirs[name]) for name, p in both.model.named_parameters())
        assert same == (number <= 3)
        assert steps[0].tokens == steps[1].tokens  # of the same blocks
    moments = both.train_state.optimisers[0].state.values()
    assert {int(each["step"]) for each in moments} == {6}


def test_one_head_serves_both_and_is_saved_once() -> None:
    trainer = trainer_of("causal_then_masked")
    heads = trainer.model.heads
    assert heads["causal_lm"] is heads["masked_lm"]
    names = [name for name, _ in trainer.model.named_parameters()]
    assert not any("causal_lm" in name for name in names)
    assert any(name.startswith("heads.masked_lm.") for name in names)
    recipe = trainer.recipe
    assert sum(recipe.parameters().values()) == sum(p.numel() for p in trainer.model.parameters())
    turned = pretrain_job(
        "causal_then_masked", 'objectives=[{use="causal_lm", head="shared"}, {use="masked_lm"}]'
    )
    assert [name for name, _ in double_precision_trainer(turned).model.named_parameters()] == names


def test_held_out_blocks_are_all_read_in_either_direction() -> None:
    """So losses are comparable, whatever share a run reads causally."""
    trainer, (corpus, _) = trainer_of("gpt_bert", HALF), open_stores([store("byte_bpe")])[0]
    results = []
    for share in ("[[0.5, 1.0]]", "[[0.1, 0.2]]"):
        recipe = fitted(shrunk("gpt_bert", f"schedule.causal={share}"), corpus)
        sample = HeldOut(recipe, corpus, blocks=recipe.blocks, count=24)
        results.append(sample.measure(trainer.model, HERE, tokens=128))
    assert results[0] == results[1]
    recipe = fitted(
        shrunk("gpt_bert", "schedule.causal=[]", 'objectives=[{use="masked_lm"}]'), corpus
    )
    alone = HeldOut(recipe, corpus, blocks=recipe.blocks, count=24)
    (pack,) = [alone.source.examples(0, group, progress=1.0) for group in alone.groups]
    assert results[0]["masked_lm"]["count"] == pack.counts()["masked_lm"]
    assert results[0]["causal_lm"]["count"] == pack.tokens - len(pack)


def test_constant_shapes_are_two_one_for_each_direction() -> None:
    """As on a GPU: a graph for each, and no slots for what a direction does not predict."""
    stores = open_stores([store("byte_bpe")])
    recipe = fitted(
        shrunk("gpt_bert", "schedule.causal=[[0.25, 1.0]]", steps=8, batch_size=32), stores[0][0]
    )
    steps = Steps(recipe, stores, seed=0, tokens=128, gpu=False)
    steps.constant = True
    shapes: dict[bool, set[Any]] = {False: set(), True: set()}
    trainer = trainer_of("gpt_bert")
    for job in steps.jobs(0, steps.start()):
        step = job()
        for batch in (*step.batches, step.blank):
            sizes = {name: len(columns["at"]) for name, columns in batch.targets.items()}
            key = (len(batch.input.ids), len(batch.input.cu_seqlens), *sorted(sizes.items()))
            shapes[batch.input.causal].add(key)
            assert sizes["masked_lm" if batch.input.causal else "causal_lm"] == 0
        sums = drained(follow_measure(trainer.model, [step], HERE))
        assert {name: values["count"] for name, values in sums.items()} == step.counts
    assert [len(shapes[causal]) for causal in (False, True)] == [1, 1]


@pytest.mark.parametrize("causal", ["[[1.0, 0.5]]", "[[0.5, 1.0]]"])
def test_more_processes_than_blocks_leave_some_without_any(causal: str) -> None:
    stores = open_stores([store("byte_bpe")])
    recipe = fitted(shrunk("gpt_bert", f"schedule.causal={causal}", batch_size=1), stores[0][0])
    counts = []
    for rank in range(2):
        steps = Steps(recipe, stores, seed=0, rank=rank, size=2, tokens=64, gpu=False)
        step = next(iter(steps.jobs(0, steps.start())))()
        counts.append(len(step.batches))
        assert step.blank.input.real == 0 and {*step.counts} == {"masked_lm", "causal_lm"}
    assert sorted(counts) == [0, 1]


@pytest.mark.thorough
def test_two_graphs_serve_all_micro_batches() -> None:
    from torch._dynamo.testing import CompileCounter  # two seconds of imports

    trainer = PretrainTrainer(pretrain_job("gpt_bert", HALF, steps=6, batch_size=16), MACHINE, HERE)
    steps = trainer.steps
    steps.constant, steps.tokens = True, 128
    counter = CompileCounter()
    torch.compiler.reset()
    compiled = torch.compile(trainer.model, backend=counter, fullgraph=True, dynamic=False)
    seen = set()
    for job in steps.jobs(0, steps.start()):
        for batch in job().batches:
            sums, _ = compiled(batch)
            plain, _ = trainer.model(batch)
            for name, values in plain.items():
                assert sums[name]["loss"].item() == pytest.approx(values["loss"].item(), rel=1e-5)
            seen.add(batch.input.causal)
    assert seen == {False, True} and counter.frame_count == 2


def test_what_a_step_has_no_target_of_it_has_no_loss_of() -> None:
    trainer = trainer_of("causal_then_masked", steps=4)
    steps = steps_of(trainer)
    for number, step in enumerate(steps):
        assert (step.sums["causal_lm"]["count"] > 0) == (number < 2)
        assert (step.sums["masked_lm"]["count"] > 0) == (number >= 2)
        assert step.norm > 0


SOME = "schedule.causal=[[0.5, 1]]"
ALONE = 'objectives=[{use="causal_lm"}]'
SHARED = 'objectives=[{use="causal_lm", head="shared"}]'
GENERATED = 'objectives=[{use="generator"}, {use="causal_lm"}]'


@pytest.mark.parametrize(
    ("name", "overrides", "sentence"),
    [
        ("roberta", [SOME], "no objective learns from those; list causal_lm"),
        ("gpt", [SOME], r"encoder\.causal = true already does so for all"),
        ("xlnet", [SOME], "which encoder relative cannot; use encoder transformer"),
        ("electra", [SOME, GENERATED], "which objective generator does not support"),
        ("gpt_bert", ["schedule.causal=[]"], "would see its targets; set encoder.causal = true"),
        ("gpt_bert", ["schedule.causal=[[1, 1]]"], "would never be bidirectional; list masked"),
        ("gpt_bert", ["schedule.causal=[[0, 0.5], [1, 0.5]]"], "would never be bidirectional"),
        ("gpt_bert", [ALONE, "masking.use=nothing"], "would never be bidirectional"),
        ("gpt_bert", ["schedule.causal=[[1.5, 1]]"], r"schedule\.causal: give pairs \(share of"),
        ("gpt_bert", ["schedule.causal=[[1, 0]]"], r"share of the steps, above 0"),
        ("gpt_bert", ["schedule.causal=[[0.5, 0.8], [0, 0.4]]"], "at most 1, not 1.2"),
        ("gpt_bert", ["objectives.0.shift=2"], r"objectives\.0\.shift = 2: must be 0 or 1"),
        ("gpt_bert", ["objectives.1.tied=false"], 'no effect with head = "shared"; set it in'),
        ("gpt_bert", [SHARED], "has the head of masked_lm; list masked_lm beside it"),
    ],
)
def test_what_does_not_fit_is_a_sentence(name: str, overrides: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as error:
        read(name, overrides=overrides)
    assert "\n" not in str(error.value)


def test_the_predicted_share_is_that_of_blocks_of_both_directions() -> None:
    trainer = trainer_of("gpt_bert", "schedule.causal=[[0.25, 1.0]]", "masking.course=[]")
    sources = trainer.steps.sources(0)
    shares = trainer.steps.predicted(sources)
    rate = trainer.recipe.masking.mask_rate  # type: ignore[attr-defined]
    # Every token of a causal block but its last is predicted.
    assert shares["causal_lm"] == pytest.approx(0.25, rel=0.1)
    assert shares["masked_lm"] == pytest.approx(0.75 * rate, rel=0.15)

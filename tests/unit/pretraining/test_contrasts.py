"""Rows and groups of a contrastive step: the same however the step is divided."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.pretrain_runs import (
    HERE,
    MACHINE,
    assert_close,
    double_precision_trainer,
    pretrain_job,
    shrunk,
    steps_of,
    store,
    teacher,
)

import clozelab
from clozelab.config import recipe as recipes
from clozelab.contracts import Batch, Targets
from clozelab.errors import UserError
from clozelab.pretraining import starting
from clozelab.pretraining.fitting import fitted
from clozelab.pretraining.held_out import HeldOut
from clozelab.pretraining.steps import Steps
from clozelab.pretraining.trainer import PretrainTrainer
from clozelab.text.store.corpus import open_stores
from clozelab.training.world import World

torch.set_num_threads(1)
GROUPS = "objectives.0.in_batch=4"


def prepared(*overrides: str, rank: int = 0, size: int = 1, **settings: Any) -> list[Any]:
    """The steps of a run over two stores, which are mixed."""
    places = [store("wordpiece"), f"{store('wordpiece', skip=30)}:2"]
    stores = open_stores(places)
    recipe = fitted(shrunk("simcse", *overrides, batch_size=12), stores[0][0])
    wanted = {"tokens": 64, "gpu": False, **settings}
    steps = Steps(recipe, stores, seed=0, rank=rank, size=size, **wanted)
    return [job() for job in steps.jobs(0, steps.start())]


def texts(batch: Batch) -> dict[int, list[tuple[int, ...]]]:
    """The texts of each group, the first of each row and its positive by turns."""
    starts, targets = batch.input.cu_seqlens.tolist(), batch.targets["contrastive"]
    texts_by_group: dict[int, list[tuple[int, ...]]] = {}
    blocks = int((targets["labels"] != Targets.IGNORED).sum()) * 2
    for number, group in enumerate(targets["groups"].tolist()[:blocks]):
        ids = batch.input.ids[starts[number] : starts[number + 1]]
        texts_by_group.setdefault(group, []).append(tuple(ids.tolist()))
    return texts_by_group


def groups(step: Any) -> list[list[tuple[int, ...]]]:
    return [each for batch in step.batches for each in texts(batch).values()]


def test_a_group_is_never_divided_and_the_same_in_any_number_of_processes() -> None:
    whole = [groups(step) for step in prepared(GROUPS)]
    assert [len(step) for step in whole] == [3] * 4
    for group in (group for step in whole for group in step):
        assert len(group) == 8 and group[::2] == group[1::2]  # every text with its twin
    shared = [prepared(GROUPS, rank=rank, size=2, tokens=4096) for rank in (0, 1)]
    for step, first, other in zip(whole, *shared, strict=True):
        assert groups(first) + groups(other) == step
        assert first.counts["contrastive"] + other.counts["contrastive"] == 12


def test_a_step_without_a_stated_size_is_one_group_and_fits_a_constant_shape() -> None:
    first_step = prepared(gpu=False)
    assert all(len(step.batches) == 1 and len(groups(step)[0]) == 24 for step in first_step)
    recipe = shrunk("simcse", batch_size=12)
    steps = Steps(recipe, open_stores([store("wordpiece")]), seed=0, tokens=64, gpu=False)
    steps.constant = True
    shapes = {
        tuple(step.batches[0].input.ids.shape)
        for step in (job() for job in steps.jobs(0, steps.start()))
    }
    assert len(shapes) == 1


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_no_split_of_a_step_changes_its_loss_or_what_is_learned(pooling: str) -> None:
    results = []
    for micro in (16, 1):
        overrides = ["objectives.0.in_batch=2", f"objectives.0.pooling={pooling}"]
        trainer = double_precision_trainer(
            pretrain_job("simcse", *overrides, steps=3), replace(MACHINE, micro_batch=micro)
        )
        steps = steps_of(trainer)
        results.append(
            (steps, {n: p.detach().clone() for n, p in trainer.model.named_parameters()})
        )
    for mine, other in zip(results[0][0], results[1][0], strict=True):
        assert mine.sums["contrastive"] == pytest.approx(other.sums["contrastive"], rel=1e-9)
        assert mine.norm == pytest.approx(other.norm, rel=1e-9)
    assert_close(results[0][1], results[1][1])


def test_texts_that_are_fewer_than_a_group_are_told_and_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    for texts, sentence in ((1, "has only one text"), (3, "its own negative")):
        file.write_text("\n".join(["a small cat", "the dog sat", "bread"][:texts]), "utf-8")
        out = tmp_path / f"corpus-{texts}"
        clozelab.build_corpus(
            file, out=out, layout="lines", tokenizer_from=teacher(), held_out=0, workers=1
        )
        job = starting.fresh(shrunk("simcse", batch_size=4), data=[str(out)], seed=0)
        if texts == 1:
            with pytest.raises(UserError, match=sentence):
                PretrainTrainer(job, MACHINE, HERE)
        else:
            trainer = PretrainTrainer(job, MACHINE, HERE)
            assert any(sentence in note for note in trainer.notes())


def test_held_out_groups_are_the_same_in_any_number_of_processes() -> None:
    corpus = open_stores([store("wordpiece")])[0][0]
    recipe = fitted(shrunk("simcse", GROUPS, batch_size=12), corpus)
    sample = HeldOut(recipe, corpus, blocks=recipe.blocks, count=10)

    def held_out_losses(rank: int, size: int) -> list[Any]:
        world = World(rank, size, torch.device("cpu"))
        return [group for step in sample._feed(world, 64) for group in groups(step)]

    whole = held_out_losses(0, 1)
    assert [len(group) for group in whole] == [8, 8, 4]
    assert held_out_losses(0, 2) + held_out_losses(1, 2) == whole


def test_rows_of_a_format_are_a_text_its_positive_and_its_negative() -> None:
    corpus = open_stores([store("wordpiece")])[0][0]
    overrides = ["blocks.use=sentence_rows", "blocks.views=3"]
    recipe = fitted(shrunk("simcse", *overrides, batch_size=3), corpus)
    steps = Steps(recipe, [(corpus, 1.0)], seed=0, tokens=4096, gpu=False)
    sources = steps.sources(0)
    whole = sources[0].plan(0)
    assert sources[0].views == 3 and sources[0].size == len(whole) // 3
    (batch,) = next(iter(steps.jobs(0, steps.start())))().batches
    targets = batch.targets["contrastive"]
    assert targets["views"].tolist() == [0, 1, 2] * 3
    row = int(sources[0].order(0)[0])
    blocks = whole.blocks(np.arange(3 * row, 3 * row + 3))
    assert batch.input.ids[: len(blocks.ids)].tolist() == blocks.ids.tolist()


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["objectives.0.in_batch=5"], "in_batch = 5 must divide schedule.batch_size = 64"),
        (["schedule.causal=[[0.5, 1.0]]"], "causal"),
        (["objectives.0.projection=false", "objectives.0.sizes=[768]"], "must be below"),
        (["schedule.ramp=[[10, 0.5]]", "objectives.0.in_batch=32"], "must divide"),
    ],
)
def test_what_does_not_fit_is_refused(overrides: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        recipes.read("simcse", overrides=overrides)


def test_twins_without_dropout_are_warned_of() -> None:
    overrides = ["encoder.dropout=0", "encoder.attention_dropout=0"]
    assert "two copies" in recipes.read("simcse", overrides=overrides).warnings()[0]
    assert not recipes.read("simcse").warnings()
    rows = [*overrides, "blocks.use=sentence_rows"]
    assert not recipes.read("simcse", overrides=rows).warnings()


def test_more_processes_than_groups_are_refused() -> None:
    job = starting.fresh(shrunk("simcse"), data=[store("wordpiece")], seed=0)
    with pytest.raises(UserError, match="in_batch = 2, or use fewer"):
        PretrainTrainer(job, replace(MACHINE, micro_batch=4), World(0, 2, HERE.device))
    for batch_size, processes, remedy in (
        (64, 3, "of 64; give the objective in_batch = 16, or use fewer"),  # which divides it
        (7, 3, "of 7; use fewer"),
    ):
        other = replace(job, recipe=shrunk("simcse", batch_size=batch_size))
        with pytest.raises(UserError, match=remedy):
            other.check(processes=processes)


def test_a_vector_of_cls_that_nothing_trained_is_noted() -> None:
    learned = clozelab.load(teacher())
    only = tuple(part for part in learned.recipe.objectives if part.language_model == "masked")
    masked_only = replace(learned, recipe=replace(learned.recipe, objectives=only))

    def notes(model: Any, pooling: str) -> list[str]:
        recipe = shrunk("simcse", f"objectives.0.pooling={pooling}")
        data = [store("wordpiece")]
        job = starting.continued(recipe, "a model", data=data, seed=0, loaded=model)
        return [note for note in job.notes if "[CLS]" in note]

    (note,) = notes(masked_only, "cls")
    assert "--set objectives.0.pooling=mean_all" in note
    assert not notes(masked_only, "mean_all")
    assert not notes(learned, "cls")  # next sentences are predicted from it

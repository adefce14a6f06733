"""Pretraining from end to end: budgets, interruptions, damage, refusals, models to begin with."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.corpora import ENVIRONMENT, build, write
from support.pretrain_runs import (
    HERE,
    MACHINE,
    QUIET,
    assert_same,
    checkpoint,
    of_kind,
    pretrain_job,
    run_pretraining,
    shrunk,
    store,
    teacher,
)
from support.processes import start_process
from support.texts import corpus, tokenizer

from clozelab.cli import main
from clozelab.config import recipe as recipes
from clozelab.config.recipe import to_toml
from clozelab.errors import UserError
from clozelab.models.build import PretrainingModel
from clozelab.models.load import load
from clozelab.pretraining import starting
from clozelab.pretraining.pretrain import pretrain, resume
from clozelab.runs import session
from clozelab.runs.directory import Run
from clozelab.runs.events import Began, Ended, Evaluated, Said, Saved
from clozelab.runs.machine import Machine
from clozelab.runs.session import SaveOptions
from clozelab.training.budget import parse
from clozelab.training.loop import Step, train

torch.set_num_threads(1)


def resumed(place: Path, saving: SaveOptions = QUIET) -> list[Any]:
    return list(resume(starting.resumed(place), place, machine=MACHINE, saving=saving))


def budgeted(budget: str, out: Path, *overrides: str, name: str = "roberta") -> list[Any]:
    job = replace(pretrain_job(name, *overrides, steps=50), budget=parse(budget))
    return run_pretraining(job, out)


# Saving, resuming, damage


def test_checkpoints_come_as_often_as_asked_and_only_the_last_are_kept(tmp_path: Path) -> None:
    saving = SaveOptions(save_every=3, keep=2, evaluate_every=4, evaluate_blocks=8)
    events = run_pretraining(pretrain_job("bert", steps=10), tmp_path / "run", saving=saving)
    assert [event.step for event in of_kind(Saved, events)] == [3, 6, 9, 10]
    assert [event.step for event in of_kind(Evaluated, events)] == [4, 8, 10]
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step-00000009", "step-00000010"]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds.count("step") == 10 and kinds.count("held_out") == 3
    result = Run.open(tmp_path / "run").result()
    assert result is not None and result["tokens"] == sum(s.tokens for s in of_kind(Step, events))
    assert result["seconds"] > 0


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    place = tmp_path / "run"
    run_pretraining(pretrain_job("bert", steps=4), place)
    before = (place / "result.json").read_text()
    weights = checkpoint(place, 4).weights()
    events = resumed(place)
    assert not of_kind(Step, events) and of_kind(Ended, events)[0].whole
    assert (place / "result.json").read_text() == before
    after = checkpoint(place, 4).weights()
    assert all(torch.equal(weights[name], after[name]) for name in weights)


def test_a_damaged_checkpoint_is_passed_over_and_said_so(tmp_path: Path) -> None:
    saving = SaveOptions(save_every=2, keep=0, evaluate_every=0, evaluate_blocks=8)
    place = tmp_path / "run"
    run_pretraining(pretrain_job("albert", steps=8), place, saving=saving)
    whole = tmp_path / "whole"
    shutil.copytree(place, whole)
    file = place / "checkpoints" / "step-00000008" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    events = resumed(place, saving)
    (notice,) = of_kind(Said, events)
    assert "step-00000008" in notice.text and "damaged" in notice.text
    assert [step.number for step in of_kind(Step, events)] == [7, 8]
    assert_same(checkpoint(place, 8), checkpoint(whole, 8))


def test_a_run_that_begins_again_is_not_done(tmp_path: Path) -> None:
    saving = SaveOptions(save_every=2, keep=0, evaluate_every=0, evaluate_blocks=8)
    place = tmp_path / "run"
    run_pretraining(pretrain_job("bert", steps=4), place, saving=saving)
    for file in place.glob("checkpoints/*/model.safetensors"):
        file.write_bytes(file.read_bytes()[:-100])
    events = resume(starting.resumed(place), place, machine=MACHINE, saving=saving)
    notices = []
    for event in events:
        notices += [event.text] if isinstance(event, Said) else []
        if isinstance(event, Step):
            break
    assert event.number == 1 and Run(place).result() is None
    assert ["is damaged; it is skipped" in notice for notice in notices] == [True, True, False]
    assert [*events] and Run(place).result() is not None


def test_a_run_without_a_checkpoint_begins_again_from_what_it_began_with(tmp_path: Path) -> None:
    saving = SaveOptions(save_every=0, evaluate_every=0, evaluate_blocks=8)
    job = starting.continued(
        shrunk("bert"), teacher(), data=[store("wordpiece")], seed=3, budget="4steps"
    )
    for number, each_job in enumerate((job, pretrain_job("distilbert", "encoder.layers=2"))):
        straight, place = tmp_path / f"straight{number}", tmp_path / f"run{number}"
        run_pretraining(each_job, straight, saving=saving)
        events = pretrain(each_job, place, machine=MACHINE, saving=saving)
        for event in events:
            if isinstance(event, Step) and event.number == 2:
                break
        events.close()  # type: ignore[attr-defined]
        (notice,) = of_kind(Said, again := resumed(place, saving))[:1]
        assert "starts from the beginning" in notice.text and of_kind(Step, again)[0].number == 1
        assert_same(checkpoint(straight, 4), checkpoint(place, 4))


def test_a_run_with_steps_of_its_own_begins_again_from_what_it_began_with(tmp_path: Path) -> None:
    recipe = shrunk("simcse", "blocks.length=64", "objectives.0.in_batch=8", batch_size=16)
    assert recipe.schedule.batch_size > load(teacher()).recipe.schedule.batch_size
    data = [store("wordpiece")]
    job = starting.continued(recipe, teacher(), data=data, seed=0, shaped=True)
    next(pretrain(job, tmp_path, machine=MACHINE, saving=QUIET))  # killed before its first step
    assert starting.resumed(tmp_path).recipe == job.recipe


def test_a_changed_recipe_is_refused_with_the_difference(tmp_path: Path) -> None:
    place = tmp_path / "run"
    run_pretraining(pretrain_job("bert", steps=2), place)
    starting.resumed(place, recipe=shrunk("bert", steps=2))
    changed = shrunk("bert", "masking.mask_rate=0.3", "optimiser.weight_decay=0.5", steps=2)
    with pytest.raises(
        UserError, match=r"masking\.mask_rate 0\.15 → 0\.3; optimiser\.weight_decay 0\.01 → 0\.5"
    ):
        starting.resumed(place, recipe=changed)


def test_other_data_is_refused_and_the_same_data_elsewhere_is_not(tmp_path: Path) -> None:
    place = tmp_path / "run"
    run_pretraining(pretrain_job("bert", steps=2), place)
    moved = tmp_path / "moved"
    shutil.copytree(store("wordpiece"), moved)
    for data, same in (([str(moved)], True), ([store("wordpiece", skip=30)], False)):
        job = starting.resumed(place, data=data)
        if same:
            list(resume(job, place, machine=MACHINE, saving=QUIET))
        else:
            with pytest.raises(UserError, match="was started with other data"):
                list(resume(job, place, machine=MACHINE, saving=QUIET))
    weighted = starting.resumed(place, data=[f"{moved}:0.5"])
    with pytest.raises(UserError, match="was started with other data"):
        list(resume(weighted, place, machine=MACHINE, saving=QUIET))


def test_a_run_does_not_go_on_with_another_split_of_its_text(tmp_path: Path) -> None:
    place, file = tmp_path / "run", write(tmp_path / "a.jsonl", corpus()[:60])
    data = [tmp_path / "one", tmp_path / "two"]
    for folder, share in zip(data, (0.1, 0.4), strict=True):
        build(file, folder, tokenizer("wordpiece"), held_out=share)
    recipe = shrunk("bert", steps=2)
    run_pretraining(starting.fresh(recipe, data=[str(data[0])], seed=0), place)
    job = starting.resumed(place, data=[str(data[1])])
    with pytest.raises(UserError, match="was started with other data"):
        list(resume(job, place, machine=MACHINE, saving=QUIET))
    resumed(place)


def test_a_run_is_resumed_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(store("wordpiece")).parent)
    where = os.path.relpath(teacher())
    job = starting.taught(shrunk("distilbert"), where, data=["corpus"], seed=0, sized=True)
    run_pretraining(job, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    again = starting.resumed(Path("run"))
    assert again.teacher is not None and again.stores[0][0].path == Path(store("wordpiece"))
    assert of_kind(Ended, list(resume(again, Path("run"), machine=MACHINE, saving=QUIET)))[0].whole


def test_a_folder_with_a_run_in_it_is_refused(tmp_path: Path) -> None:
    run_pretraining(pretrain_job("bert", steps=1), tmp_path / "run")
    with pytest.raises(UserError, match="--resume"):
        run_pretraining(pretrain_job("bert", steps=1), tmp_path / "run")


# Budgets


def test_a_budget_of_steps_is_those_steps(tmp_path: Path) -> None:
    events = budgeted("7steps", tmp_path / "run", "schedule.warmup=10")
    assert len(of_kind(Step, events)) == 7
    (began,) = of_kind(Began, events)
    assert began.recipe.schedule.steps == 7 and 1 <= began.recipe.schedule.warmup <= 3
    assert of_kind(Step, events)[-1].learning_rate > 0


def test_a_budget_shorter_than_one_step_is_refused_without_taking_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def counted(*arguments: Any) -> Iterator[Step]:
        for step in train(*arguments):
            taken.append(step.tokens)
            yield step

    monkeypatch.setattr("clozelab.pretraining.trainer.train", counted)
    with pytest.raises(UserError, match=r"too few, since one step takes .*--size tiny"):
        budgeted("1s", tmp_path / "run", "schedule.batch_size=1000000")
    assert sum(taken) < 50_000


def test_a_budget_of_tokens_is_kept_and_nearly_used_up(tmp_path: Path) -> None:
    steps = of_kind(Step, budgeted("1.5ktok", tmp_path / "full", name="gpt"))
    assert len(steps) == 11 and all(step.tokens <= 4 * 32 for step in steps)
    steps = of_kind(Step, budgeted("1.5ktok", tmp_path / "run"))  # whose blocks are not all full
    assert sum(step.tokens for step in steps) == pytest.approx(1500, abs=4 * 32)


@pytest.mark.parametrize(("budget", "is_told"), [("1.5ktok", True), ("3steps", False)])
def test_a_budget_of_a_few_steps_alone_is_told_how_to_have_more(
    budget: str, is_told: bool, tmp_path: Path
) -> None:
    said = [event.text for event in of_kind(Said, budgeted(budget, tmp_path / "run", name="gpt"))]
    few = [text for text in said if "the budget is only 11 steps of 4 × 32 tokens" in text]
    assert bool(few) == is_told and all("or use --size tiny" in text for text in few)


def test_a_budget_of_time_times_a_few_steps_and_begins_anew(tmp_path: Path) -> None:
    events = budgeted("0.6s", tmp_path / "run", "schedule.steps=1000000")
    assert "timing" in of_kind(Said, events)[0].text
    (began,) = of_kind(Began, events)
    steps = of_kind(Step, events)
    assert began.recipe.schedule.steps < 1_000_000
    # However the pace changed on the way, the recorded recipe is the same run.
    recorded = Run(tmp_path / "run").recipe()
    assert len(steps) == recorded.schedule.total
    job = replace(pretrain_job("roberta", steps=50), recipe=recorded)
    run_pretraining(job, tmp_path / "same")
    last = len(steps)
    assert_same(checkpoint(tmp_path / "run", last), checkpoint(tmp_path / "same", last))


def test_a_run_on_a_budget_of_time_goes_on_with_the_refits_it_had(tmp_path: Path) -> None:
    job = replace(pretrain_job("roberta", steps=50), budget=parse("1.5s"))
    saving = replace(QUIET, save_every=2)
    for event in pretrain(job, tmp_path / "run", machine=MACHINE, saving=saving):
        if isinstance(event, Step) and event.number == 3:  # killed there
            break
    before = Run(tmp_path / "run").recipe().schedule.refits or ()
    resuming = starting.resumed(tmp_path / "run")
    assert resuming.budget == parse("1.5s")
    events = resumed(tmp_path / "run", saving)
    recorded = Run(tmp_path / "run").recipe()
    assert (recorded.schedule.refits or ())[: len(before)] == before
    last = of_kind(Step, events)[-1].number
    assert last == recorded.schedule.total
    run_pretraining(replace(job, recipe=recorded, budget=None), tmp_path / "same")
    assert_same(checkpoint(tmp_path / "run", last), checkpoint(tmp_path / "same", last))
    times = (Run(tmp_path / "run").result() or {})["times"]  # both parts of it
    assert times["training"] > sum(step.seconds for step in of_kind(Step, events))


@pytest.mark.parametrize("budget", ["0.000001s", "10tok"])
def test_a_budget_too_small_for_a_step_is_refused(budget: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="too few, since one step takes"):
        budgeted(budget, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Little text


def little(folder: Path, documents: list[str]) -> str:
    file = write(folder / "little.jsonl", documents)
    return str(build(file, folder / "little", tokenizer("wordpiece"), held_out=0.0).path)


@pytest.mark.parametrize("name", ["xlnet", "albert"])
def test_a_corpus_without_one_block_is_refused(name: str, tmp_path: Path) -> None:
    place = little(tmp_path, ["Hi."])
    job = starting.fresh(shrunk(name), data=[place], seed=0)
    with pytest.raises(UserError, match=r"block.*(give more|add|more) text"):
        run_pretraining(job, tmp_path / "run")


def test_fewer_blocks_than_a_step_takes_repeat_and_this_is_said(tmp_path: Path) -> None:
    place = little(tmp_path, [" ".join(corpus()[0].split()[:60])])
    job = starting.fresh(shrunk("roberta_wwm", batch_size=16), data=[place], seed=0)
    events = run_pretraining(job, tmp_path / "run")
    texts = [event.text for event in of_kind(Said, events)]
    assert any("they repeat" in text for text in texts)
    assert any("no held-out loss" in text for text in texts)
    assert len(of_kind(Step, events)) == 4


def test_one_text_in_order_cannot_be_mixed_from_two(tmp_path: Path) -> None:
    data = [store("unigram"), store("unigram", skip=30)]
    job = starting.fresh(shrunk("xlnet"), data=data, seed=0)
    with pytest.raises(UserError, match="one text in order"):
        run_pretraining(job, tmp_path / "run")


# Out of memory, no number


def test_memory_of_an_evaluation_is_given_back_before_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emptied: list[torch.device] = []
    monkeypatch.setattr(session, "empty_cache", emptied.append)
    saving = SaveOptions(evaluate_every=2, evaluate_blocks=4)
    counts: list[tuple[type, int]] = []
    for event in pretrain(pretrain_job("bert"), tmp_path / "a", machine=MACHINE, saving=saving):
        counts.append((type(event), len(emptied)))
    steps = [count for kind, count in counts if kind is Step]
    assert steps == [0, 0, 1, 1] and emptied == [HERE.device] * 2


MUCH = 1 << 60  # bytes, which no machine has


@pytest.fixture(params=["gpu", "cpu"])
def cramped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has room for two sequences of 32 tokens, and says so by its own error."""
    forward = PretrainingModel.forward

    def tight(self: PretrainingModel, batch: Any) -> Any:
        if len(batch.input.ids) > 64:
            if request.param == "gpu":
                raise torch.OutOfMemoryError("no room")
            torch.empty(MUCH, dtype=torch.uint8)
        return forward(self, batch)

    monkeypatch.setattr(PretrainingModel, "forward", tight)


@pytest.mark.usefixtures("cramped")
@pytest.mark.parametrize("name", ["roberta", "xlnet"])
def test_out_of_memory_halves_the_micro_batch_and_goes_on(name: str, tmp_path: Path) -> None:
    machine = Machine(device="cpu", workers=1, micro_batch=8)
    events = run_pretraining(pretrain_job(name, steps=5, batch_size=8), tmp_path / "a", machine)
    notices = [event.text for event in of_kind(Said, events) if "out of memory" in event.text]
    assert notices == [
        "out of memory: micro-batches of 4 sequences from here on",
        "out of memory: micro-batches of 2 sequences from here on",
    ]
    assert [step.number for step in of_kind(Step, events)] == [1, 2, 3, 4, 5]
    run_pretraining(
        pretrain_job(name, steps=5, batch_size=8), tmp_path / "b", replace(machine, micro_batch=2)
    )
    assert_same(checkpoint(tmp_path / "a", 5), checkpoint(tmp_path / "b", 5))


@pytest.mark.usefixtures("cramped")
def test_out_of_memory_with_one_sequence_is_refused_with_what_helps(tmp_path: Path) -> None:
    job = pretrain_job("roberta", "blocks.length=96", steps=2)
    with pytest.raises(UserError, match=r"out of memory.*--recompute or a smaller --size"):
        run_pretraining(job, tmp_path / "run", Machine(device="cpu", workers=0, micro_batch=1))


@pytest.mark.usefixtures("cramped")
@pytest.mark.parametrize(
    ("overrides", "advice"),
    [
        ((), "a group of 8 rows of 2 texts, which --micro-batch does not divide; use --set"
             " objectives.0.in_batch=4, --recompute or a smaller --size"),
        (("objectives.0.in_batch=2", "blocks.shortest=28"),
         "a group of 2 rows of 2 texts, .* use --recompute or a smaller --size"),
    ],
)  # fmt: skip
def test_a_group_that_memory_has_no_room_for_is_refused_with_what_helps(
    overrides: tuple[str, ...], advice: str, tmp_path: Path
) -> None:
    job = pretrain_job("simcse", *overrides, steps=2, batch_size=8)
    with pytest.raises(UserError, match=f"cpu: out of memory with {advice}"):
        run_pretraining(job, tmp_path / "run", Machine(device="cpu", workers=0))


@pytest.mark.usefixtures("cramped")
def test_groups_that_fit_one_at_a_time_are_gone_on_with(tmp_path: Path) -> None:
    job = pretrain_job(
        "simcse", "objectives.0.in_batch=2", "blocks.length=12", steps=2, batch_size=8
    )
    events = run_pretraining(job, tmp_path / "run", Machine(device="cpu", workers=0))
    assert any("micro-batches of 8 sequences" in event.text for event in of_kind(Said, events))
    assert len(of_kind(Step, events)) == 2


def test_memory_that_runs_out_elsewhere_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        np.empty(MUCH, dtype=np.uint8)

    machine = Machine(device="cpu", workers=0, micro_batch=1)
    places = {
        "the model": "clozelab.pretraining.trainer.build",
        "the moments of the optimiser": "clozelab.training.loop.clip",
        "held-out blocks": "clozelab.pretraining.held_out.follow_measure",
        "micro-batches of 1 sequences": "clozelab.training.packing.BatchShape.batches",
    }
    for number, (what, name) in enumerate(places.items()):
        with monkeypatch.context() as patch:
            patch.setattr(name, full)
            with pytest.raises(UserError, match=f"cpu: out of memory (for|with) {what}.*--size"):
                run_pretraining(pretrain_job("bert", steps=1), tmp_path / str(number), machine)


@pytest.mark.usefixtures("cramped")
def test_memory_may_run_out_while_steps_are_timed(tmp_path: Path) -> None:
    job = replace(pretrain_job("roberta", steps=50, batch_size=8), budget=parse("0.5s"))
    machine = Machine(device="cpu", workers=0, micro_batch=4)
    events = run_pretraining(job, tmp_path / "a", machine)
    last = len(of_kind(Step, events))
    assert sum("out of memory" in event.text for event in of_kind(Said, events)) == 1
    recorded = Run(tmp_path / "a").recipe()
    job = replace(job, recipe=recorded, budget=None)
    run_pretraining(job, tmp_path / "b", replace(machine, micro_batch=2))
    assert_same(checkpoint(tmp_path / "a", last), checkpoint(tmp_path / "b", last))


def test_a_held_out_loss_that_is_nan_ends_a_run_before_it_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, evaluations = PretrainingModel.forward, [0]

    def broken(self: PretrainingModel, batch: Any) -> Any:
        sums, memory = forward(self, batch)
        evaluations[0] += not self.training
        if not self.training and evaluations[0] > 1:
            sums["masked_lm"]["loss"] = sums["masked_lm"]["loss"] * math.nan
        return sums, memory

    monkeypatch.setattr(PretrainingModel, "forward", broken)
    saving = SaveOptions(save_every=2, evaluate_every=2, evaluate_blocks=1)
    with pytest.raises(UserError, match=r"step 4: the held-out loss of .* nan.*step-00000002$"):
        run_pretraining(pretrain_job("bert", steps=9), tmp_path / "run", saving=saving)
    assert load(str(tmp_path / "run")).step == 2


def test_a_run_that_diverges_names_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, calls = PretrainingModel.forward, [0]

    def broken(self: PretrainingModel, batch: Any) -> Any:
        sums, memory = forward(self, batch)
        calls[0] += self.training
        if calls[0] == 5:
            sums["masked_lm"]["loss"] = sums["masked_lm"]["loss"] * math.nan
        return sums, memory

    monkeypatch.setattr(PretrainingModel, "forward", broken)
    saving = SaveOptions(save_every=2, evaluate_every=0)
    # The loss of step 5 is that of the weights after step 4.
    with pytest.raises(UserError, match=r"step 5: the loss of masked_lm is nan.*step-00000002$"):
        run_pretraining(pretrain_job("bert", steps=9), tmp_path / "run", saving=saving)
    (entry,) = Run(tmp_path / "run").events("diverged")  # for whoever reads its records
    assert entry["step"] == 5 and entry["what"] == "step 5: the loss of masked_lm is nan"
    calls[0] = 4
    with pytest.raises(UserError, match=r"step 1: the loss of masked_lm.*; no good one is saved$"):
        run_pretraining(pretrain_job("bert", steps=9), tmp_path / "other", saving=saving)


# Going on from another model


def test_a_run_goes_on_from_another_with_its_heads_and_size(tmp_path: Path) -> None:
    data = [store("wordpiece", skip=30)]
    job = starting.continued(shrunk("bert"), teacher(), data=data, seed=1, budget="2steps")
    before = load(teacher())
    assert job.start is not None and job.recipe.encoder == before.recipe.encoder
    events = run_pretraining(
        job, tmp_path / "run", saving=SaveOptions(save_every=1, keep=0, evaluate_every=0)
    )
    assert not [event for event in of_kind(Said, events) if "fresh" in event.text]
    after = checkpoint(tmp_path / "run", 1).weights()
    parameters = {name: value.detach() for name, value in before.module.named_parameters()}
    assert parameters.keys() == after.keys()
    # A step moves a number by no more than about the rate.
    assert max(float((parameters[name] - after[name]).abs().max()) for name in parameters) < 2e-3


def test_heads_the_other_model_lacks_begin_fresh_and_are_named(tmp_path: Path) -> None:
    job = starting.continued(
        shrunk("spanbert"), teacher(), data=[store("wordpiece")], seed=1, budget="1steps"
    )
    notices = [event.text for event in of_kind(Said, run_pretraining(job, tmp_path / "run"))]
    assert any("fresh" in text and "span_boundary" in text for text in notices)


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    other = [store("byte_bpe")]
    with pytest.raises(UserError, match=r"tokenizer is not that of .*--tokenizer-from"):
        starting.continued(shrunk("bert"), teacher(), data=other, seed=0)
    with pytest.raises(UserError, match=r"teacher's vocabulary is not that of"):
        starting.taught(shrunk("distilbert"), teacher(), data=other, seed=0)
    with pytest.raises(UserError, match="needs a teacher"):
        starting.fresh(shrunk("distilbert"), data=[store("wordpiece")], seed=0)
    with pytest.raises(UserError, match="tokenizer is not that of"):
        starting.fresh(shrunk("bert"), data=[store("wordpiece"), *other], seed=0)


def test_a_student_that_cannot_start_from_its_teacher_is_told_every_setting() -> None:
    changes = ("encoder.position_offset=2", "encoder.heads=1")
    data = [store("wordpiece")]
    with pytest.raises(UserError) as raised:
        starting.taught(shrunk("distilbert", *changes), teacher(), data=data, seed=0, sized=True)
    heads = load(teacher()).recipe.encoder.heads
    fix = f"give --set encoder.heads={heads} --set encoder.position_offset=0, or set start"
    assert fix in str(raised.value)


def test_a_student_of_another_width_learns_through_a_projection_and_loads(tmp_path: Path) -> None:
    size = ("encoder.hidden_size=16", "encoder.embedding_size=16", "encoder.intermediate_size=32")
    recipe = shrunk("distilbert", *size, "objectives.1.start=random")
    data = [store("wordpiece")]
    job = starting.taught(recipe, teacher(), data=data, seed=0, sized=True, budget="2steps")
    run_pretraining(job, tmp_path / "run")
    student = load(str(tmp_path / "run"))
    assert student.recipe.encoder.hidden_size == 16 and "masked_lm" in student.module.heads


def test_a_run_goes_on_from_a_directory_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    exchange = pytest.importorskip("clozelab.models.exchange")
    exchange.export(teacher(), tmp_path / "hf")
    job = starting.continued(
        shrunk("bert"), str(tmp_path / "hf"), data=[store("wordpiece")], seed=1, budget="2steps"
    )
    assert job.start is not None
    for name, value in load(teacher()).module.named_parameters():
        assert torch.equal(job.start[name], value), name
    events = run_pretraining(job, tmp_path / "run")
    assert len(of_kind(Step, events)) == 2


def test_weights_cannot_be_shared_out_in_one_process(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="torchrun"):
        run_pretraining(pretrain_job("bert"), tmp_path / "run", Machine(device="cpu", shard=True))


# The command

QUIETLY = ["--save-every", "0", "--evaluate-every", "0"]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The words of a run that takes some seconds."""
    file = tmp_path_factory.mktemp("recipe") / "bert.toml"
    recipe = shrunk("bert", "encoder.dropout=0.1", steps=120)
    file.write_text(to_toml(recipe), encoding="utf-8")
    full_command = ["pretrain", str(file), "--data", store("wordpiece"), "--device", "cpu"]
    return [*full_command, *QUIETLY]


@pytest.fixture(scope="module")
def uninterrupted(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main([*command, "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_run_that_is_told_to_stop_saves_and_goes_on_to_the_same_end(
    number: signal.Signals,
    command: list[str],
    uninterrupted: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "run"
    full_command = [sys.executable, "-m", "clozelab", *command, "--out", str(out)]
    process = start_process(full_command, env=ENVIRONMENT)
    metrics = out / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size > 2000):
        time.sleep(0.01)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + number and "Traceback" not in stderr, stderr
    assert f"which is saved; resume with clozelab pretrain --resume {out}" in " ".join(
        stderr.split()
    )
    stopped = load(str(out)).step
    assert 0 < stopped < 120
    assert len(Run.open(out).events("step")) == stopped
    assert main(["pretrain", "--resume", str(out), *QUIETLY]) == 0
    assert "120 steps" in capsys.readouterr().err
    assert_same(checkpoint(out, 120), checkpoint(uninterrupted, 120))


def test_a_student_is_as_wide_as_its_teacher_and_its_blocks_are_as_short() -> None:
    job = starting.taught(
        recipes.read("distilbert"), teacher(), data=[store("wordpiece")], seed=0, budget="1steps"
    )
    before = load(teacher()).recipe
    assert job.recipe.encoder.hidden_size == before.encoder.hidden_size
    assert job.recipe.encoder.layers == max(1, before.encoder.layers // 2)
    assert job.recipe.blocks.length == before.blocks.length < 512
    assert job.recipe.schedule.batch_size == before.schedule.batch_size


def test_a_student_keeps_what_was_set_of_its_encoder() -> None:
    layers = load(teacher()).recipe.encoder.layers
    recipe = shrunk("distilbert", f"encoder.layers={layers}", "encoder.intermediate_size=48")
    settings = {"data": [store("wordpiece")], "seed": 0}
    job = starting.taught(recipe, teacher(), own=["layers"], **settings)
    assert job.recipe.encoder.layers == layers
    assert starting.taught(recipe, teacher(), **settings).recipe.encoder.layers < layers
    with pytest.raises(UserError, match="intermediate_size is 48"):
        starting.taught(recipe, teacher(), own=["intermediate_size"], **settings)


@pytest.mark.parametrize(
    ("name", "shaped"), [("roberta", False), ("roberta", True), ("modernbert", False)]
)
def test_going_on_from_a_shrunk_model_keeps_its_short_blocks_unless_told(
    name: str, shaped: bool
) -> None:
    job = starting.continued(
        recipes.read(name),
        teacher(),
        data=[store("wordpiece")],
        seed=0,
        budget="1steps",
        shaped=shaped,
    )
    before = load(teacher()).recipe
    assert (job.recipe.blocks.length == before.blocks.length) is not shaped
    assert (job.recipe.schedule.batch_size == before.schedule.batch_size) is not shaped

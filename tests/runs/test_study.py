"""Studies from their plan to their result: equal budgets, cells in order, interrupted, failing."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.finetune_tasks import equal, weights
from support.pretrain_runs import MACHINE, of_kind, store
from support.small_studies import (
    BROKEN,
    DYNAMIC,
    SAVE_OPTIONS,
    SMALL,
    STATIC,
    STUDENT,
    plan_of,
    read_study,
    reviews,
    run_study,
)
from torch._dynamo.utils import counters

import clozelab
from clozelab.config.renamed import OldNameWarning
from clozelab.errors import UserError
from clozelab.pretraining import starting
from clozelab.pretraining.pretrain import pretrain
from clozelab.pretraining.trainer import PretrainTrainer
from clozelab.reporting.study import write_page
from clozelab.runs.directory import Run
from clozelab.runs.events import Began, drained
from clozelab.runs.machine import Machine
from clozelab.studies import cells as cells_module
from clozelab.studies import plan as plans
from clozelab.studies import records, timing
from clozelab.studies.cells import CellEvent
from clozelab.studies.plan import make_plan
from clozelab.studies.request import StudyRequest, make_request
from clozelab.studies.run import CellFinished, CellStarted, follow
from clozelab.training.loop import Step, train


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def tokens_of(plan: plans.StudyPlan, variant: str) -> float:
    return plan.steps(variant) * plan.paces[variant].tokens_a_step


def cells(out: Path) -> list[dict[str, Any]]:
    result = Run(out).result()
    assert result is not None
    rows: list[dict[str, Any]] = result["cells"]
    return rows


def begun(events: list[Any]) -> list[str]:
    return [event.cell.name for event in of_kind(CellStarted, events)]


def stages(events: list[Any]) -> list[tuple[str, str]]:
    return [
        (event.cell, event.stage)
        for event in of_kind(CellEvent, events)
        if isinstance(event.event, Began)
    ]


def test_a_study_of_two_variants_goes_from_its_plan_to_its_page(tmp_path: Path) -> None:
    study = read_study(tmp_path, tasks=[reviews()], seeds=2)
    out = tmp_path / "out"
    events = run_study(study, out)
    # Seed by seed, each pretrained and then tuned.
    names = [f"{name}/seed-{seed}" for seed in (0, 1) for name in ("static", "dynamic")]
    assert begun(events) == names
    assert stages(events) == [
        (name, stage) for name in names for stage in ("pretraining", "reviews")
    ]
    assert [event.seed_is_done for event in of_kind(CellFinished, events)] == [
        False,
        True,
        False,
        True,
    ]
    rows = cells(out)
    assert [(row["variant"], row["seed"]) for row in rows] == [
        (name, seed) for seed in (0, 1) for name in ("static", "dynamic")
    ]
    for row in rows:
        assert row["failed"] is None and row["steps"] == 3
        assert set(row["scores"]) == {"reviews.accuracy", "held_out.masked_lm"}
        assert 0 <= row["scores"]["reviews.accuracy"] <= 100
        assert row["flops"] > 0 and row["tokens"] > 0
        assert row["constant"] == {"reviews.accuracy": 25.0}  # of four classes
    first = out / "cells" / "static" / "seed-0"
    recipe = Run(first).recipe()
    assert rows[0]["parameters"] == sum(recipe.parameters().values())
    own = Run(first).result() or {}
    loss = rows[0]["scores"]["held_out.masked_lm"]  # over more blocks than in training
    assert loss == pytest.approx(own["held_out"]["masked_lm"]["loss"], abs=0.05)
    # Weights that were tuned are dropped, those pretrained stay.
    assert list(first.glob("checkpoints/step-*")) and not list(first.rglob("tasks/**/step-*"))
    write_page(out)
    page = (out / "page.html").read_text(encoding="utf-8")
    assert "Do fresh masks help?" in page and "a constant answer" in page
    # Nothing is done twice.
    assert begun(run_study(study, out)) == []


def test_the_variants_of_a_seed_begin_alike_and_see_the_same_text(tmp_path: Path) -> None:
    out = tmp_path / "out"
    events = run_study(read_study(tmp_path, seeds=2), out)
    seen = [(event.cell, event.event) for event in of_kind(CellEvent, events)]
    steps = {(cell, event.number): event for cell, event in seen if isinstance(event, Step)}
    for number in (1, 2, 3):
        a, b = steps["static/seed-0", number], steps["dynamic/seed-0", number]
        assert a.tokens == b.tokens and a.sums == b.sums  # in the first epoch copies do not tell
    assert steps["static/seed-1", 1].sums != steps["static/seed-0", 1].sums


def test_what_was_interrupted_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    study = read_study(tmp_path, tasks=[reviews()])
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    count = len(run_study(study, whole))
    assert count > 12
    for stop in (4, 9, count - 8):  # in the first cell, in its task, in the second cell
        run_study(study, cut, stop_after=stop)
    last = run_study(study, cut)
    assert "static/seed-0" not in begun(last)
    mine, other = cells(whole), cells(cut)
    assert [row["scores"] for row in mine] == [row["scores"] for row in other]
    for name in ("static", "dynamic"):
        place = Path("cells") / name / "seed-0"
        assert equal(weights(whole / place), weights(cut / place))


def test_a_cell_that_lost_its_result_behind_its_last_step_has_its_figures_again(
    tmp_path: Path,
) -> None:
    study, out = read_study(tmp_path), tmp_path / "out"
    run_study(study, out)
    before = cells(out)
    for name in (
        "result.json",
        "cells/static/seed-0/result.json",
        "cells/static/seed-0/measured.json",
    ):
        (out / name).unlink()
    run_study(study, out)
    assert cells(out) == before
    assert all("held_out.masked_lm" in row["scores"] for row in before)


def test_a_signal_while_a_cell_takes_its_last_step_stops_the_study(tmp_path: Path) -> None:
    study, out = read_study(tmp_path), tmp_path / "out"

    def told_to_stop() -> None:
        for event in follow(plan_of(study, out), out, machine=MACHINE):
            step = event.event if isinstance(event, CellEvent) else None
            if isinstance(step, Step) and step.number == 3:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        told_to_stop()
    assert (out / "cells" / "static" / "seed-0" / "result.json").exists()
    assert not (out / "cells" / "dynamic").exists()


@pytest.mark.slow
def test_weights_that_a_kill_left_while_they_were_removed_go(tmp_path: Path) -> None:
    study, out = read_study(tmp_path, STATIC, tasks=[reviews()]), tmp_path / "out"
    run_study(study, out)
    cell = out / "cells" / "static" / "seed-0"
    left = cell / "tasks" / "reviews" / "seed-0" / "checkpoints" / "step-00000002"
    left.mkdir(parents=True)
    (cell / "measured.json").unlink()
    run_study(study, out)
    assert (cell / "measured.json").exists() and not left.parent.exists()


def test_a_variant_that_fails_does_not_end_the_rest(tmp_path: Path) -> None:
    study = read_study(tmp_path, BROKEN, STATIC, DYNAMIC)
    out = tmp_path / "out"
    events = run_study(study, out)
    assert [event.cell.variant for event in of_kind(CellFinished, events)] == [
        "broken",
        "static",
        "dynamic",
    ]
    broken, *others = cells(out)
    assert "entit" in broken["failed"] and broken["scores"] == {}
    assert all(row["failed"] is None and row["scores"] for row in others)
    failed = out / "cells" / "broken" / "seed-0" / "failed.json"
    assert json.loads(failed.read_text())["error"] == broken["failed"]
    write_page(out)
    # The same command tries again what failed, and only that.
    assert begun(run_study(study, out)) == ["broken/seed-0"]


@pytest.mark.parametrize("where", ["fresh", "measured"])
def test_a_cell_that_failed_is_done_once_what_was_wrong_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def full(*values: object, **more: object) -> None:
        raise OSError("the disk is full")

    study, out = read_study(tmp_path, STATIC), tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(starting if where == "fresh" else cells_module, where, full)
        run_study(study, out)
    assert [cell["failed"] for cell in cells(out)] == ["the disk is full"]
    events = run_study(study, out)
    assert stages(events) == ([("static/seed-0", "pretraining")] if where == "fresh" else [])
    assert [cell["failed"] for cell in cells(out)] == [None]
    assert set(cells(out)[0]["scores"]) == {"held_out.masked_lm"}


def test_a_loss_that_is_no_number_fails_its_cell_alone(tmp_path: Path) -> None:
    wild = {
        "name": "wild",
        "says": "too fast",
        "set": ["optimiser.learning_rate=1e30", "optimiser.clip=0"],
    }
    out = tmp_path / "out"
    run_study(read_study(tmp_path, wild, STATIC), out, budget="6steps")
    first, second = cells(out)
    assert first["failed"] and second["failed"] is None


def test_a_student_comes_after_its_teacher_and_learns_from_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    events = run_study(read_study(tmp_path, STUDENT, DYNAMIC, STATIC), out)
    assert begun(events) == ["dynamic/seed-0", "static/seed-0", "student/seed-0"]
    assert all(cell["failed"] is None for cell in cells(out))
    facts = Run(out / "cells/student/seed-0").machine()
    assert facts["teacher"] == str((out / "cells/static/seed-0").resolve())


def test_a_student_without_its_teacher_fails_with_a_sentence(tmp_path: Path) -> None:
    wild = {**STATIC, "set": ["optimiser.learning_rate=1e30", "optimiser.clip=0"]}
    out = tmp_path / "out"
    run_study(read_study(tmp_path, wild, STUDENT), out, budget="6steps")
    assert "needs the run of static" in cells(out)[1]["failed"]


def test_variants_that_are_only_tuned_otherwise_are_pretrained_once(tmp_path: Path) -> None:
    frozen = {"name": "frozen", "says": "features", "finetune": ["features=last"]}
    out = tmp_path / "out"
    events = run_study(read_study(tmp_path, STATIC, frozen, tasks=[reviews()]), out)
    assert stages(events) == [
        *(("static/seed-0", "pretraining"), ("static/seed-0", "reviews")),
        ("frozen/seed-0", "reviews"),
    ]
    a, b = cells(out)
    assert b["pretrained_by"] == "static" and b["tokens"] == a["tokens"] and not b["failed"]
    assert b["scores"]["held_out.masked_lm"] == a["scores"]["held_out.masked_lm"]
    # ReadOptions for alone, it still knows whose weights it has.
    shutil.rmtree(out / "cells/frozen/seed-0/tasks")
    alone = read_study(tmp_path, STATIC, frozen, tasks=[reviews()])
    alone = alone.narrowed(variants=["frozen"])
    assert stages(run_study(alone, out)) == [("frozen/seed-0", "reviews")]
    assert [cell["failed"] for cell in cells(out)] == [None]


def test_a_cell_whose_shared_weights_stayed_on_another_machine_is_pretrained(
    tmp_path: Path,
) -> None:
    frozen = {"name": "frozen", "says": "features", "finetune": ["features=last"]}
    study, out = read_study(tmp_path, STATIC, frozen, tasks=[reviews()]), tmp_path / "out"
    run_study(study, out)
    shutil.rmtree(out / "cells/static/seed-0/checkpoints")
    shutil.rmtree(out / "cells/frozen")
    begun_events = run_study(study, out, stop_after=3)
    assert stages(begun_events) == [("frozen/seed-0", "pretraining")]
    assert stages(run_study(study, out))[-1] == ("frozen/seed-0", "reviews")
    a, b = cells(out)
    assert b["pretrained_by"] == "frozen" and not b["failed"]
    assert b["scores"]["held_out.masked_lm"] == a["scores"]["held_out.masked_lm"]


@pytest.mark.slow
def test_a_log_that_is_taken_over_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = {"name": "frozen", "says": "features", "finetune": ["features=last"]}
    study, out, sync = read_study(tmp_path, STATIC, frozen), tmp_path / "out", os.fsync
    own, twin = (out / "cells" / name / "seed-0" for name in ("frozen", "static"))

    def full(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").resolve().match("frozen/seed-0/.metrics.jsonl.*.part"):
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        run_study(study, out)
    failed = cells(out)[1]["failed"]
    assert failed is not None and str(own / "metrics.jsonl") in failed and "No space" in failed
    assert not (own / "metrics.jsonl").exists() and not (own / "result.json").exists()
    run_study(study, out)
    assert [cell["failed"] for cell in cells(out)] == [None, None]
    for name in ("recipe.toml", "machine.toml", "metrics.jsonl", "result.json"):
        assert (own / name).read_bytes() == (twin / name).read_bytes()
    assert not [*own.glob(".*.part")]


def test_one_task_may_be_tuned_otherwise_than_the_others(tmp_path: Path) -> None:
    once = {"name": "once", "says": "once", "finetune": ["learning_rate=1e-4"]}
    settings = ["reviews.epochs=1", "epochs=3", "mnli.epochs=9", "learning_rate=2e-4"]
    study = read_study(tmp_path, STATIC, once, tasks=["sst2", reviews()], finetune=settings)
    request = make_request(study, [store("wordpiece")])
    assert request.settings("static", "sst2") == ("epochs=3", "learning_rate=2e-4")
    assert request.settings("static", "reviews") == ("epochs=1", "learning_rate=2e-4")
    assert request.settings("once", "reviews") == ("epochs=1", "learning_rate=1e-4")
    for settings in (["review.epochs=1"], ["epochs=1", "review.epochs=1"]):
        with pytest.raises(UserError, match=r"review is not a task; did you mean reviews\?"):
            study.narrowed(tuning=settings)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine on which a layer of one sequence takes a millisecond; what was timed on it."""
    heard: list[str] = []

    def reckoned(request: StudyRequest, variant: str, machine: Machine, *, budget: float) -> float:
        heard.append(variant)
        recipe = request.recipe(variant)
        return recipe.encoder.layers * recipe.schedule.batch_size / 1000

    monkeypatch.setattr(timing, "seconds_a_step", reckoned)
    return heard


LONG = {"name": "long", "says": "larger steps", "set": ["schedule.batch_size=8"]}


def test_a_budget_in_time_gives_every_cell_as_many_tokens(tmp_path: Path, timed: list[str]) -> None:
    deep = {"name": "deep", "says": "four times the work", "set": ["encoder.layers=8"]}
    plan = plan_of(read_study(tmp_path, STATIC, DYNAMIC, deep, LONG, seeds=2), budget="10m")
    assert timed == ["static", "deep", "long"]  # masks do not change the speed
    assert plan.unit == "tokens"
    tokens = [tokens_of(plan, name) for name in ("static", "dynamic", "deep", "long")]
    assert max(tokens) - min(tokens) <= plan.paces["long"].tokens_a_step
    assert plan.steps("static") == pytest.approx(2 * plan.steps("long"), rel=0.02)
    spent = sum(plan.seconds(cell.variant) or 0.0 for cell in plan.request.cells())
    assert 0.99 * 600 < spent <= 600
    assert plan.as_json()["tokens_a_cell"] == plan.amount


def test_large_steps_are_timed_by_a_few_of_their_blocks_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def counted(*arguments: Any) -> Iterator[Step]:
        for step in train(*arguments):
            taken.append(step.tokens)
            yield replace(step, seconds=step.tokens / 1000)

    monkeypatch.setattr("clozelab.pretraining.trainer.train", counted)
    huge = {"name": "huge", "says": "steps of minutes", "set": ["schedule.batch_size=4096"]}
    request = make_request(read_study(tmp_path, STATIC, huge), [store("wordpiece")])
    for name in ("huge", "static"):
        whole = timing.pace(request, name).tokens_a_step
        seconds = timing.seconds_a_step(request, name, Machine(device="cpu"), budget=1.0)
        assert seconds == pytest.approx(whole / 1000)
        assert max(taken) <= 4096 and (whole > 10_000) == (name == "huge")


def test_a_budget_in_time_leaves_room_for_fine_tuning(tmp_path: Path, timed: list[str]) -> None:
    alone = plan_of(read_study(tmp_path), budget="10m")
    tuned = plan_of(read_study(tmp_path, tasks=[reviews()], finetune=["epochs=100"]), budget="10m")
    assert tuned.amount < alone.amount
    each = sum(tuned.tuning_seconds.values())
    assert tuned.amount == pytest.approx(alone.amount * (600 - each) / 600)
    seconds = sum(tuned.seconds(cell.variant) or 0.0 for cell in tuned.request.cells())
    assert seconds == pytest.approx(600, rel=0.02)
    with pytest.raises(UserError, match="fine-tuning alone takes"):
        plan_of(read_study(tmp_path, tasks=[reviews()], finetune=["epochs=1000000"]), budget="10m")


def test_a_pretraining_that_is_shared_is_paid_once(tmp_path: Path, timed: list[str]) -> None:
    frozen = {"name": "frozen", "says": "features", "finetune": ["features=last"]}
    plan = plan_of(read_study(tmp_path, STATIC, frozen), budget="10m")
    assert plan.seconds("static") == pytest.approx(600, rel=0.01) and plan.seconds("frozen") == 0


def test_cells_may_have_equal_steps_or_time(tmp_path: Path, timed: list[str]) -> None:
    steps = plan_of(read_study(tmp_path, STATIC, LONG, equal="steps"), budget="10m")
    assert steps.unit == "steps" and steps.steps("static") == steps.steps("long")
    time = plan_of(read_study(tmp_path, STATIC, LONG, equal="time"), budget="10m")
    assert time.unit == "seconds"
    assert time.seconds("long") == pytest.approx(time.seconds("static") or 0, rel=0.01)
    assert time.steps("static") == pytest.approx(2 * time.steps("long"), rel=0.01)
    # One that is alone keeps its seconds as it goes; side by side, steps are counted.
    assert time.budget("static") == time.budget("long") == f"{time.amount:.3f}s"
    beside = replace(time, at_once=2)
    assert beside.budget("long") == f"{time.steps('long')}steps"
    assert steps.budget("long") == f"{steps.steps('long')}steps"
    with pytest.raises(UserError, match="set --budget"):
        plan_of(read_study(tmp_path, equal="time"), budget=None)


def test_without_a_budget_the_first_recipe_tells_how_long(tmp_path: Path) -> None:
    set_ = [*SMALL, "schedule.steps=50"]
    plan = plan_of(read_study(tmp_path, STATIC, LONG, set=set_), budget=None)
    assert plan.steps("static") == 50 and plan.steps("long") in (24, 25, 26)


def test_steps_are_timed_as_they_are(tmp_path: Path) -> None:
    plan = plan_of(read_study(tmp_path, STATIC, STUDENT), budget="5m")  # under a teacher, too
    assert all((pace.seconds_a_step or 0) > 0 for pace in plan.paces.values())


def test_a_variant_that_cannot_be_set_up_takes_no_time(tmp_path: Path, timed: list[str]) -> None:
    plan = plan_of(read_study(tmp_path, BROKEN, STATIC), budget="10m")
    assert "entit" in plan.broken["broken"] and plan.seconds("broken") is None
    assert plan.seconds("static") == pytest.approx(600, rel=0.01)


def test_a_share_is_of_what_the_others_have(tmp_path: Path) -> None:
    twice = {"name": "twice", "says": "trained for longer", "share": 2.0}
    plan = plan_of(read_study(tmp_path, STATIC, twice), budget="20ktok")
    assert tokens_of(plan, "twice") == pytest.approx(2 * tokens_of(plan, "static"), rel=0.02)
    steps = plan_of(read_study(tmp_path, STATIC, twice), budget="10steps")
    assert (steps.steps("static"), steps.steps("twice")) == (10, 20)


def test_the_same_folder_keeps_its_plan_for_more_seeds(tmp_path: Path, timed: list[str]) -> None:
    study, out = read_study(tmp_path), tmp_path / "out"
    plan = plan_of(study, budget="10m")
    plan.write(out)
    more = plan_of(study.narrowed(seeds=4), out, budget="10m")
    assert more.amount == plan.amount and len(more.request.cells()) == 8
    # The power is that which was stated first, until there are more seeds.
    (claim, stated), altered = *plan.powers.items(), tmp_path / "altered"
    replace(plan, powers={claim: {**stated, "power": 0.123}}).write(altered)
    assert plan_of(study, altered, budget="10m").powers[claim]["power"] == 0.123
    assert more.powers[claim]["seeds"] == 4 != stated["seeds"]
    first, before = read_study(tmp_path, STATIC, LONG, equal="time"), len(timed)
    plan_of(first, budget="10m").write(tmp_path / "time")
    plan_of(first, tmp_path / "time", budget="10m")
    assert len(timed) == before + 2  # what was timed stays, so that later cells are like the first
    with pytest.raises(UserError, match=r"was started differently \(--budget"):
        plan_of(study, out, budget="20m")
    with pytest.raises(UserError, match=r"was started differently \(.*recipe"):
        plan_of(study.narrowed(overrides=["masking.mask_rate=0.3"]), out, budget="10m")


def test_masks_that_differ_are_measured_by_those_of_the_base(tmp_path: Path) -> None:
    more_masks = {"name": "many", "says": "hides more", "set": ["masking.mask_rate=0.4"]}
    out = tmp_path / "out"
    study = read_study(tmp_path, STATIC, more_masks, set=[*SMALL, "schedule.sequences=4"])
    with warnings.catch_warnings():  # of the old name, which the command warns of once
        warnings.simplefilter("error", OldNameWarning)
        run_study(study, out)
    place = out / "cells" / "many" / "seed-0"
    record = json.loads((place / "measured.json").read_text())
    own = Run(place).result()
    assert own is not None and record["base_masks"]
    assert record["scores"]["held_out.masked_lm"] != own["held_out"]["masked_lm"]["loss"]
    # By the same measure, what the base's own run said of itself.
    plain = json.loads((out / "cells/static/seed-0/measured.json").read_text())
    own = Run(out / "cells/static/seed-0").result() or {}
    same = own["held_out"]["masked_lm"]["loss"]
    assert plain["base_masks"]
    assert plain["scores"]["held_out.masked_lm"] == pytest.approx(same, abs=0.05)


def test_pair_heads_are_asked_both_questions(tmp_path: Path) -> None:
    order = {
        "name": "order",
        "says": "sentence order",
        "set": ["blocks.use=sentence_order", "objectives.1.use=sentence_order"],
    }
    none = {"name": "none", "says": "no pairs", "recipe": "roberta", "set": ["encoder.types=0"]}
    measures = ["pair.next_sentence", "pair.sentence_order", "held_out.masked_lm"]
    out = tmp_path / "out"
    run_study(read_study(tmp_path, STATIC, order, none, measures=measures), out)
    next_, order_, none_ = cells(out)
    for accuracy in (next_, order_):
        assert {"pair.next_sentence", "pair.sentence_order"} <= set(accuracy["scores"]), accuracy
        assert 0 <= accuracy["scores"]["pair.sentence_order"] <= 100
    assert set(none_["scores"]) == {"held_out.masked_lm"}, none_


@pytest.mark.slow
def test_several_cells_at_once_come_to_the_same(tmp_path: Path) -> None:
    study = read_study(tmp_path, STUDENT, STATIC)
    alone, together = tmp_path / "one", tmp_path / "two"
    run_study(study, alone)
    events = run_study(study, together, at_once=2)
    assert begun(events) == ["static/seed-0", "student/seed-0"]
    assert [cell["scores"] for cell in cells(alone)] == [cell["scores"] for cell in cells(together)]


def test_a_gpu_has_several_narrow_cells_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "cores", lambda: 16)
    request = make_request(read_study(tmp_path, STATIC), [store("wordpiece")], budget="3steps")
    assert drained(make_plan(request, Machine())).at_once == 1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert drained(make_plan(request, Machine())).at_once == 4
    assert drained(make_plan(request, Machine(device="cpu"))).at_once == 1
    assert drained(make_plan(request, Machine(), at_once=2)).at_once == 2
    monkeypatch.setattr(plans, "_FULL_WIDTH", 1)
    assert drained(make_plan(request, Machine())).at_once == 1


def test_operations_are_of_all_phases_and_of_a_teacher(tmp_path: Path) -> None:
    def flops(name: str, *variants: dict[str, Any]) -> float:
        request = make_request(read_study(tmp_path / name, *variants), [store("wordpiece")])
        return timing.pace(request, variants[-1]["name"]).flops_a_token

    taught = [
        flops(f"taught {layers}", {**STATIC, "set": [f"encoder.layers={layers}"]}, STUDENT)
        for layers in (1, 2, 3)
    ]
    assert taught[2] - taught[1] == pytest.approx(taught[1] - taught[0]) and taught[1] > taught[0]
    phased = [
        flops(
            f"{share}", {**STATIC, "set": [f"schedule.phases=[[16, {share}], [32, {1 - share}]]"]}
        )
        for share in (0.25, 0.75)
    ]
    assert phased[0] > phased[1]  # longer blocks, more to look at


def test_variants_may_have_a_corpus_of_their_own(tmp_path: Path) -> None:
    own = {"name": "own", "says": "other text", "data": "other"}
    study = read_study(tmp_path, STATIC, own)
    other = tmp_path / "other"
    shutil.copytree(store("wordpiece", documents=30), other)
    request = make_request(study, [store("wordpiece"), f"other={other}"])
    assert request.stores("static") == [store("wordpiece")]
    assert request.stores("own") == [str(other)]
    with pytest.raises(UserError, match="--data other=CORPUS"):
        plan_of(study)
    with pytest.raises(UserError, match="--data other=CORPUS"):
        make_request(study, [store("wordpiece"), "other="]).stores("own")


def test_the_corpus_of_a_variant_that_is_left_out_may_still_be_given(tmp_path: Path) -> None:
    own = {"name": "own", "says": "other text", "data": "other"}
    read_study(tmp_path, STATIC, own)

    def planned(*variants: str, name: str = "other") -> plans.StudyPlan:
        data = [store("wordpiece"), f"{name}={store('wordpiece', documents=30)}"]
        options: dict[str, Any] = {"budget": "2steps", "device": "cpu", "plan": True}
        study = tmp_path / "masks.toml"
        return clozelab.study(study, data=data, out=tmp_path / "out", variants=variants, **options)

    planned().write(tmp_path / "out")
    assert planned("static").request.stores("static") == [store("wordpiece")]
    with pytest.raises(UserError, match="no variant of masks reads a corpus called oter; did you"):
        planned("static", name="oter")


def test_python_runs_a_study_too(tmp_path: Path) -> None:
    read_study(tmp_path)
    study = clozelab.study(
        tmp_path / "masks.toml",
        data=store("wordpiece"),
        out=tmp_path / "out",
        budget="2steps",
        device="cpu",
        workers=0,
    )
    cells = study.result()["cells"]
    assert [cell["variant"] for cell in cells] == ["static", "dynamic"]
    assert all(cell["failed"] is None for cell in cells)
    assert study.page.is_file() and [*study.table()] == ["static", "dynamic"]


def test_a_cell_is_measured_without_tuning_and_twice_where_it_is_asked_for(tmp_path: Path) -> None:
    pairs = tmp_path / "agreement.jsonl"
    rows = [{"good": "The river was slow.", "bad": "The river were slow."}] * 2
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    measures = [f"pairs.{pairs}", "pairs.nowhere", "held_out.masked_lm", "run.finished"]
    again = {"name": "again", "says": "A/A", "again": "static"}
    out = tmp_path / "out"
    events = run_study(read_study(tmp_path, STATIC, again, measures=measures), out)
    assert begun(events) == ["static/seed-0", "again/seed-0"]
    first, second = (
        json.loads((out / f"cells/{name}/seed-0/measured.json").read_text(encoding="utf-8"))
        for name in ("static", "again")
    )
    assert first["measures"] == [measures[0], measures[2]]  # the others are not there, or read off
    assert first["scores"][measures[0]] in (0.0, 50.0, 100.0) and first["sizes"][measures[0]] == 2
    seeds = [Run(out / f"cells/{name}/seed-0").machine()["seed"] for name in ("static", "again")]
    assert seeds == [0, 1000] and first["scores"] != second["scores"]
    record = records.read(out)
    assert record.scores("static", "run.finished") == {0: 100.0}
    assert [len(scores) for scores in record.items("static", measures[0], [0]).values()] == [2]
    assert record.plateau("static") is not None


def test_what_timed_a_step_is_gone_before_the_device_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights and moments would stay on the device while the cells run."""
    alive: list[weakref.ref[PretrainTrainer]] = []
    cleared: list[object] = []

    def trainer(*arguments: Any) -> PretrainTrainer:
        made = PretrainTrainer(*arguments)
        alive.append(weakref.ref(made))
        return made

    monkeypatch.setattr(timing, "PretrainTrainer", trainer)
    monkeypatch.setattr(timing, "clear", lambda: cleared.append(alive[-1]()))
    request = plan_of(read_study(tmp_path, STATIC)).request
    assert timing.seconds_a_step(request, "static", MACHINE, budget=0.1) > 0
    assert cleared == [None]


@pytest.mark.slow
def test_cells_of_one_shape_are_compiled_once_and_learn_as_fresh_ones_do(tmp_path: Path) -> None:
    plan = plan_of(read_study(tmp_path, STATIC, DYNAMIC, seeds=2))
    machine = replace(MACHINE, compile=True)
    counters["stats"].clear()
    list(follow(plan, tmp_path / "warm", machine=machine, saving=SAVE_OPTIONS))
    graphs = counters["stats"]["unique_graphs"]  # one for each shape of a batch
    for cell in plan.request.cells():
        data, budget = plan.request.stores(cell.variant), f"{plan.steps(cell.variant)}steps"
        recipe = plan.request.recipe(cell.variant)
        task = starting.fresh(recipe, data=data, seed=cell.seed, budget=budget)
        place = tmp_path / f"{cell.variant}-{cell.seed}"
        list(pretrain(task, place, machine=machine, saving=SAVE_OPTIONS))
        torch.compiler.reset()
        assert equal(weights(place), weights(cell.folder(tmp_path / "warm")))
    assert 2 * graphs <= counters["stats"]["unique_graphs"] - graphs


def test_two_words_hidden_together_are_measured_in_masked_and_permuted_models(
    tmp_path: Path,
) -> None:
    measures = ["joint.two", "joint.chain", "gain.chain"]
    out = tmp_path / "out"
    run_study(read_study(tmp_path, STATIC, measures=measures), out)
    cell = json.loads((out / "cells/static/seed-0/measured.json").read_text(encoding="utf-8"))
    joint_two, chain, gain = (cell["scores"][name] for name in measures)
    assert joint_two > 0 and gain == pytest.approx(joint_two - chain, abs=1e-9)
    record = records.read(out)
    (items,) = record.items("static", "joint.two", [0]).values()
    assert len(items) == cell["sizes"]["joint.two"] > 10
    assert items.mean() == pytest.approx(joint_two, rel=1e-2)  # at half precision

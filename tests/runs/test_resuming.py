"""A run that goes on: with the machine it had, alone in its folder, with all that a kill took."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.corpora import add, write
from support.pretrain_runs import (
    MACHINE,
    QUIET,
    STORES,
    assert_same,
    checkpoint,
    of_kind,
    pretrain_job,
    run_pretraining,
    shrunk,
    store,
    teacher,
)

from clozelab.cli import main
from clozelab.config.recipe import to_toml
from clozelab.errors import UserError
from clozelab.files import MARKER, kind_of
from clozelab.models import exchange
from clozelab.models.build import PretrainingModel
from clozelab.pretraining import starting
from clozelab.pretraining.pretrain import pretrain, resume
from clozelab.pretraining.trainer import PretrainTrainer
from clozelab.reporting.page import sections
from clozelab.reporting.records import gather
from clozelab.runs.directory import Run
from clozelab.runs.events import Began, Ended, Event, Said
from clozelab.runs.machine import Machine
from clozelab.runs.pacing import Pacer
from clozelab.runs.session import SaveOptions, Session
from clozelab.training import orthogonal
from clozelab.training.budget import parse
from clozelab.training.loop import Step
from clozelab.training.schedule import Schedule

torch.set_num_threads(1)

OFTEN = SaveOptions(save_every=2, keep=0, evaluate_every=0, evaluate_blocks=16)
SMALL = Machine(device="cpu", precision="bf16", micro_batch=2, workers=0, recompute=True)
DROPS = ("encoder.dropout=0.1", "encoder.attention_dropout=0.1")


def killed(events: Iterator[Event], after: int) -> None:
    """Draw the events of a run until it is killed behind a step."""
    for event in events:
        if isinstance(event, Step) and event.number == after:
            return


def again(place: Path, machine: Machine | None = None, saving: SaveOptions = OFTEN) -> list[Any]:
    """The events of a run that goes on."""
    job = starting.resumed(place)
    return list(resume(job, place, machine=machine or Machine(), saving=saving))


def tree(folder: Path) -> dict[str, bytes]:
    """Every file of a folder but those that keep it."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in files
        if not file.name.startswith(".lock")
    }


# The machine


def test_a_resume_has_the_precision_and_the_micro_batch_that_the_run_had(tmp_path: Path) -> None:
    straight, halved = tmp_path / "straight", tmp_path / "halved"
    run_pretraining(pretrain_job("roberta", *DROPS, steps=6), straight, SMALL, OFTEN)
    job = pretrain_job("roberta", *DROPS, steps=6)
    killed(pretrain(job, halved, machine=SMALL, saving=OFTEN), 3)
    events = again(halved)
    (began,) = of_kind(Began, events)
    assert (began.first, began.precision, began.micro_tokens) == (2, "bf16", 64)
    assert not of_kind(Said, events) and not Run(halved).events("changed")
    assert_same(checkpoint(straight, 6), checkpoint(halved, 6))
    mine, other = Run(halved).machine(), Run(straight).machine()
    assert mine == other and mine["recompute"] is True and mine["workers"] == 0


def test_a_flag_changes_the_machine_and_is_recorded_with_its_step(tmp_path: Path) -> None:
    place = tmp_path / "run"
    killed(pretrain(pretrain_job("roberta", steps=6), place, machine=SMALL, saving=OFTEN), 3)
    events = again(place, Machine(precision="fp32", micro_batch=4))
    (began,) = of_kind(Began, events)
    assert (began.precision, began.micro_tokens) == ("fp32", 128)
    settings = {
        "precision": {"from": "bf16", "to": "fp32"},
        "micro_tokens": {"from": 64, "to": 128},
    }
    assert Run(place).events("changed") == [{"kind": "changed", "step": 2, "settings": settings}]
    (notice,) = of_kind(Said, events)
    assert notice.text == "precision bf16 → fp32, micro_tokens 64 → 128, from step 3 on"
    machines = [*sections(gather([place])[0], [])][-1]
    rows = [[str(cell) for cell in row] for row in machines.parts[1].rows]  # type: ignore[union-attr]
    assert rows[0] == ["run", "3", "precision", '"bf16"', '"fp32"'] and len(rows) == 2
    facts = Run(place).machine()
    assert (facts["precision"], facts["micro_tokens"], facts["recompute"]) == ("fp32", 128, True)


def test_a_processor_of_another_kind_is_recorded_where_it_changes_muon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "run"
    monkeypatch.setattr(orthogonal, "product_dtype", lambda device: torch.bfloat16)
    killed(pretrain(pretrain_job("swift", steps=4), place, machine=MACHINE, saving=OFTEN), 3)
    assert Run(place).machine()["muon"] == "bfloat16"
    monkeypatch.setattr(orthogonal, "product_dtype", lambda device: torch.float32)
    again(place)
    settings = {"muon": {"from": "bfloat16", "to": "float32"}}
    assert Run(place).events("changed") == [{"kind": "changed", "step": 2, "settings": settings}]


def test_a_change_that_was_taken_back_before_a_step_is_none(tmp_path: Path) -> None:
    place = tmp_path / "run"
    killed(pretrain(pretrain_job("roberta", steps=6), place, machine=SMALL, saving=OFTEN), 3)
    job = starting.resumed(place)
    killed(resume(job, place, machine=Machine(precision="fp32"), saving=OFTEN), 3)
    assert Run(place).machine()["precision"] == "fp32"
    again(place, Machine(precision="bf16"))
    assert [entry["settings"] for entry in Run(place).events("changed")] == [{}]


def test_the_command_leaves_what_it_is_not_told_to_the_record(tmp_path: Path) -> None:
    place, file = tmp_path / "run", tmp_path / "bert.toml"
    file.write_text(to_toml(shrunk("bert", steps=4)), encoding="utf-8")
    options = ["--data", store("wordpiece"), "--device", "cpu", "--evaluate-every", "0"]
    machine = ["--precision", "bf16", "--micro-batch", "2", "--workers", "0", "--recompute"]
    assert main(["pretrain", str(file), *options, *machine, "--out", str(place)]) == 0
    before = Run(place).machine()
    assert before["recompute"] is True
    # Of a run that is done nothing changes; without its checkpoint it begins again.
    command = ["pretrain", "--resume", str(place)]
    assert main([*command, "--no-recompute"]) == 0 and Run(place).machine() == before
    for flags, recompute in (([], True), (["--no-recompute"], False)):
        shutil.rmtree(place / "checkpoints")
        assert main([*command, *flags]) == 0
        assert Run(place).machine() == {**before, "recompute": recompute}


def test_a_resume_keeps_as_many_checkpoints_as_the_run_did(tmp_path: Path) -> None:
    place = tmp_path / "run"
    killed(pretrain(pretrain_job("bert", steps=8), place, machine=MACHINE, saving=OFTEN), 7)
    assert main(["pretrain", "--resume", str(place), "--save-every", "2"]) == 0
    saved = sorted(path.name for path in (place / "checkpoints").iterdir())
    assert saved == [f"step-{step:08d}" for step in (2, 4, 6, 8)]
    shutil.rmtree(place / "checkpoints" / saved[-1])
    (place / "result.json").unlink()
    assert main(["pretrain", "--resume", str(place), "--save-every", "2", "--keep", "1"]) == 0
    assert [path.name for path in (place / "checkpoints").iterdir()] == ["step-00000008"]
    assert Run(place).machine()["keep"] == 1


def test_a_halved_micro_batch_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, taken = PretrainingModel.forward, [0]

    def tight(self: PretrainingModel, batch: Any) -> Any:
        if taken[0] == 3 and self.training and len(batch.input.ids) > 64:
            raise torch.OutOfMemoryError("no room")
        return forward(self, batch)

    monkeypatch.setattr(PretrainingModel, "forward", tight)
    place, machine = tmp_path / "run", Machine(device="cpu", workers=0, micro_batch=8)
    for event in pretrain(
        pretrain_job("roberta", steps=5, batch_size=8), place, machine=machine, saving=OFTEN
    ):
        taken[0] += isinstance(event, Step)
    settings = {"micro_tokens": {"from": 256, "to": 64}}
    assert Run(place).events("changed") == [{"kind": "changed", "step": 3, "settings": settings}]
    assert Run(place).machine()["micro_tokens"] == 64
    assert checkpoint(place, 4).state()["machine"]["micro_tokens"] == 64
    # Killed before the next checkpoint, it goes on from a step that had more, with less.
    for folder in ("step-00000004", "step-00000005"):
        shutil.rmtree(place / "checkpoints" / folder)
    again(place)
    assert Run(place).events("changed") == [{"kind": "changed", "step": 2, "settings": settings}]


def test_a_run_recorded_before_goes_on_as_it_would_have(tmp_path: Path) -> None:
    place = tmp_path / "run"
    killed(pretrain(pretrain_job("bert", steps=4), place, machine=MACHINE, saving=OFTEN), 3)
    file = place / "machine.toml"
    old_lines = [
        line for line in file.read_text().splitlines() if re.match(r'"?(seed|data)\b', line)
    ]
    file.write_text("\n".join(old_lines))
    (place / MARKER).unlink()
    events = again(place, Machine(device="cpu"))
    (began,) = of_kind(Began, events)
    assert (began.precision, began.micro_tokens) == ("fp32", 8192)
    assert of_kind(Ended, events)[0].whole and kind_of(place) == "run"


CPU, CUDA = torch.device("cpu"), torch.device("cuda")
GPU_FACTS = {
    **{"device": "cuda:0", "precision": "fp16", "micro_tokens": 131072, "workers": 3},
    **{"compiled": True, "kernels": True, "graphs": True, "recompute": True, "sharded": True},
}


def recalled(
    machine: Machine, device: torch.device, facts: dict[str, Any], processes: int = 1
) -> Machine:
    recipe = shrunk("bert")
    return machine.recalled(facts, device, recipe=recipe, processes=processes)


def test_on_another_kind_of_device_what_does_not_work_there_is_chosen_anew() -> None:
    settings = recalled(Machine(), CPU, GPU_FACTS)
    assert settings == Machine(workers=3, recompute=True, shard=False)
    assert settings.precision_on(CPU) == "fp32" and not settings.compiles(CPU, shrunk("bert"))
    settings = recalled(Machine(), CPU, {**GPU_FACTS, "precision": "bf16"})
    assert settings.precision == "bf16"  # slow there, but the same arithmetic


def test_a_flag_takes_the_place_of_what_goes_with_the_old_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clozelab.runs.machine.find_spec", lambda name: object())
    whole = {**GPU_FACTS, "sharded": False}
    settings = recalled(Machine(), CUDA, whole)
    assert (settings.compile, settings.kernels, settings.graphs) == (True, True, True)
    assert (settings.precision, settings.micro_tokens) == ("fp16", 131072)
    assert recalled(Machine(precision="fp32"), CUDA, whole).kernels is None
    settings = recalled(Machine(compile=False), CUDA, whole)
    assert (settings.compile, settings.graphs, settings.kernels) == (False, None, True)
    assert recalled(Machine(micro_batch=4), CUDA, whole).tokens(CUDA, shrunk("bert")) == 128
    settings = recalled(Machine(), CUDA, GPU_FACTS, processes=2)
    assert settings.shard and settings.kernels is None and settings.graphs is None


@pytest.mark.parametrize("after", [2, 5, 7])
def test_a_run_whose_schedule_was_refitted_goes_on_with_every_refit(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = {3: 12, 6: 9}

    def wanted(self: Pacer, step: int, schedule: Schedule) -> int:
        return 0 if step in dict(schedule.refits or ()) else fits.get(step, 0)

    monkeypatch.setattr(Pacer, "wanted", wanted)
    # The mean of weights begins with step 5, between the checkpoints that are gone on from.
    averaged = pretrain_job("roberta", *DROPS, "schedule.average=0.7")
    place, job = tmp_path / "run", replace(averaged, budget=parse("1m"))
    monkeypatch.setattr(PretrainTrainer, "seconds_a_step", lambda *_: 60 / 20)
    killed(pretrain(job, place, machine=MACHINE, saving=OFTEN), after)
    again(place)
    recorded = Run(place).recipe()
    assert recorded.schedule.steps == 20 and recorded.schedule.refits == ((3, 12), (6, 9))
    fitted = [(entry["step"], entry["steps"]) for entry in Run(place).events("refit")]
    assert fitted == [(3, 12), (6, 9)]
    run_pretraining(replace(job, recipe=recorded, budget=None), tmp_path / "straight")
    assert_same(checkpoint(tmp_path / "straight", 9), checkpoint(place, 9))


def test_no_split_changes_a_loss_without_dropout_and_with_it_another_is_another_draw(
    tmp_path: Path,
) -> None:
    for drops, same in (((), True), (DROPS, False)):
        losses = []
        for split in (2, 8):
            job = pretrain_job("roberta", *drops, steps=4, batch_size=8)
            place = tmp_path / f"{split}-{same}"
            events = run_pretraining(job, place, replace(MACHINE, micro_batch=split))
            losses.append([step.sums["masked_lm"]["loss"] for step in of_kind(Step, events)])
        assert (losses[0] == pytest.approx(losses[1], rel=1e-4)) is same


# What a kill behind the last step takes


@pytest.mark.parametrize("older", [False, True])
def test_a_lost_result_comes_back(
    older: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if older:  # a checkpoint that does not have the result
        original_save = Session._save

        def save(self: Session, step: Step, *, ends: bool) -> Iterator[Event]:
            return original_save(self, step, ends=False)

        monkeypatch.setattr(Session, "_save", save)
    place = tmp_path / "run"
    run_pretraining(pretrain_job("bert", steps=4), place, saving=OFTEN)
    before = json.loads((place / "result.json").read_text())
    log = place / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    ours = [line for line in lines if '"held_out"' in line]
    (place / "result.json").unlink()
    log.write_text("".join(line for line in lines if line not in ours))
    (place / "checkpoints" / ".step-00000002.old").mkdir()
    (place / "checkpoints" / ".step-00000004.part").mkdir()
    again(place)
    after = json.loads((place / "result.json").read_text())
    if older:
        for name in ("limited_by", "times"):
            before.pop(name), after.pop(name, None)
    assert after == before and {"held_out", "train"} <= after.keys()
    (held_out,) = Run(place).events("held_out")
    assert held_out == json.loads(ours[-1])
    assert not list((place / "checkpoints").glob(".*"))


@pytest.mark.parametrize("after", [3, 5, 8])
def test_the_log_of_a_run_that_goes_on_lacks_no_step(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clozelab.runs.log._LINES", 3)  # a line is several steps
    place, saving = tmp_path / "run", replace(OFTEN, save_every=3)
    killed(
        pretrain(pretrain_job("roberta", steps=12), place, machine=MACHINE, saving=saving), after
    )
    again(place, saving=saving)
    run = Run(place)
    steps, result = run.events("step"), run.result()
    assert result is not None and len(steps) < 12
    assert sum(entry["tokens"] for entry in steps) == result["tokens"]
    assert sum(entry["seconds"] for entry in steps) == pytest.approx(result["seconds"])


def test_a_checkpoint_that_a_killed_save_had_set_aside_is_put_back(tmp_path: Path) -> None:
    place = tmp_path / "run"
    run_pretraining(pretrain_job("bert", steps=2), place, saving=OFTEN)
    folder = place / "checkpoints"
    (folder / "step-00000002").rename(folder / ".step-00000002.old")
    assert not of_kind(Step, again(place))
    assert os.listdir(folder) == ["step-00000002"]


def test_what_a_killed_save_had_still_to_remove_goes_unless_the_run_is_done(tmp_path: Path) -> None:
    place, folder = tmp_path / "run", tmp_path / "run" / "checkpoints"
    run_pretraining(pretrain_job("bert", steps=6), place, saving=OFTEN)
    sparing = replace(OFTEN, keep=1)
    again(place, saving=sparing)
    assert len(os.listdir(folder)) == 3
    (place / "result.json").unlink()
    again(place, saving=sparing)
    assert os.listdir(folder) == ["step-00000006"]


# Two at once


def test_a_run_that_is_being_written_takes_no_second_writer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, file = tmp_path / "run", tmp_path / "bert.toml"
    file.write_text(to_toml(shrunk("bert", steps=4)), encoding="utf-8")
    first = pretrain(pretrain_job("bert", steps=4), place, machine=MACHINE, saving=OFTEN)
    while not isinstance(next(first), Began):
        pass
    before = tree(place)
    options = ["--data", store("wordpiece"), "--device", "cpu"]
    for command in (["--resume", str(place)], [str(file), *options, "--out", str(place)]):
        assert main(["pretrain", *command]) == 2
        message = " ".join(capsys.readouterr().err.split())
        assert f"{place}: another process is writing to it (process {os.getpid()}, since" in message
        assert tree(place) == before
    assert of_kind(Ended, list(first))[0].whole
    assert main(["pretrain", "--resume", str(place)]) == 0


def test_a_run_that_went_on_while_it_was_opened_is_opened_again(tmp_path: Path) -> None:
    place = tmp_path / "run"
    run_pretraining(pretrain_job("bert", steps=4), place, saving=OFTEN)
    job, recorded = starting.resumed(place), Run(place).recipe()
    other = replace(recorded, schedule=recorded.schedule.refitted(2, 6))
    Run(place).refit(2, 6, recipe_toml=to_toml(other))
    with pytest.raises(UserError, match="was continued by another process"):
        list(resume(job, place, machine=Machine(), saving=OFTEN))


def test_neither_a_student_nor_an_import_is_written_over_a_run_under_way(tmp_path: Path) -> None:
    out = tmp_path / "run"
    exchange.export(teacher(), tmp_path / "hf")
    options = ["--data", store("wordpiece"), "--device", "cpu", "--budget", "1steps"]
    with Run(out).writing():
        before = tree(out)
        assert main(["import", str(tmp_path / "hf"), str(out)]) == 2
        assert main(["distil", teacher(), *options, "--out", str(out)]) == 2
        assert tree(out) == before
    other = tmp_path / "other"
    assert main(["import", str(tmp_path / "hf"), str(other)]) == 0 and kind_of(other) == "run"


def test_a_folder_that_holds_something_else_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "clozelab.pretraining.pretrain.PretrainTrainer", None
    )  # it is refused before
    (tmp_path / MARKER).write_text("corpus\n")
    with pytest.raises(UserError, match="holds a corpus, not a run"):
        run_pretraining(pretrain_job("bert", steps=1), tmp_path, saving=QUIET)
    assert os.listdir(tmp_path) == [MARKER]


def test_a_run_goes_on_with_what_its_corpus_was_before_text_was_added(tmp_path: Path) -> None:
    corpus = Path(shutil.copytree(store(STORES["roberta"]), tmp_path / "corpus"))
    job = starting.fresh(shrunk("roberta"), data=[str(corpus)], seed=0)
    killed(pretrain(job, tmp_path / "run", machine=MACHINE, saving=OFTEN), 3)
    add(write(tmp_path / "more.jsonl", ["One more cat sat here. It slept."] * 9), corpus)
    again(tmp_path / "run")
    run_pretraining(pretrain_job("roberta"), tmp_path / "straight")
    assert_same(checkpoint(tmp_path / "straight", 4), checkpoint(tmp_path / "run", 4))
    larger = starting.resumed(tmp_path / "run", data=[str(corpus)])
    with pytest.raises(UserError, match="was started with other data"):
        list(resume(larger, tmp_path / "run", machine=MACHINE, saving=OFTEN))


def test_what_a_resume_changes_of_saves_and_evaluations_is_recorded(tmp_path: Path) -> None:
    place, often = tmp_path / "run", SaveOptions(save_every=2, keep=0, evaluate_every=2)
    killed(pretrain(pretrain_job("roberta", steps=8), place, machine=SMALL, saving=often), 3)
    events = again(place, saving=SaveOptions(evaluate_blocks=3))
    settings = {"evaluate_blocks": {"from": None, "to": 3}}
    assert Run(place).events("changed") == [{"kind": "changed", "step": 2, "settings": settings}]
    (notice,) = of_kind(Said, events)
    assert notice.text == "evaluate_blocks none → 3, from step 3 on"
    # The rest is as it was.
    names = sorted(path.name for path in (place / "checkpoints").glob("step-*"))
    assert names == [f"step-{step:08}" for step in (2, 4, 6, 8)]
    assert [entry["step"] for entry in Run(place).events("held_out")] == [2, 4, 6, 8]

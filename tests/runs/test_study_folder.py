"""What may go on in a study's folder: the same, in one process; what has changed is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
import torch
from support.corpora import alter
from support.pretrain_runs import MACHINE, store
from support.processes import start_process
from support.small_studies import (
    DYNAMIC,
    SAVE_OPTIONS,
    SMALL,
    STATIC,
    STUDENT,
    narrowed,
    plan_of,
    read_study,
    reviews,
    run_study,
    write_study,
)

from clozelab.cli import main
from clozelab.cli.views.studies import scores
from clozelab.errors import UserError
from clozelab.runs.directory import PLAN, STUDY, Run, json_or_empty
from clozelab.runs.events import drained
from clozelab.studies import records
from clozelab.studies import spec as studies
from clozelab.studies.plan import make_plan
from clozelab.studies.records import PACKED, pack
from clozelab.studies.request import make_request
from clozelab.studies.run import CellStarted, follow
from clozelab.studies.timing import tuning_seconds

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_a_variant_that_changed_while_it_was_left_out_is_refused(tmp_path: Path) -> None:
    out, other = tmp_path / "out", {**DYNAMIC, "set": ["corruption.copies=3"]}
    study = read_study(tmp_path)
    plan_of(study).write(out)
    plan_of(study.narrowed(variants=["static"]), out).write(out)
    with pytest.raises(
        UserError, match=r"was started differently \(variant dynamic\); name another"
    ):
        plan_of(read_study(tmp_path, STATIC, other), out)
    plan_of(study, out)


def test_what_an_earlier_version_started_goes_on() -> None:
    request = make_request(studies.read("roberta-masking"), ["corpus"], size="tiny")
    # As its plan.json has it: a new key that a recipe need not have must not be in it.
    earlier = "3ac618fe9d3f37fdd875b0f78d2308d74d95accd5edb8b76e0c2c5cf8e014f70"
    assert request.fingerprint("dynamic") == earlier


@pytest.mark.parametrize(("change", "word"), [("tunings", "finetune"), ("blocks", "held-out")])
def test_other_tunings_and_held_out_blocks_are_refused(
    tmp_path: Path, change: str, word: str
) -> None:
    plan_of(read_study(tmp_path, tasks=[reviews()])).write(tmp_path / "out")
    other = read_study(tmp_path, tasks=[reviews()], **{change: 3})
    with pytest.raises(UserError, match=f"was started differently .*{word}"):
        plan_of(other, tmp_path / "out")


def test_finished_cells_of_seeds_that_are_not_named_are_told(tmp_path: Path) -> None:
    out = tmp_path / "out"
    plan_of(read_study(tmp_path, seeds=2)).write(out)
    for seed in range(2):
        result = out / "cells" / "dynamic" / f"seed-{seed}" / "result.json"
        result.parent.mkdir(parents=True)
        result.write_text("{}", encoding="utf-8")

    def told(seeds: int) -> list[str]:
        study = read_study(tmp_path, seeds=seeds)
        request = make_request(study, [store("wordpiece")], budget="3steps")
        return [said.text for said in make_plan(request, MACHINE, out=out)]

    assert not any("kept but not compared" in text for text in told(2))
    shutil.copytree(out / "cells/dynamic/seed-0", out / "cells/dynamic/seed-0-old")
    assert not any("kept but not compared" in text for text in told(2))
    assert any("1 finished cell is kept but not compared" in text for text in told(1))
    pack(out)
    assert any("1 finished cell is kept but not compared" in text for text in told(1))


def test_pairs_whose_file_has_changed_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"good": "It rains.", "bad": "It rain."}\n')
    study = read_study(tmp_path, measures=["held_out.masked_lm", f"pairs.{file}"])
    plan_of(study).write(tmp_path / "out")
    plan_of(study, tmp_path / "out")
    file.write_text('{"good": "It rain.", "bad": "It rains."}\n')
    with pytest.raises(UserError, match=r"pairs.jsonl.* has changed"):
        plan_of(study, tmp_path / "out")


def test_cells_of_equal_time_go_on_as_many_at_once_as_they_began(tmp_path: Path) -> None:
    study = read_study(tmp_path, equal="time")
    plan_of(study, budget="20s", at_once=2).write(tmp_path / "out")
    assert plan_of(study, tmp_path / "out", budget="20s", at_once=None).at_once == 2
    with pytest.raises(
        UserError, match="was started with --at-once 2; continue with the same value"
    ):
        plan_of(study, tmp_path / "out", budget="20s", at_once=1)


def test_steps_take_the_place_of_epochs_and_tunings_are_counted(tmp_path: Path) -> None:
    study = read_study(tmp_path, tasks=[reviews()], finetune=["epochs=2", "batch_size=8"])
    changed = make_request(study.narrowed(tuning=["steps=2"]), [store("wordpiece")])
    assert "steps=2" in changed.settings("static", "classify")
    assert "epochs=2" not in changed.settings("static", "classify")
    seconds = [
        tuning_seconds(make_request(one, [store("wordpiece")]), "static", 1000.0, gpu=False)
        for one in (study, narrowed(study, tunings=5))
    ]
    assert seconds[1] == pytest.approx(5 * seconds[0])


def test_students_that_share_a_pretraining_wait_for_it(tmp_path: Path) -> None:
    students = [{**STUDENT, "name": name} for name in ("first", "second")]
    students[1]["finetune"] = ["learning_rate=1e-4"]
    request = make_request(read_study(tmp_path, STATIC, *students), [store("wordpiece")])
    assert request.depends_on == {"first": "static", "second": "first"}


def test_a_recipe_s_file_that_changed_is_refused(tmp_path: Path) -> None:
    recipe, out = tmp_path / "mine.toml", tmp_path / "out"
    recipe.write_text('extends = "bert"\n', encoding="utf-8")
    study = read_study(tmp_path, recipe="mine.toml")
    plan_of(study).write(out)
    more = '[masking]\nuse = "token"\nrate = 0.3\n'
    recipe.write_text(f'extends = "bert"\n{more}', encoding="utf-8")
    with pytest.raises(UserError, match=r"\(variant static, variant dynamic\)"):
        plan_of(study, out)


def test_a_corpus_that_was_built_anew_is_refused(tmp_path: Path) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    shutil.copytree(store("wordpiece"), corpus)
    request = make_request(read_study(tmp_path), [str(corpus)], budget="3steps")
    drained(make_plan(request, MACHINE, out=out)).write(out)
    alter(corpus, fingerprint="other")
    with pytest.raises(UserError, match=rf"\(corpus {corpus}\); name another folder"):
        drained(make_plan(request, MACHINE, out=out))


def test_a_task_of_another_folder_with_the_same_name_is_refused(tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "reviews"
    shutil.copytree(reviews().partition("=")[2], other)
    plan_of(read_study(tmp_path, tasks=[reviews()])).write(out)
    with pytest.raises(UserError, match=r"\(task reviews\); name another folder"):
        plan_of(read_study(tmp_path, tasks=[f"classify={other}"]), out)
    plan_of(read_study(tmp_path, tasks=[]), out)


def test_a_task_whose_file_has_changed_is_refused_by_the_file_s_name(tmp_path: Path) -> None:
    out, tasks = tmp_path / "out", tmp_path / "reviews"
    shutil.copytree(reviews().partition("=")[2], tasks)
    study = read_study(tmp_path, tasks=[f"classify={tasks}"])
    plan_of(study).write(out)
    train = tasks / "train.tsv"
    text = train.read_text(encoding="utf-8")
    train.write_text("".join(text.splitlines(keepends=True)[:-1]), encoding="utf-8")
    with pytest.raises(UserError, match=rf"{train} has changed since {out} was started; restore"):
        plan_of(study, out)
    train.write_text(text, encoding="utf-8")
    plan = json.loads((out / PLAN).read_text())
    old_digests = {
        what: word for what, word in plan["made"].items() if not what.startswith("file ")
    }
    assert len(old_digests) == len(plan["made"]) - 2
    (out / PLAN).write_text(
        json.dumps({**plan, "made": old_digests})
    )  # as before digests were kept
    request = make_request(study, [store("wordpiece")], budget="3steps")
    notices = [notice.text for notice in make_plan(request, MACHINE, out=out)]
    assert any("before clozelab recorded digests of task files" in text for text in notices)


def test_tasks_that_were_moved_are_known_by_their_digests(tmp_path: Path) -> None:
    out, study = tmp_path / "out", read_study(tmp_path, STATIC, tasks=["sst2"])
    line = "sentence\tlabel\na fine film\t1\na dull film\t0\n"
    for place in ("here", "there", "other"):
        (tmp_path / place / "sst2").mkdir(parents=True)
        for split in ("train", "dev"):
            text = line + ("an odd film\t0\n" if place == "other" else "")
            (tmp_path / place / "sst2" / f"{split}.tsv").write_text(text, encoding="utf-8")

    def planned(place: str, spec: studies.StudySpec) -> None:
        root = str(tmp_path / place)
        request = make_request(spec, [store("wordpiece")], budget="3steps", task_data=root)
        drained(make_plan(request, MACHINE, out=out)).write(out)

    planned("here", study)
    planned("there", read_study(tmp_path, STATIC, DYNAMIC, tasks=["sst2"]))  # with one more variant
    with pytest.raises(UserError, match=r"was started differently \(--task-data"):
        planned("other", study)


def test_a_recorded_study_that_begins_elsewhere_keeps_its_fingerprints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    tool = run_path(str(TOOLS / "run_studies.py"))
    monkeypatch.setitem(tool["begin"].__globals__, "UNFINISHED", tmp_path / "unfinished")
    for place in ("here", "there"):
        (tmp_path / place / "sst2").mkdir(parents=True)
        for split in ("train", "dev"):
            text = "sentence\tlabel\na fine film\t1\na dull film\t0\n"
            (tmp_path / place / "sst2" / f"{split}.tsv").write_text(text, encoding="utf-8")
    study, out = read_study(tmp_path, STATIC, tasks=["sst2"]), tmp_path / "out"

    def planned(place: str, out: Path) -> dict[str, Any]:
        root = str(tmp_path / place)
        request = make_request(study, [str(tmp_path / "corpus")], budget="3steps", task_data=root)
        drained(make_plan(request, MACHINE, out=out)).write(out)
        return json_or_empty(out / PLAN)

    shutil.copytree(store("wordpiece"), tmp_path / "corpus")
    before = planned("here", out)
    Run(out).write_result({"cells": []})
    tool["keep"](out, tmp_path / "unfinished" / "masks")
    assert str(tmp_path) not in (tmp_path / "unfinished" / "masks" / PLAN).read_text("utf-8")
    other = tmp_path / "other"
    tool["begin"]("masks", other, tmp_path / "corpus", tmp_path / "there")
    here, there = (str(tmp_path / place) for place in ("here", "there"))
    after = planned("there", other)
    assert after["made"] == {k.replace(here, there): v for k, v in before["made"].items()}
    alter(tmp_path / "corpus", fingerprint="other")
    with pytest.raises(UserError, match=r"was started differently \(corpus "):
        planned("there", other)


def test_a_cell_that_failed_before_its_run_began_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    request = make_request(
        read_study(tmp_path), [store("wordpiece")], budget="3steps", task_data=str(tmp_path)
    )
    drained(make_plan(request, MACHINE)).write(tmp_path / "out")
    failed = {"variant": "static", "seed": 0, "failed": "has no entity units"}
    Run(tmp_path / "out").write_result({"cells": [failed]})
    run_path(str(TOOLS / "keep_study.py"))["keep"](tmp_path / "out", tmp_path / "kept")
    (cell,) = records.read(tmp_path / "kept").failed
    assert (cell.variant, cell.failed) == ("static", "has no entity units")


@pytest.mark.parametrize("count", [3, 40, 43, 44, 79, 2989])
def test_records_are_not_thinned_twice(tmp_path: Path, count: int) -> None:
    thin, log = run_path(str(TOOLS / "keep_results.py"))["thin"], tmp_path / "metrics.jsonl"

    def thinned(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        log.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
        kept: list[dict[str, Any]] = thin(log, 40)
        return kept

    whole = [{"kind": "step", "step": step} for step in range(count)]
    once = thinned(whole)
    assert thinned(once) == once and once[-1] == whole[-1]
    assert min(count, 22) <= len(once) <= 43


def test_records_name_corpora_as_the_study_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    study = read_study(tmp_path, STATIC, {**DYNAMIC, "name": "own", "data": "other"})
    for name in ("wiki", "wiki-8mb"):
        shutil.copytree(store("wordpiece"), tmp_path / name)
    words = [f"{tmp_path / 'wiki'}:2", f"other={tmp_path / 'wiki-8mb'}"]
    request = make_request(study, words, budget="3steps", task_data=str(tmp_path / "tasks"))
    drained(make_plan(request, MACHINE)).write(tmp_path / "out")
    Run(tmp_path / "out").write_result({"cells": []})
    run_path(str(TOOLS / "keep_study.py"))["keep"](tmp_path / "out", tmp_path / "kept")
    plan = json_or_empty(tmp_path / "kept" / PLAN)
    assert plan["data"] == ["corpus:2", "other=other"]
    assert {name for name in plan["made"] if "corpus " in name} == {"corpus corpus", "corpus other"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("equal", "money"),
        ("amount", "three"),
        ("paces", {"static": {}}),
        ("paces", []),
        ("tuning_seconds", None),
        ("made", 3),
    ],
)
def test_a_damaged_plan_is_refused_in_a_sentence(tmp_path: Path, key: str, value: Any) -> None:
    study, out = read_study(tmp_path), tmp_path / "out"
    plan_of(study).write(out)
    plan = {**json.loads((out / PLAN).read_text()), key: value}
    (out / PLAN).write_text(json.dumps(plan))
    with pytest.raises(UserError, match="its plan cannot be read"):
        plan_of(study, out)


def test_a_crash_before_the_plan_was_written_leaves_a_folder_to_begin_in(tmp_path: Path) -> None:
    study, out = read_study(tmp_path), tmp_path / "out"
    out.mkdir()
    (out / STUDY).write_text(studies.to_toml(study), encoding="utf-8")
    assert plan_of(study, out).steps("static") == 3


def test_two_at_once_do_not_share_a_folder(tmp_path: Path) -> None:
    study, out = read_study(tmp_path), tmp_path / "out"
    plan = plan_of(study)
    first = follow(plan, out, machine=MACHINE, saving=SAVE_OPTIONS)
    assert isinstance(next(first), CellStarted)
    with pytest.raises(
        UserError, match=rf"another study is writing to it \(process {os.getpid()},"
    ):
        next(follow(plan, out, machine=MACHINE, saving=SAVE_OPTIONS))
    first.close()
    assert isinstance(next(follow(plan, out, machine=MACHINE, saving=SAVE_OPTIONS)), CellStarted)


def test_what_is_wrong_with_fine_tuning_is_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="epoch"):
        plan_of(read_study(tmp_path, tasks=[reviews()], finetune=["epoch=3"]))


def test_a_measure_that_is_asked_for_later_or_was_lost_is_taken(tmp_path: Path) -> None:
    study, out = read_study(tmp_path, STATIC), tmp_path / "out"
    run_study(study, out, budget="2steps")
    file = out / "cells/static/seed-0/measured.json"
    first = json_or_empty(file)["scores"]
    more = replace(study, measures=(*study.measures, "pair.next_sentence"))
    run_study(more, out, budget="2steps")
    both = json_or_empty(file)["scores"]
    assert first.items() < both.items() and "pair.next_sentence" in both
    file.write_text("{")
    run_study(more, out, budget="2steps")
    assert json_or_empty(file)["scores"] == both
    (cell,) = (Run(out).result() or {})["cells"]
    assert cell["scores"] == both and cell["tokens"] > 0


def test_a_packed_study_goes_on_and_does_nothing_twice(tmp_path: Path) -> None:
    study, out = read_study(tmp_path, STATIC), tmp_path / "out"
    run_study(study, out)
    before = Run(out).result()
    shutil.rmtree(out / "cells/static/seed-0/checkpoints")
    pack(out)
    assert not (out / "cells").exists()
    (out / "result.json").write_text("{", encoding="utf-8")  # as if it had been edited
    assert not [event for event in run_study(study, out) if isinstance(event, CellStarted)]
    assert Run(out).result() == before
    events = run_study(replace(study, seeds=2), out)
    assert [event.cell.seed for event in events if isinstance(event, CellStarted)] == [1]
    assert len((Run(out).result() or {})["cells"]) == 2 and not (out / PACKED).exists()


def test_the_terminal_counts_the_seeds_that_were_measured(tmp_path: Path) -> None:
    cell = {"variant": "static", "failed": None}
    rows = [{**cell, "scores": {"held_out.masked_lm": loss}} for loss in (None, 2.0, 4.0)]
    means = scores(read_study(tmp_path, STATIC), rows)
    assert [next(iter(column.cells)) for column in means.columns] == ["static", "3.000", "2"]


@pytest.mark.parametrize("arguments", [["--out", ""], ["--out", "NEW", "--budget", ""]])
def test_an_empty_word_is_no_folder_and_no_budget(
    tmp_path: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_study(tmp_path / "masks.toml", set=list(SMALL))
    work_dir = tmp_path / "here"
    work_dir.mkdir()
    monkeypatch.chdir(work_dir)
    budget = [] if "--budget" in arguments else ["--budget", "1steps"]
    corpus = store("wordpiece")
    code = main(["study", str(file), "--data", corpus, *budget, *arguments, "--device", "cpu"])
    assert code == 2 and not list(work_dir.iterdir())


@pytest.mark.slow
def test_cells_side_by_side_save_and_end_when_the_study_is_killed(tmp_path: Path) -> None:
    with _two_at_once(tmp_path) as running:
        runs = [tmp_path / "out" / "cells" / name / "seed-0" for name in ("static", "dynamic")]
        _until(lambda: all(Run(run).events("step") for run in runs))
        running.kill()
        running.wait()
        _until(lambda: all(any(run.glob("checkpoints/step-*")) for run in runs))
        _until(lambda: not _alive(running.pid))


@pytest.mark.slow
def test_cells_that_have_only_begun_are_interrupted_without_a_word(tmp_path: Path) -> None:
    with _two_at_once(tmp_path) as running:
        _until(lambda: _importing(running.pid))
        os.killpg(running.pid, signal.SIGINT)
        _, stderr = running.communicate(timeout=60)
        assert running.returncode == 130, stderr
        assert "the same command continues" in stderr, stderr
        assert "Traceback" not in stderr and "Process" not in stderr, stderr
        _until(lambda: not _alive(running.pid))


@contextmanager
def _two_at_once(place: Path) -> Iterator[subprocess.Popen[str]]:
    """A long study of two cells side by side, in a group of processes that ends with it."""
    file, out = write_study(place / "masks.toml", STATIC, DYNAMIC), place / "out"
    study_command = ["study", str(file), "--data", store("wordpiece"), "--out", str(out)]
    study_command += ["--budget", "100000steps", "--at-once", "2", "--device", "cpu"]
    command = [sys.executable, "-m", "clozelab", *study_command]
    running = start_process(command)
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.communicate()


def _importing(group: int) -> bool:
    """Whether a process that the study started has come as far as torch's libraries."""
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            ours = os.getpgid(int(place.name)) == group
            ours = ours and b"spawn_main" in (place / "cmdline").read_bytes()
            if ours and "libtorch" in (place / "maps").read_text():
                return True
    return False


def _until(so: Callable[[], bool]) -> None:
    for _ in range(600):
        if so():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come to pass in a minute")


def _alive(group: int) -> bool:
    """Whether a process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True

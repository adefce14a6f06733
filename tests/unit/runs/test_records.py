"""The run directory: begun once, appended to, read back whole after any crash, without torch."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from support.processes import run_process

from clozelab.errors import UserError
from clozelab.files import write_text
from clozelab.runs import directory as records
from clozelab.runs.directory import Run, machine_facts, runs_by_seed


def create(path: Path, recipe: str = 'name = "bert"\n') -> Run:
    return Run.create(path, recipe_toml=recipe, machine=machine_facts())


def step(number: int, loss: float) -> dict[str, object]:
    return {"kind": "step", "step": number, "loss": loss}


# --- beginning ---


def test_a_run_is_read_back(tmp_path: Path) -> None:
    run = create(tmp_path / "runs" / "a")
    again = Run.open(run.path)
    assert again.recipe_text() == 'name = "bert"\n'
    assert again.machine() == machine_facts()
    assert (again.events(), again.result()) == ([], None)
    assert again.checkpoints == run.path / "checkpoints"
    assert sorted(os.listdir(run.path)) == [".clozelab", "machine.toml", "recipe.toml"]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="contains other files; name a new or empty folder"):
        create(tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        create(tmp_path / "thesis.tex")
    with pytest.raises(UserError, match=r"is not a run, because it has no recipe\.toml"):
        Run.open(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_runs_are_found_by_their_seeds_and_copies_are_left_out(tmp_path: Path) -> None:
    for name in ("seed-10", "seed-2", "seed--1", "seed-2-old", "seed-", "seeds"):
        (tmp_path / name).mkdir()
    runs = runs_by_seed(tmp_path)
    assert [(seed, run.path.name) for seed, run in runs.items()] == [
        (-1, "seed--1"), (2, "seed-2"), (10, "seed-10")
    ]  # fmt: skip
    assert runs_by_seed(tmp_path / "missing") == {}


def test_a_run_that_never_took_a_step_may_begin_again(tmp_path: Path) -> None:
    create(tmp_path, "old = 1\n").append({"kind": "note"})
    assert create(tmp_path, "new = 1\n").recipe_text() == "new = 1\n"


@pytest.mark.parametrize("trace", ["step", "checkpoint", "result"])
def test_a_run_with_steps_is_not_begun_again(tmp_path: Path, trace: str) -> None:
    run = create(tmp_path)
    if trace == "step":
        run.append(step(1, 2.0))
    elif trace == "checkpoint":
        (run.checkpoints / "step-00000000").mkdir(parents=True)
    else:
        run.write_result({})
    with pytest.raises(UserError, match=f"continue it with --resume {tmp_path}"):
        create(tmp_path, "other = 1\n")
    assert run.recipe_text() == 'name = "bert"\n'


# --- metrics ---


def test_entries_come_back_by_kind_and_in_order(tmp_path: Path) -> None:
    run = create(tmp_path)
    entries = [step(1, 2.5), {"kind": "note", "text": "ü"}, step(2, 2.25), {"kind": "note"}]
    for entry in entries:
        run.append(entry)
    assert run.events() == entries
    assert run.events("step") == [entries[0], entries[2]]
    assert run.events("note") == [entries[1], entries[3]]
    assert (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").count("\n") == 4


def test_what_is_no_number_is_null_and_the_line_valid(tmp_path: Path) -> None:
    run = create(tmp_path)
    run.append({"kind": "step", "step": 1, "loss": float("nan"), "by": [float("inf"), {"a": 1.0}]})
    line = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(line, parse_constant=pytest.fail) == run.events()[0]
    assert run.events()[0] == {"kind": "step", "step": 1, "loss": None, "by": [None, {"a": 1.0}]}
    run.write_result({"loss": float("-inf")})
    assert run.result() == {"loss": None}


@pytest.mark.parametrize(
    "torn", ['{"kind": "step", "st', '{"kind": "step", "step": 3, "x": "\udcc3']
)
def test_a_torn_last_line_is_skipped_and_spoils_nothing_after_it(tmp_path: Path, torn: str) -> None:
    run = create(tmp_path)
    run.append(step(1, 1.0))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(torn.encode(errors="surrogateescape"))
    assert run.events() == [step(1, 1.0)]
    run.append(step(2, 2.0))
    assert run.events() == [step(1, 1.0), step(2, 2.0)]


def test_a_step_recorded_twice_counts_once(tmp_path: Path) -> None:
    run = create(tmp_path)
    for number, loss in ((1, 1.0), (2, 2.0), (3, 3.0), (2, 2.5), (3, 3.5)):
        run.append(step(number, loss))
    run.append({"kind": "evaluation", "step": 3, "loss": 9.0})
    assert run.events("step") == [step(1, 1.0), step(2, 2.5), step(3, 3.5)]
    assert len(run.events()) == 4


def test_resuming_voids_what_was_recorded_of_later_steps(tmp_path: Path) -> None:
    run = create(tmp_path)
    run.append({"kind": "note"})
    for number in range(1, 6):
        run.append(step(number, 1.0))
    before = (tmp_path / "metrics.jsonl").read_bytes()
    run.resumed(2)
    assert run.events("step") == [step(1, 1.0), step(2, 1.0)]
    run.append(step(3, 2.0))
    assert [(e["step"], e["loss"]) for e in run.events("step")] == [(1, 1), (2, 1), (3, 2)]
    assert len(run.events("note")) == 1
    assert (tmp_path / "metrics.jsonl").read_bytes().startswith(before)


# --- whole files ---


def test_a_crash_while_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "result.json"
    write_text(file, "old")

    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    for name in ("replace", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(records.os, name, fail)
            with pytest.raises(OSError, match="No space"):
                write_text(file, "new")
        assert file.read_text() == "old"
        assert os.listdir(tmp_path) == ["result.json"]
    write_text(file, "new\r\nü")
    assert file.read_bytes() == "new\r\nü".encode()


# --- the machine ---


def test_machine_facts_of_any_kind_are_read_back(tmp_path: Path) -> None:
    facts = {
        "gpu": 'a "big" one\x7f\n',
        "gpus": 2,
        "memory": 1.5e11,
        "compiled": True,
        "nothing": None,
        "versions": {"torch.cuda": "13", "list": [1, 2], "inner": {"a": "b"}},
        "last": "ü",
    }
    run = Run.create(tmp_path, recipe_toml="", machine=facts)
    assert run.machine() == {name: fact for name, fact in facts.items() if fact is not None}


def test_the_commit_is_that_of_a_checkout_with_the_file_in_it(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        process = run_process(
            ["git", "-C", str(tmp_path), *who, *arguments],
            check=True,
            capture_output=True,
            text=True,
        )
        return process.stdout.strip()

    file = tmp_path / "records.py"
    file.write_text("one")
    assert records._commit(file) is None  # no checkout
    git("init")
    (tmp_path / "other").write_text("one")
    git("add", "other")
    git("commit", "-m", "one")
    assert records._commit(file) is None  # somebody else's
    git("add", ".")
    git("commit", "-m", "two")
    assert records._commit(file) == git("rev-parse", "HEAD")
    file.write_text("two")
    assert records._commit(file) == git("rev-parse", "HEAD") + "-dirty"


def test_facts_name_the_versions() -> None:
    facts = machine_facts()
    assert {"clozelab", "python", "platform", "cpus"} <= facts.keys()


def test_records_need_no_torch() -> None:
    code = (
        "import sys; from clozelab.runs.directory import Run, machine_facts; machine_facts();"
        "sys.exit('torch' in sys.modules)"
    )
    source = Path(records.__file__).parents[1]
    run_process([sys.executable, "-c", code], check=True, cwd=source)

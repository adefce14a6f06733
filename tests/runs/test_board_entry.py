"""An entry of the board, made in pieces: what is measured is kept, and of one encoder alone."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from support.labelled_files import write
from support.pretrain_runs import store
from support.processes import run_process

from clozelab import data

ROOT = Path(__file__).parents[2]
# Four processes that load torch, one after another.
pytestmark = pytest.mark.slow


def tasks(root: Path) -> Path:
    """A few pairs as MNLI, which RTE begins from."""
    for split, name in (("train", "train"), ("dev", "dev_matched")):
        lines = data.task("pairs", split).read_text(encoding="utf-8").splitlines()[1:17]
        rows = [line.split("\t") for line in lines]
        for folder, file, label, no in (
            ("MNLI", name, "gold_label", "neutral"),
            ("RTE", split, "label", "not_entailment"),
        ):
            spellings = {"yes": "entailment", "no": no}
            body = "".join(f"{a}\t{b}\t{spellings[c]}\n" for a, b, c in rows)
            write(root / folder / f"{file}.tsv", f"sentence1\tsentence2\t{label}\n{body}")
    return root


def entered(place: Path, *arguments: str) -> Any:
    command = [sys.executable, str(ROOT / "tools" / "board_entry.py"), "swift"]
    command += ["--data", store("byte_bpe"), "--held-out", store("byte_bpe"), "--size", "1x64"]
    command += ["--task-data", str(tasks(place / "tasks")), "--budget", "2steps", "--seeds", "1"]
    command += [
        "--set",
        "schedule.batch_size=4",
        "--measures",
        "held_out",
        "own",
        "--tasks",
        "mnli",
    ]
    command += ["rte", "--tune", "steps=2", "--tunings", "1", "--at-once", "1", "--device", "cpu"]
    command += ["--work", str(place / "work"), "--out", str(place / "board" / "entry"), *arguments]
    path = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return run_process(command, capture_output=True, text=True, env=path)


def test_an_entry_is_made_in_pieces_and_refused_where_it_is_no_entry(tmp_path: Path) -> None:
    records, work = tmp_path / "board" / "entry" / "seed-0", tmp_path / "work"
    first = entered(tmp_path, "--minutes", "0.4")  # all of which is for saving
    assert "the same command continues" in first.stdout and not records.exists(), first.stderr
    done = entered(tmp_path, "--minutes", "5")
    assert "seed 0: done" in done.stdout, done.stderr
    # A run on a CPU has no place on the board, but all its records.
    assert "is not in texts.toml" in done.stdout and 'fingerprint = "' in done.stdout
    task_records = json.loads((records / "tasks.json").read_text(encoding="utf-8"))["tasks"]
    assert task_records["rte"]["from"] == "mnli" and len(task_records["mnli"]["seeds"]) == 1
    assert str(tmp_path) not in (records / "own.json").read_text(encoding="utf-8")
    before = {file.name: file.stat().st_mtime_ns for file in records.iterdir()}
    again = entered(tmp_path, "--minutes", "5")
    assert {file.name: file.stat().st_mtime_ns for file in records.iterdir()} == before, again
    # What is left of a seed cannot be measured on another encoder.
    (records / "own.json").unlink()
    shutil.rmtree(work)
    anew = entered(tmp_path, "--minutes", "0.4")
    assert "begins anew" in anew.stdout and not records.exists(), anew.stderr

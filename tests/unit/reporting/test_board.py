"""The board: its entries rest on their records, and a run is told where it would stand."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.processes import run_process

from clozelab.reporting import board
from clozelab.reporting.board import BoardEntry

ROOT = Path(__file__).parents[3]
ENTRY = "2026-11-16-swift"


def tool(*arguments: str) -> Any:
    command = [sys.executable, str(ROOT / "tools" / "board.py"), *arguments]
    return run_process(command, capture_output=True, text=True)


def test_what_is_made_of_the_entries_is_up_to_date() -> None:
    done = tool("--check")
    assert (done.returncode, done.stderr) == (0, "")
    names = {entry.name for entry in board.board()}
    assert names == {file.parent.name for file in (ROOT / "results" / "board").glob("*/entry.toml")}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The entry of swift and all it rests on, where it may be spoiled."""
    for name in ("board", "h200-swift"):
        shutil.copytree(ROOT / "results" / name, tmp_path / name)
    shutil.rmtree(tmp_path / "board" / "2026-11-15-roberta-small")
    return tmp_path


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def json_change(file: Path, spoil: Callable[[Any], None]) -> None:
    record = json.loads(file.read_text(encoding="utf-8"))
    spoil(record)
    file.write_text(json.dumps(record), encoding="utf-8")


def log_change(file: Path, kind: str, spoil: Callable[[Any], None]) -> None:
    entries = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for entry in entries:
        if entry["kind"] == kind:
            spoil(entry)
    file.write_text("\n".join(map(json.dumps, entries)), encoding="utf-8")


def slower(entry: Any) -> None:
    entry["seconds"] *= 1.2


def other_loss(entry: Any) -> None:
    entry["masked_lm"]["loss"] = 2.0


def pairs(place: Path, *, items: int = 67_000, step: int = 6973) -> None:
    """A record of BLiMP, entered."""
    record = {"model": {"step": step}, "all": {"items": items, "accuracy": 72.0}}
    (place / "board" / ENTRY / "blimp.json").write_text(json.dumps(record), encoding="utf-8")
    change(place / OWN, "seed = 0", 'seed = 0\nblimp = "blimp.json"')
    change(place / OWN, "[scores]", "[scores]\nblimp = 72.0")


RUN, HELD_OUT, SST2 = "h200-swift/encoder", "h200-swift/held_out.json", "h200-swift/sst2.json"
OWN = f"board/{ENTRY}/entry.toml"
FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "minutes": (lambda p: change(p / OWN, "4.96", "4.5"), "says minutes 4.5, and its records give"),
    "loss": (lambda p: change(p / OWN, "2.29", "2.19"), "says loss 2.19"),
    "score": (lambda p: change(p / OWN, "86.58", "87.2"), "says sst2 87.2"),
    "unmeasured": (lambda p: change(p / OWN, "[scores]", "[scores]\nblimp = 72.0"), "blimp 72.0"),
    "seed": (lambda p: change(p / OWN, "seed = 0", "seed = 1"), "the run has seed 0"),
    "gpu": (lambda p: change(p / OWN, "H200", "B200"), "says gpu NVIDIA B200"),
    "commit": (lambda p: change(p / OWN, "6340b92", "7340b92"), "says commit 7340b92"),
    "text": (lambda p: change(p / "board/texts.toml", '"f28f', '"a28f'), "the run read the text"),
    "held-out text": (
        lambda p: change(p / "board/texts.toml", '"ddcc', '"addc'),
        "is over the text",
    ),
    "unknown text": (lambda p: change(p / OWN, "wiki-books-200", "web"), "is not in texts.toml"),
    "masks": (lambda p: change(p / HELD_OUT, '"roberta"', '"swift"'), "under the masks of swift"),
    "blocks": (lambda p: change(p / HELD_OUT, "4096", "1024"), "is of 1024 blocks"),
    "changed commit": (
        lambda p: change(p / RUN / "machine.toml", 'fbebb72"', 'fbebb72-dirty"'),
        "others cannot get its commit",
    ),
    "pairs": (lambda p: pairs(p, items=67), "BLiMP has 67,000 pairs, and this is of 67"),
    "other weights": (lambda p: pairs(p, step=7000), "BLiMP is of step 7000"),
    "two processes": (
        lambda p: change(p / RUN / "machine.toml", '"processes" = 1', '"processes" = 2'),
        "was not on one GPU",
    ),
    "claimed time": (
        lambda p: json_change(p / RUN / "result.json", lambda r: r["times"].update(training=240)),
        "its log has steps for",
    ),
    "log": (
        lambda p: log_change(p / RUN / "metrics.jsonl", "step", slower),
        "its log has steps for",
    ),
    "evaluation": (
        lambda p: log_change(p / RUN / "metrics.jsonl", "held_out", other_loss),
        "the last evaluation in its log is not that of its result",
    ),
    "tunings": (
        lambda p: json_change(p / SST2, lambda r: r["cells"][0]["seeds"]["0"].update(accuracy=90)),
        "the mean of sst2 is not that of its tunings",
    ),
}


def test_an_entry_that_agrees_with_its_records_is_taken(copy: Path) -> None:
    there = ("--board", str(copy / "board"))
    assert "README.md: is not up to date" in tool("--check", *there).stderr  # it had two rows
    assert tool(*there).returncode == 0 and tool("--check", *there).returncode == 0
    assert "roberta-small" not in (copy / "board" / "README.md").read_text(encoding="utf-8")
    assert tool("--check").returncode == 0  # what is shipped is that of the whole board


@pytest.mark.parametrize("fault", FAULTS)
def test_an_entry_that_its_records_contradict_is_refused(copy: Path, fault: str) -> None:
    spoil, sentence = FAULTS[fault]
    spoil(copy)
    done = tool("--check", "--board", str(copy / "board"))
    assert done.returncode == 1 and sentence in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_measured_and_entered_is_shown(copy: Path) -> None:
    pairs(copy)
    assert "says" not in tool("--check", "--board", str(copy / "board")).stderr


def test_the_figures_of_an_entry_come_from_its_records(copy: Path) -> None:
    change(copy / OWN, "86.58", "12.3")
    assert tool("--state", str(copy / "board" / ENTRY)).returncode == 0
    assert "sst2 = 86.58" in (copy / OWN).read_text(encoding="utf-8")
    assert "says" not in tool("--check", "--board", str(copy / "board")).stderr


def entry(recipe: str, minutes: float, loss: float | None, text: str = "abc") -> BoardEntry:
    scores = {} if loss is None else {"own": loss}
    return BoardEntry(recipe, "2026-12-01", recipe, "NVIDIA H200", minutes, 3, "web", text, scores)


HERE = {"fingerprint": ["abc"], "gpu": "NVIDIA A100", "budget_seconds": 300.0, "processes": 1}


def test_a_run_stands_among_those_that_took_no_longer() -> None:
    entries = [entry("slow", 20, 1.7), entry("good", 5, 2.0), entry("bad", 4.9, 2.3)]
    fair = board.rivals(HERE, 5.0, entries)
    assert [rival.recipe for rival in fair] == ["good", "bad"]
    lines = board.standing(2.1, 5.0, fair)
    assert "place 2 of 3" in lines[0] and "this run" in lines[2] and "bad" in lines[3]
    assert "place 1 of 3" in board.standing(1.9, 5.0, fair)[0]
    assert [rival.recipe for rival in board.rivals(HERE, 20.0, entries)] == ["slow", "good", "bad"]


def test_a_run_that_cannot_be_compared_is_told_why() -> None:
    expected = {
        "another text (fingerprint abc)": [entry("good", 5, 2.0, "xyz")],
        "none has a loss": [entry("good", 5, None)],
        "took at most 5.0 minutes": [entry("good", 20, 2.0)],
    }
    for sentence, entries in expected.items():
        assert sentence in (board.obstacle(HERE, 5.0, entries) or "")
    assert "one GPU" in (board.obstacle({**HERE, "processes": 2}, 5.0, []) or "")
    assert board.obstacle(HERE, 5.0, [entry("good", 5, 2.0)]) is None


def test_the_board_concerns_minutes_on_a_gpu_by_swift_or_on_its_texts() -> None:
    known = {**HERE, "fingerprint": [board.board()[0].fingerprint]}
    assert board.concerns("swift", HERE) and board.concerns("roberta", known)
    assert not board.concerns("roberta", HERE) and not board.concerns("roberta", {"gpu": "x"})
    assert not board.concerns("swift", {**HERE, "gpu": None})
    assert not board.concerns("swift", {**HERE, "budget_seconds": None})

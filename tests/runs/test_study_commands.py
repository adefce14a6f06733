"""The command study: what it lists, what it plans, what it refuses, and a run to its page."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from support.pretrain_runs import store
from support.small_studies import BROKEN, DYNAMIC, STATIC, reviews, write_study

from clozelab.cli import main
from clozelab.cli.console import err, out
from clozelab.studies import spec as studies

WORDS = ("--device", "cpu", "--workers", "0")


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    for console in (out, err):
        monkeypatch.setattr(console, "_width", 200)


def captured_text(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_the_studies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study"]) == 0
    output = captured_text(capsys)
    for name in studies.names():
        assert name in output


def test_a_plan_is_shown_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write_study(tmp_path / "masks.toml", seeds=3))
    folder = tmp_path / "out"
    options = ["--data", store("wordpiece"), "--budget", "5steps", *WORDS]
    assert main(["study", file, *options, "--plan", "--out", str(folder)]) == 0
    output = captured_text(capsys)
    assert "6 cells: 2 variants × 3 seeds" in output and "fresh masks" in output
    assert not folder.exists() and sorted(path.name for path in tmp_path.iterdir()) == [
        "masks.toml"
    ]
    assert "unigram plateau" not in output  # no recorded run is as small as these
    assert main(["study", file, "--plan"]) == 0  # before there is any text
    assert "corruption.copies=0" in captured_text(capsys)


def test_signs_of_markup_in_a_study_are_shown_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_study(tmp_path / "masks.toml")
    text = file.read_text(encoding="utf-8").replace("fresh masks", "fresh [cls] and [/s]")
    file.write_text(text, encoding="utf-8")
    assert main(["study", str(file), "--plan"]) == 0
    assert "fresh [cls] and [/s]" in captured_text(capsys)


def test_a_plan_says_that_one_seed_decides_nothing_and_what_a_measure_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measures = ["held_out.masked_lm", "pairs.blimp", "pairs.blmp", "probe.sst-2"]
    file = write_study(tmp_path / "masks.toml", measures=measures)
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('[paper]\nname = "RoBERTa"\nsource = "Table 1"\n', ""))
    options = ["--data", store("wordpiece"), "--budget", "5steps", *WORDS, "--tasks"]
    assert main(["study", str(file), *options, "--plan"]) == 0
    output = " ".join(captured_text(capsys).split())
    assert "2 cells: 2 variants × 1 seed, without fine-tuning" in output
    assert "one seed cannot separate an effect from chance; use more --seeds" in output
    assert "blimp is not set; give --task-data DIR or set CLOZELAB_DATA" in output
    assert "blmp is left out: --pairs blmp: is neither a file nor a known set; did you" in output
    assert "probe.sst-2 is left out: sst-2: is not a task to probe; did you mean sst2?" in output
    assert "stated effect" in output and "paper's effect" not in output
    # A lower loss is a positive effect; a negative one contradicts the claim.
    text = file.read_text(encoding="utf-8")
    assert "contradict" not in output
    file.write_text(
        text.replace('says = "Fresh masks are', 'effect = -0.1\nsays = "Fresh masks are')
    )
    assert main(["study", str(file), "--plan", "--seeds", "3"]) == 0
    output = " ".join(captured_text(capsys).split())
    assert "1 of 1 effects contradict their claims" in output
    assert "would probably stay undecided" not in output


def test_a_plan_warns_of_runs_too_short_to_leave_the_plateau(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write_study(tmp_path / "masks.toml", set=[]))
    options = ["--data", store("wordpiece"), "--size", "tiny", "--plan", *WORDS]
    for budget, warned in (("2steps", True), ("900Mtok", False)):
        assert main(["study", file, *options, "--budget", budget]) == 0
        assert ("2 of 2 variants end before any recorded run" in captured_text(capsys)) == warned


def test_old_names_in_a_study_s_file_are_warned_of_and_not_in_a_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hides = {
        "name": "hides",
        "says": "more",
        "set": ["masking.rate=0.4"],
        "finetune": ["rate=1e-4"],
    }
    file = str(write_study(tmp_path / "masks.toml", STATIC, hides))
    options = ["--data", store("wordpiece"), "--budget", "1steps", *WORDS]
    assert main(["study", file, *options, "--out", str(tmp_path / "out")]) == 0
    output = captured_text(capsys)
    assert output.count("masking.rate is now called masking.mask_rate; use that name") == 1
    assert "rate is now called learning_rate" in output and "sequences" not in output
    assert main(["report", str(tmp_path / "out"), "--out", str(tmp_path / "page.html")]) == 0
    assert "today" not in captured_text(capsys)


def test_a_study_runs_to_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write_study(tmp_path / "masks.toml", BROKEN, STATIC, DYNAMIC))
    folder = tmp_path / "out"
    command = ["study", file, "--data", store("wordpiece"), "--budget", "2steps", *WORDS]
    command += ["--out", str(folder), "--tasks", reviews(), "--variants", "static,dynamic"]
    assert main(command) == 0
    output = captured_text(capsys)
    assert "reviews.accuracy" in output and "2 of 2 cells" in output
    for name in ("page.html", "page.md", "study.toml", "plan.json", "result.json"):
        assert (folder / name).is_file()
    kept_study = studies.read(folder / "study.toml")
    assert [variant.name for variant in kept_study.variants] == [
        "static",
        "dynamic",
    ] and kept_study.name == "masks"
    # One more variant, which fails: the rest stands, and how to try again is said.
    assert main([*command[:-1], "static,dynamic,broken"]) == 2
    output = captured_text(capsys)
    assert "1 of 3 cells failed (broken/seed-0)" in output and "the same command" in output
    result = json.loads((folder / "result.json").read_text())
    assert [cell["variant"] for cell in result["cells"] if not cell["failed"]] == [
        "static",
        "dynamic",
    ]


def test_a_question_of_one_s_own_needs_no_paper_and_ends_with_its_verdicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_study(tmp_path / "masks.toml")
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('[paper]\nname = "RoBERTa"\nsource = "Table 1"\n', ""))
    command = ["study", str(file), "--data", store("wordpiece"), "--budget", "2steps", *WORDS]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    assert "” Not tested at this scale: dynamic against static" in captured_text(capsys)
    page = (tmp_path / "out" / "page.md").read_text(encoding="utf-8")
    assert "2 variants × 1 seed with" in page and "After" not in page.split("## ")[0]
    assert "Scores are on dev sets" not in page
    assert studies.read(tmp_path / "out" / "study.toml").paper is None


def test_a_study_runs_to_its_page_when_nobody_reads_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, folder = str(write_study(tmp_path / "masks.toml", STATIC)), tmp_path / "out"
    command = ["study", file, "--data", store("wordpiece"), "--budget", "2steps", *WORDS]
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main([*command, "--out", str(folder)]) == 0
    assert (folder / "page.html").is_file()
    (cell,) = json.loads((folder / "result.json").read_text())["cells"]
    assert cell["steps"] == 2 and not cell["failed"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["roberta-maskin"], "did you mean roberta-masking"),
        (["FILE"], "needs a corpus to train on"),
        (["FILE", "--data", "nowhere", "--plan"], "nowhere"),
        (["FILE", "--data", "CORPUS"], "needs --out"),
        (["FILE", "--data", "CORPUS", "--plan", "--budget", "soon"], "not a budget"),
        (["FILE", "--data", "CORPUS", "--plan", "--size", "huge"], "size huge is unknown"),
        (["FILE", "--data", "CORPUS", "--plan", "--seeds", "0"], "at least 1"),
        (["FILE", "--data", "CORPUS", "--plan", "--tasks", "sst3"], "did you mean sst2"),
        (["FILE", "--data", "CORPUS", "--plan", "--tasks", "sst2", "--task-data", "."], "sst2"),
        (["FILE", "--data", "CORPUS", "--plan", "--tasks", "films=x"], "KIND=FOLDER"),
        (["FILE", "--data", "CORPUS", "--plan", "--tasks", "classify=x"], "no file named train"),
        (["FILE", "--data", "CORPUS", "--plan", "--variants", "fresh"], "variant fresh is unknown"),
        (["FILE", "--data", "CORPUS", "--plan", "--at-once", "0"], "at least 1"),
        (["FILE", "--data", "CORPUS", "--plan", "--set", "masking.rat=1"], "masking.rat"),
        (["FILE", "--data", "CORPUS", "--out", "FOLDER", "--budget", "1steps"], "other files"),
        (["FILE", "--data", "CORPUS", "--out", "NEW", "--budget", "1steps", "--on", "x"], "ray://"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_words_are_refused_in_a_sentence(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("mine")
    places = {
        "FILE": str(write_study(tmp_path / "masks.toml")),
        "CORPUS": store("wordpiece"),
        "FOLDER": "full",
        "NEW": "new",
    }
    assert main(["study", *(places.get(word, word) for word in arguments), *WORDS]) == 2
    output = captured_text(capsys)
    assert sentence in output and "clozelab: " in output
    assert "Traceback" not in output and not (tmp_path / "new").exists()

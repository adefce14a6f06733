"""Held-out losses under every masking strategy: the matrix of several models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.pretrain_runs import pretrain_job, run_pretraining, store

import clozelab
from clozelab import cli
from clozelab.pretraining.held_out import evaluate
from clozelab.runs.events import means

torch.set_num_threads(1)
QUIET = {"device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A BERT with a pair objective, and a SpanBERT."""
    out = tmp_path_factory.mktemp("matrix")
    for name in ("bert", "spanbert"):
        run_pretraining(pretrain_job(name, steps=2), out / name)
    return [str(out / "bert"), str(out / "spanbert")]


def test_every_model_meets_every_strategy_in_the_same_blocks(places: list[str]) -> None:
    masks = ["token", "span,whole_word"]
    matrix = clozelab.matrix(places, data=store("wordpiece"), masks=masks, blocks=60, **QUIET)
    assert matrix.models == ("bert", "spanbert") and matrix.masks == ("token", "span", "whole_word")
    assert matrix.format == "full_sentences" and matrix.length == 32 and 2 < matrix.blocks <= 60
    first = matrix.cells[1][0]
    assert first and repr(matrix).splitlines()[1].startswith(f"spanbert: token {first.loss:.3f}, ")
    for column in zip(*matrix.cells, strict=True):
        assert all(cell is not None and cell.error > 0 for cell in column)
        assert len({cell.targets for cell in column if cell}) == 1
        assert len({cell.loss for cell in column if cell}) == 2


def test_of_one_model_it_is_what_evaluate_says(places: list[str]) -> None:
    data = store("wordpiece")
    matrix = clozelab.matrix(places[1:], data=data, masks=["bert"], blocks=40, **QUIET)
    theirs = means(evaluate(places[1], data, masks="bert", blocks=40, device="cpu"))["masked_lm"]
    cell = matrix.cells[0][0]
    assert cell is not None and matrix.pairs == {}
    assert cell.loss == pytest.approx(theirs["loss"], rel=1e-5)
    assert cell.accuracy == pytest.approx(theirs["accuracy"])


def test_pair_objectives_are_asked_both_questions(places: list[str]) -> None:
    data = store("wordpiece")
    matrix = clozelab.matrix(places, data=data, masks=["token"], blocks=8, pairs=50, **QUIET)
    assert set(matrix.pairs) == {"next", "order"}
    cell, nothing = matrix.pairs["order"]
    assert nothing is None and cell is not None and 0 <= cell.accuracy <= 1
    theirs = means(evaluate(places[0], data, pairs="order", blocks=50, device="cpu"))
    assert cell.loss == pytest.approx(theirs["next_sentence"]["loss"], rel=1e-4)
    none = clozelab.matrix(places, data=data, masks=["token"], blocks=8, pairs=0, **QUIET)
    assert none.pairs == {}


def test_a_model_that_predicts_otherwise_has_no_cell(tmp_path: Path) -> None:
    run_pretraining(pretrain_job("gpt", steps=1), tmp_path / "gpt")
    data = store("char_bpe")
    matrix = clozelab.matrix(str(tmp_path / "gpt"), data=data, masks="token", blocks=8, **QUIET)
    assert matrix.cells == ((None,),)


def test_without_names_the_models_own_masks_are_taken(
    places: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["matrix", *places, "--data", store("wordpiece"), "--blocks", "20", "--pairs", "0"]
    outputs = ["--out", str(tmp_path / "m.json"), "--picture", str(tmp_path / "m.svg")]
    assert cli.main([*command, *outputs, "--device", "cpu"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[-2:] == ["bert", "spanbert"] and len(rows) == 2
    record = json.loads((tmp_path / "m.json").read_text())
    assert record["masks"] == ["bert", "spanbert"] and record["data"]["fingerprint"]
    assert len(record["cells"][0][0]["parts"]) >= 2
    drawn = (tmp_path / "m.svg").read_text()
    assert drawn.count('<rect class="cell') == 4 and "xmlns" in drawn


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--masks", "tokem"], "--masks tokem: is neither a strategy nor a recipe; did you mean"),
        (["--masks", "nothing"], "--masks nothing: masks nothing to predict"),
        (["--blocks", "1"], "--blocks 1: must be at least 2"),
        (["--pairs", "1"], "--pairs 1: must be 0, or at least 2"),
        (["--picture", "m.png"], "--picture m.png: must end in .svg"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    places: list[str], capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    command = ["matrix", places[0], "--data", store("wordpiece"), "--device", "cpu"]
    assert cli.main([*command, *arguments]) == 2
    assert says in capsys.readouterr().err

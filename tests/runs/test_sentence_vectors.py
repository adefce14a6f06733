"""Sentence vectors from pairs in files: read as rows, trained on, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.pretrain_runs import teacher

import clozelab
from clozelab.cli import main
from clozelab.runs.directory import Run
from clozelab.text.store import Corpus

torch.set_num_threads(1)
ROWS = [
    ("A cat sat on the mat. It slept.", "The cat was on a mat.", "A dog ran."),
    ("He bought bread.", "Bread was what he bought.", "She sold\nthe house."),
    ("It rains today.", "Today there is rain.", ""),
    ("Only one.", "", "no positive, so this is not read"),
] * 6


def written(folder: Path, kind: str, *, rows: Any = ROWS) -> Path:
    """The rows as a file of a kind."""
    names, file = ("text", "positive", "negative"), folder / f"pairs.{kind}"
    if kind == "jsonl":
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    elif kind == "parquet":
        arrow = pytest.importorskip("pyarrow")
        columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        pytest.importorskip("pyarrow.parquet").write_table(arrow.table(columns), file)
        return file
    else:
        cells = [[cell.replace("\n", " ") for cell in row] for row in [names, *rows]]
        lines = ["\t".join(row) for row in cells]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The rows of three files."""
    folder = tmp_path_factory.mktemp("pairs")
    return clozelab.build_corpus(
        [written(folder, kind) for kind in ("tsv", "jsonl", "parquet")],
        out=folder / "corpus",
        field="text,positive,negative",
        tokenizer_from=teacher(),
        held_out=0.0,
        workers=1,
    )


def test_the_fields_of_a_row_are_the_sentences_of_a_document(corpus: Corpus) -> None:
    documents = corpus.documents()
    assert np.diff(documents.documents).tolist() == [3, 3, 2] * 18  # though one cell has two
    texts = [
        corpus.tokenizer.decode(documents.ids[slice(*documents.sentences[at : at + 2])].tolist())
        for at in (0, 1, 5)
    ]
    assert texts == [
        "a cat sat on the mat. it slept.",
        "the cat was on a mat.",
        "she sold the house.",
    ]


def test_a_run_learns_from_pairs_and_their_negatives(corpus: Corpus, tmp_path: Path) -> None:
    command = ["pretrain", "simcse", "--from", teacher(), "--data", str(corpus.path)]
    command += ["--device", "cpu", "--set", "blocks.use=sentence_rows", "--set", "blocks.views=3"]
    command += ["--set", "schedule.batch_size=4", "--set", "optimiser.learning_rate=1e-3"]
    assert main([*command, "--budget", "3steps", "--out", str(tmp_path / "run")]) == 0
    run = Run.open(tmp_path / "run")
    steps = list(run.events("step"))
    assert len(steps) == 3
    result = run.result()
    assert result is not None and result["steps"] == 3
    vectors = clozelab.embed(tmp_path / "run", ["a cat", "a dog"], pool="cls").vectors
    before = clozelab.embed(teacher(), ["a cat", "a dog"], pool="cls").vectors
    assert np.abs(vectors - before).max() > 1e-4


@pytest.mark.parametrize(
    ("rows", "views", "sentence"),
    [
        ([(a, b, "") for a, b, _ in ROWS[:3]] * 6, 3, "a text, its positive and its negative"),
        ([("word word.", "", "")] * 9, 2, "rows of less than two texts skipped: 9"),
    ],
)
def test_rows_without_what_they_need_are_refused_and_nothing_is_written(
    rows: Any, views: int, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, "tsv", rows=rows)
    command = ["corpus", "build", str(file), "--out", str(tmp_path / "corpus"), "--held-out", "0"]
    command += ["--field", "text,positive,negative", "--tokenizer-from", teacher()]
    code = main(command)
    if views == 3:
        assert code == 0
        command = ["pretrain", "simcse", "--from", teacher(), "--data", str(tmp_path / "corpus")]
        command += ["--set", "blocks.use=sentence_rows", "--set", "blocks.views=3"]
        code = main([*command, "--out", str(tmp_path / "run"), "--device", "cpu"])
    message = " ".join(capsys.readouterr().err.split())
    assert code == 2 and sentence in message and "Traceback" not in message
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_field_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, "tsv")
    command = ["corpus", "build", str(file), "--out", str(tmp_path / "corpus")]
    assert main([*command, "--field", "text,positiv"]) == 2
    assert "no field 'positiv'" in " ".join(capsys.readouterr().err.split())

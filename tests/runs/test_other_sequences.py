"""From sequences with a structure to an encoder that found it: the example of the guide."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch

import clozelab
from clozelab.cli import main
from clozelab.text.store import Corpus

torch.set_num_threads(1)
EXAMPLE = Path(__file__).parents[2] / "examples" / "motifs.py"


@pytest.fixture(scope="module")
def sequences_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the example, their corpus and an encoder."""
    folder = tmp_path_factory.mktemp("sequences")
    runpy.run_path(str(EXAMPLE))["write"](folder, sequences=3000, labelled=16, dev=100)
    lines = str(folder / "sequences.txt")
    corpus = clozelab.build_corpus(
        lines, out=folder / "corpus", layout="lines", sentences="none", recipe="dna", k=4, workers=1
    )
    settings = ["blocks.length=32", "schedule.batch_size=48", "optimiser.learning_rate=5e-3"]
    clozelab.pretrain(
        "dna", data=corpus, size="2x64", budget="120steps", set=settings, out=folder / "run"
    )
    return folder


def test_a_sequence_is_a_document_of_kmers(sequences_dir: Path) -> None:
    corpus = Corpus.open(sequences_dir / "corpus")
    documents = corpus.documents("train")
    lines = (sequences_dir / "sequences.txt").read_text().split()
    assert len(documents.documents) - 1 + corpus.manifest["splits"]["held_out"]["documents"] == 3000
    assert documents.sentences[1] == 24 and corpus.decode(documents.ids[:24]) in lines
    assert corpus.manifest["sentences"] == "none"


def test_a_pretrained_encoder_beats_random_weights(sequences_dir: Path) -> None:
    scores = []
    for fresh in (False, True):
        tuned = clozelab.finetune(
            sequences_dir / "run",
            "classify",
            train=sequences_dir / "train.tsv",
            dev=sequences_dir / "dev.tsv",
            fresh=fresh,
            set=["steps=20"],
            out=sequences_dir / f"tuned-{fresh}",
        )
        result = json.loads((tuned.path / "result.json").read_text(encoding="utf-8"))
        scores.append(result["selected"])
    assert scores[0] > 90
    assert scores[0] > scores[1] + 15


def test_stretches_are_tagged_in_place(sequences_dir: Path) -> None:
    tuned = clozelab.finetune(
        sequences_dir / "run",
        "tag",
        train=sequences_dir / "train.conll",
        dev=sequences_dir / "dev.conll",
        set=["steps=2"],
        out=sequences_dir / "tagged",
    )
    [tags] = clozelab.load(tuned).predict(["ACGT NNNN acgt AC"])
    assert len(tags.tags) == 4


def test_odd_sequences_are_read_and_counted(
    sequences_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = sequences_dir / "odd.txt"
    odd = "NNNNacgtRYAC\n" + "-" * 8 + "ACGT\n"
    file.write_text("ACGT" * 3000 + "\n\n   \n" + odd * 20)
    command = [
        "corpus",
        "build",
        str(file),
        "--out",
        str(sequences_dir / "odd"),
        "--layout",
        "lines",
    ]
    options = ["--sentences", "none", "--tokenizer", "kmer", "--k", "4", "--held-out", "0"]
    assert main([*command, *options, "--workers", "1"]) == 0
    output = capsys.readouterr().err
    documents = Corpus.open(sequences_dir / "odd").documents("train")
    assert len(documents.documents) - 1 == 41  # an empty line is none
    assert len(documents.ids) == 3000 + 20 * (5 + 2)
    assert "sentences over 10,000 characters cut: 1" in output
    assert "tokens unknown to the tokenizer ([UNK]), of 3,140: 60" in output
    assert "smaller than" not in output  # a vocabulary of k-mers is as large as it can be


def test_kmers_across_lines_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dna.txt").write_text("ACGTACGTAC\n" * 20)
    command = ["corpus", "build", str(tmp_path / "dna.txt"), "--tokenizer", "kmer"]
    assert main([*command, "--out", str(tmp_path / "a")]) == 0
    assert "give --layout lines --sentences none" in " ".join(capsys.readouterr().err.split())
    lines = ["--layout", "lines", "--sentences", "none"]
    assert main([*command, *lines, "--out", str(tmp_path / "b")]) == 0
    assert "--layout lines" not in capsys.readouterr().err

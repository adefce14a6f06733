"""Building a corpus by the command line: every kind of input, and the same bytes however built."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import site
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.corpora import (
    ENVIRONMENT,
    SOURCE,
    build,
    decoded,
    digests,
    refused,
    run,
    start,
    texts,
    write,
)
from support.processes import run_process

from clozelab import data
from clozelab.text.reading.layouts import Reading
from clozelab.text.store import Corpus, shards

TWO = ["One cat sat. Two dogs ran.", "Three birds flew away."]
LINES = "One cat sat.\nTwo dogs ran.\n\nThree birds flew away.\n"


def packed(kind: str, text: bytes) -> bytes:
    if kind == "gz":
        return gzip.compress(text)
    if kind == "xz":
        return lzma.compress(text)
    whole: bytes = pa.compress(text, codec="zstd", asbytes=True)
    return whole


def put(folder: Path, name: str) -> list[str]:
    """Two documents as an input of some kind, and the words of the command that name it."""
    file = folder / name
    rows = "".join(json.dumps({"text": text}) + "\n" for text in TWO)
    table = pa.table({"text": TWO})
    match name:
        case "sentences.txt":
            file.write_text(LINES, encoding="utf-8")
            return [str(file), "--layout", "sentences"]
        case "lines.txt":
            file.write_text("\n".join(TWO), encoding="utf-8")
            return [str(file), "--layout", "lines"]
        case "a.jsonl.gz" | "a.jsonl.xz" | "a.jsonl.zst":
            file.write_bytes(packed(name.rsplit(".", 1)[1], rows.encode()))
        case "a.parquet":
            pq.write_table(table, file)
        case "folder" | "*.txt":
            folder = folder / "folder"
            folder.mkdir()
            for number, text in enumerate(TWO):
                (folder / f"{number}.txt").write_text(text, encoding="utf-8")
            return [str(folder / name if name == "*.txt" else folder)]
        case "field.jsonl":
            file.write_text(rows.replace('"text"', '"body"'), encoding="utf-8")
            return [str(file), "--field", "body"]
        case "dataset":  # as datasets.DatasetDict.save_to_disk writes it
            split = file / "validation"
            split.mkdir(parents=True)
            (file / "dataset_dict.json").write_text('{"splits": ["validation"]}')
            (split / "dataset_info.json").write_text("{}")
            state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
            (split / "state.json").write_text(json.dumps(state))
            with pa.ipc.new_stream(split / "data-00000-of-00001.arrow", table.schema) as stream:
                stream.write_table(table)
            return [str(file), "--split", "validation"]
    return [str(file)]


@pytest.mark.parametrize(
    "name",
    [
        *("sentences.txt", "lines.txt", "a.jsonl.gz", "a.jsonl.xz", "a.jsonl.zst", "a.parquet"),
        *("folder", "*.txt", "field.jsonl", "dataset"),
    ],
)
def test_every_kind_of_input_gives_the_same_documents(tmp_path: Path, name: str) -> None:
    options = ["--tokenizer", "byte_bpe", "--held-out", "0", "--workers", "1"]
    result = run("corpus", "build", *put(tmp_path, name), "--out", str(tmp_path / "c"), *options)
    assert result.returncode == 0, result.stderr
    documents = [text.replace("\n", " ") for text in decoded(Corpus.open(tmp_path / "c"))]
    assert documents == TWO


def test_wrapped_prose_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One cat\nsat. Two dogs\nran.\n\nThree.\n", encoding="utf-8")
    reading = Reading(layout="prose")
    corpus = build(str(tmp_path / "a.txt"), tmp_path / "c", reading=reading, held_out=0)
    assert decoded(corpus) == ["One cat sat. Two dogs ran.\nThree."]


JSON_LINES = "".join(json.dumps({"text": text}) + "\n" for text in TWO)


@pytest.mark.parametrize("text", [LINES, JSON_LINES, "\ufeff" + JSON_LINES])
def test_standard_input_is_read(tmp_path: Path, text: str) -> None:
    outputs = []
    for name in ("a", "b"):
        arguments = ["-", "--out", str(tmp_path / name), "--layout", "sentences", "--held-out", "0"]
        result = run("corpus", "build", *arguments, "--workers", "1", text=text)
        assert result.returncode == 0, result.stderr
        outputs.append(digests(tmp_path / name))
    corpus = Corpus.open(tmp_path / "a")
    assert corpus.manifest["splits"]["train"]["documents"] == 2
    assert corpus.manifest["inputs"] == ["standard input"]
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"body": "One"}\n', "standard input:1 has no field 'text', only body; give --field body"),
        (" \n", "there is no text in standard input (empty files: 1)"),
    ],
)
def test_standard_input_that_is_refused_is_named_and_leaves_nothing(
    tmp_path: Path, text: str, problem: str
) -> None:
    command = ["corpus", "build", "-", "--out", str(tmp_path / "c"), "--workers", "1"]
    assert problem in refused(run(*command, text=text))
    assert not (tmp_path / "c").exists()


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """A text of several shards, and the files of its corpus as one worker makes them."""
    folder = tmp_path_factory.mktemp("many")
    file = write(folder / "a.jsonl", texts(60))
    return file, build_sharded(folder, file, workers=1)


def build_sharded(folder: Path, file: str, *, workers: int) -> dict[str, str]:
    """The files of a corpus of some shards, phrases and all."""
    out = folder / "c"
    arguments = [file, "--out", str(out), "--vocabulary", "1000", "--phrases", "--held-out", "0.2"]
    _, process = start(folder, *arguments, shard=8000, workers=workers)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 0, errors
    return digests(out)


@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_workers_do_not_change_a_byte(
    tmp_path: Path, sharded: tuple[str, dict[str, str]], workers: int
) -> None:
    file, expected = sharded
    assert build_sharded(tmp_path, file, workers=workers) == expected
    assert "manifest.json" in expected and len(expected) == 16


def test_shards_do_not_change_the_tokens(
    tmp_path: Path, sharded: tuple[str, dict[str, str]]
) -> None:
    """One worker with other shards; nor is the corpus another when it is built again."""
    file, expected = sharded
    arguments = [file, "--out", str(tmp_path / "c"), "--vocabulary", "1000", "--phrases"]
    result = run("corpus", "build", *arguments, "--held-out", "0.2", "--workers", "1")
    assert result.returncode == 0, result.stderr
    assert digests(tmp_path / "c") == expected


def test_workers_and_shards_do_not_change_where_documents_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = texts(150)
    file = write(tmp_path / "a.jsonl", ["\n".join(short[n::5]) for n in range(5)])
    arguments = [file, "--vocabulary", "1000", "--out"]
    _, process = start(tmp_path, *arguments, str(tmp_path / "three"), shard=8000, workers=3)
    assert process.wait(timeout=60) == 0
    expected = digests(tmp_path / "three")
    for shard in (8000, 1 << 21):
        monkeypatch.setattr(shards, "SHARD", shard)
        assert run("corpus", "build", *arguments, str(tmp_path / str(shard))).returncode == 0
        assert digests(tmp_path / str(shard)) == expected
    assert Corpus.open(tmp_path / "three").manifest["held_out"]["parts"] > 0


def test_a_vocabulary_the_text_cannot_fill_is_said(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", TWO)
    result = run("corpus", "build", file, "--out", str(tmp_path / "c"), "--vocabulary", "5000")
    assert result.returncode == 0
    assert "vocabulary smaller than the 5,000 asked for" in result.stderr
    assert Corpus.open(tmp_path / "c").vocabulary.size < 200


def test_names_with_signs_of_markup_are_shown_whole(tmp_path: Path) -> None:
    (tmp_path / "w[").mkdir()
    file = write(tmp_path / "w[" / "bold].jsonl", TWO)
    strange = write(tmp_path / "w[" / "a:100:[b]c.jsonl", TWO)
    result = run("corpus", "build", file, strange, "--out", str(tmp_path / "c"))
    assert result.returncode == 0, result.stderr
    output = result.stdout.replace("\n", "").replace(" ", "")
    assert "w[/bold].jsonl" in output
    assert "a:100:[b]c.jsonl" in output


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A machine with only what cannot be done without: no nupunkt, no rjieba, nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    needed = [
        "numpy",
        "numpy.libs",
        "tokenizers",
        "pyarrow",
        "rich",
        "filelock",
        "markdown_it",
        "mdurl",
        "pygments",
    ]
    for place in map(Path, [*site.getsitepackages(), *sys.path]):
        for name in needed:
            if (place / name).exists() and not (folder / name).exists():
                (folder / name).symlink_to(place / name)
    return {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(folder)])}


@pytest.mark.parametrize("language", ["English", "Chinese"])
def test_a_bare_machine_builds_and_says_what_it_lacks(
    tmp_path: Path, bare: dict[str, str], language: str
) -> None:
    file = write(tmp_path / "a.jsonl", texts(5)) if language == "English" else str(data.chinese())
    command = ["corpus", "build", file, "--out", str(tmp_path / "c"), "--vocabulary", "900"]
    result = run_process(
        [sys.executable, "-S", "-m", "clozelab", *command, "--workers", "1"],
        env=bare,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "nupunkt is not installed: sentences are split by a plain rule" in result.stderr
    assert "rjieba is not installed: Chinese words are not segmented" in result.stderr
    manifest = Corpus.open(tmp_path / "c").manifest
    assert manifest["sentences"].startswith("plain") and manifest["segmenter"] is None
    assert manifest["splits"]["train"]["sentences"] > 20

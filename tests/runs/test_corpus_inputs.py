"""Odd inputs of a build, by the command itself: each ends in one sentence, or is read and said."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from support.corpora import build, decoded, refused, run, texts, write
from tokenizers import Tokenizer

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.files import mark
from clozelab.text.loading import load
from clozelab.text.reading.layouts import Reading
from clozelab.text.reading.sources import find
from clozelab.text.store import Corpus
from clozelab.text.store import build as building
from clozelab.text.tokenizers import ByteBpe, Wordpiece


def put(folder: Path, kind: str) -> Path:
    """Something that is no text, or cannot be read."""
    place = folder / "input"
    match kind:
        case "empty file":
            place.touch()
        case "empty folder":
            place.mkdir()
        case "binary":
            place.write_bytes(random.Random(1).randbytes(100_000))
        case "program":
            place.write_bytes(b"\x7fELF" + bytes(3000) + b"\x90" * 3000)
        case "pipe":
            os.mkfifo(place)
        case "device":
            return Path("/dev/zero")
        case "corpus":
            mark(place, "corpus")
        case "circle":
            place.symlink_to(place)
        case "circle in a folder":
            place.mkdir()
            (place / "a").symlink_to(place / "b")
            (place / "b").symlink_to(place / "a")
        case "long name":
            return folder / ("x" * 5000)
    return place


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("empty file", "there is no text in"),
        ("empty folder", "has no text files; name another folder"),
        ("binary", "is not UTF-8"),
        ("program", "looks like UTF-16 or is not text"),
        ("pipe", "is a pipe or a device, not a file; name - and send the text to standard input"),
        ("device", "is a pipe or a device, not a file; name - and send the text to standard input"),
        ("corpus", "is a corpus that clozelab made, not text; name the text itself"),
        ("circle", "is a link to"),
        ("circle in a folder", "is a link to"),
        ("long name", "may not be read"),
    ],
)
def test_what_is_no_text_is_one_sentence(tmp_path: Path, kind: str, problem: str) -> None:
    place, out = put(tmp_path, kind), tmp_path / "c"
    with pytest.raises(UserError) as caught:
        build(str(place), out)
    assert problem in str(caught.value) and "\n" not in str(caught.value)
    assert not out.exists()


@pytest.mark.parametrize("text", ["ガラスがバスで割れた。", "मैं दिल्ली में हूँ। वह कि यह है।"])
def test_scripts_whose_marks_are_removed_are_pointed_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_text(f"{text}\n" * 40, encoding="utf-8")
    for tokenizer, removed in (
        (Wordpiece(vocabulary=400), True),
        (Wordpiece(vocabulary=400, cased=True), False),
        (ByteBpe(vocabulary=400), False),
    ):
        counts = Counts()
        out = tmp_path / f"{type(tokenizer).__name__}-{tokenizer.cased}"
        build(str(tmp_path / "a.txt"), out, tokenizer, counts=counts)
        said = [what for what in counts.numbers if "marks the tokenizer removes" in what]
        assert bool(said) == removed
    counts = Counts()
    (tmp_path / "b.txt").write_text("Déjà vu à Genève.\n" * 40, encoding="utf-8")
    build(str(tmp_path / "b.txt"), tmp_path / "c", Wordpiece(vocabulary=400), counts=counts)
    assert not any("marks the tokenizer removes" in what for what in counts.numbers)


def test_the_command_says_it(tmp_path: Path) -> None:
    place = put(tmp_path, "pipe")
    message = refused(run("corpus", "build", str(place), "--out", str(tmp_path / "c")))
    assert "is a pipe or a device, not a file" in message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_may_not_be_written_is_one_sentence(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", texts(2))
    (tmp_path / "closed").mkdir(mode=0o500)
    command = ["corpus", "build", file, "--out", str(tmp_path / "closed" / "c")]
    assert "ermission denied" in refused(run(*command))


@pytest.mark.parametrize("inside", [False, True])
def test_a_name_that_is_no_utf8_is_read(tmp_path: Path, inside: bool) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")
    try:
        with open(name, "w", encoding="utf-8") as file:
            file.write("One cat sat. Two dogs ran.")
    except OSError:
        pytest.skip("this file system has no such names")
    out = Path(name).with_suffix(".corpus")
    corpus = build(str(tmp_path) if inside else name, out, held_out=0)
    assert decoded(corpus) == ["One cat sat. Two dogs ran."]
    assert corpus.manifest["inputs"] == [f"{tmp_path}/caf\\xe9.txt"]
    Corpus.open(out).check()


def test_a_folder_says_what_it_was_read_for(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("a.txt", "b.txt", "notes.md"):
        (folder / name).write_text(f"This stands in {name}.", encoding="utf-8")
    result = run("corpus", "build", str(folder), "--out", str(folder / "c"), "--held-out", "0")
    assert result.returncode == 0, result.stderr
    assert f"files read: .txt: 2 (first at {folder / 'a.txt'})" in result.stderr
    aside = f"files left aside: .md, read if named themselves: 1 (first at {folder / 'notes.md'})"
    assert aside in result.stderr
    assert len(Corpus.open(folder / "c").documents()) == 2


def test_the_build_says_what_it_held_out(tmp_path: Path) -> None:
    long = "\n".join(texts(100))
    (tmp_path / "a.txt").write_text(long, encoding="utf-8")
    command = ["corpus", "build", str(tmp_path / "a.txt"), "--vocabulary", "600"]
    result = run(*command, "--out", str(tmp_path / "c"))
    assert result.returncode == 0, result.stderr
    tokens = Corpus.open(tmp_path / "c").manifest["splits"]["held_out"]["tokens"]
    summary = f"{tokens:,} tokens, 1.0"
    assert summary in result.stdout and "of all: parts of 1 document" in result.stdout
    assert summary in run("corpus", "show", str(tmp_path / "c")).stdout


def test_a_held_out_share_that_is_missed_is_reported(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", ["The same text comes again."] * 400 + texts(2))
    out = tmp_path / "c"
    command = ["corpus", "build", str(file), "--out", str(out), "--vocabulary", "300"]
    result = run(*command, "--held-out", "0.05")
    assert result.returncode == 0, result.stderr
    splits = Corpus.open(out).manifest["splits"]
    share = splits["held_out"]["tokens"] / sum(split["tokens"] for split in splits.values())
    assert f"{share:.2%} of the tokens are held out, not 5.00%" in result.stderr


@pytest.mark.parametrize("token_id", [2**31, 2**32 - 1, 10**7])
def test_a_tokenizer_with_an_enormous_id_is_refused(tmp_path: Path, token_id: int) -> None:
    settings = json.loads(ByteBpe(vocabulary=300).train(iter(["One two."])).to_str())
    settings["added_tokens"].append(
        {
            **settings["added_tokens"][0],
            "id": token_id,
            "content": "<far>",
            "special": True,
        }
    )
    settings["model"]["vocab"]["<far>"] = token_id
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(UserError, match=r"'<far>' has the id [\d,]+ in a vocabulary of 267;"):
        load(tmp_path)
    file = write(tmp_path / "a.jsonl", texts(2))
    with pytest.raises(UserError, match=r"'<far>' has the id"):
        build(file, tmp_path / "c", Tokenizer.from_str(json.dumps(settings)))
    assert not (tmp_path / "c").exists()
    if token_id == 2**31:
        command = ["corpus", "build", file, "--out", str(tmp_path / "c"), "--tokenizer-from"]
        assert "number the tokens from 0 on" in refused(run(*command, str(tmp_path)))


@dataclass(frozen=True)
class Counting:
    """A tokenizer that counts the bytes it learns from."""

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()
    seen: ClassVar[list[int]] = []
    vocabulary: int = 300
    specials: tuple[str, ...] = ()

    def train(self, texts: Iterator[str]) -> Tokenizer:
        """Count, and be a byte BPE."""
        read = list(texts)
        self.seen.append(sum(len(text.encode()) for text in read))
        return ByteBpe(vocabulary=300).train(iter(read))


@pytest.mark.parametrize("packed", [False, True])
def test_the_sample_for_the_tokenizer_counts_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    short = texts(200)
    rows = "".join(json.dumps({"id": "0" * 400, "text": text}) + "\n" for text in short * 4)
    path = tmp_path / ("a.jsonl.gz" if packed else "a.jsonl")
    path.write_bytes(gzip.compress(rows.encode()) if packed else rows.encode())
    total = 4 * sum(len(text.encode()) for text in short)
    assert (path.stat().st_size < total // 2) == packed
    for limit in (total // 2, total * 2):
        monkeypatch.setattr(building, "_MOST_SAMPLE", limit)
        inputs = find([str(path)], Reading())
        training = building._trained_tokenizer(Counting(limit), inputs, tmp_path)
        for _ in training:
            pass
    half, whole = Counting.seen[-2:]
    assert total * 0.4 < half <= total // 2
    assert whole > total * 0.99  # line ends between paragraphs are not counted


def test_the_sample_does_not_depend_on_where_the_text_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "_MOST_SAMPLE", 20_000)
    prints = []
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        file = write(tmp_path / name / "a.jsonl", texts(200))
        corpus = build(file, tmp_path / name / "c", Wordpiece(vocabulary=400))
        prints.append(corpus.manifest["fingerprint"])
    assert prints[0] == prints[1]


def test_a_trained_tokenizer_that_was_damaged_is_trained_again(tmp_path: Path) -> None:
    file, tokenizers = write(tmp_path / "a.jsonl", texts(2)), []
    for _ in range(2):
        inputs = find([file], Reading())
        for _ in building._trained_tokenizer(ByteBpe(vocabulary=300), inputs, tmp_path):
            pass
        (tokenizer_file,) = tmp_path.glob("tokenizer-*.json")
        tokenizers.append(tokenizer_file.read_text(encoding="utf-8"))
        tokenizer_file.write_text(tokenizers[-1][:100], encoding="utf-8")
    assert tokenizers[0] == tokenizers[1]


def test_counts_say_what_a_build_left_aside(tmp_path: Path) -> None:
    counts = Counts()
    (tmp_path / "a.csv").write_text("text\nOne cat sat.\nTwo dogs ran.\n", encoding="utf-8")
    (tmp_path / "a.rst").write_text("Notes", encoding="utf-8")
    build(str(tmp_path), tmp_path / "c", counts=counts)
    assert counts.numbers["files read: .csv"] == 1
    assert counts.numbers["files left aside: .rst, read if named themselves"] == 1

"""Stores that are broken, and places that are taken: refused, by the file and with the remedy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from corpora import build, digests, refused, run, texts, write

from clozelab.contracts import UserError
from clozelab.text.store import Corpus
from clozelab.text.tokenizers import Wordpiece


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    build(write(folder / "a.jsonl", texts(5)), folder / "c")
    return folder / "c"


def damage(store: Path, how: str) -> str:
    """Break a store in some way; returns the file that is to be named."""
    name = "train/ids.npy"
    content = bytearray((store / name).read_bytes())
    manifest = json.loads((store / "manifest.json").read_text(encoding="utf-8"))
    match how:
        case "missing":
            (store / name).unlink()
        case "truncated":
            (store / name).write_bytes(content[:-1])
        case "flipped":
            content[len(content) // 2] ^= 1
            (store / name).write_bytes(content)
        case "tokenizer":
            name = "tokenizer.json"
            other = Wordpiece(400).train(iter(["Another text."])).to_str(pretty=True)
            (store / name).write_text(other, encoding="utf-8")
        case "junk" | "empty":
            name = "manifest.json"
            (store / name).write_text("junk" if how == "junk" else "")
        case "version" | "keys" | "list":
            name = "manifest.json"
            other = {**manifest, "version": 99} if how == "version" else {"version": 1}
            (store / name).write_text(json.dumps([1] if how == "list" else other))
    return name


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("missing", "missing from the corpus; restore it from a copy, or remove the folder"),
        ("truncated", "bytes instead of"),
        ("flipped", "its checksum differs, a byte was altered; restore it"),
        ("tokenizer", "restore it from a copy"),
        ("junk", "not a corpus manifest; build the corpus again"),
        ("empty", "not a corpus manifest; build the corpus again"),
        ("list", "not a corpus manifest; build the corpus again"),
        ("keys", "not a whole corpus manifest; build the corpus again"),
        ("version", "written as version 99, this clozelab reads 1; build it again"),
    ],
)
def test_a_damaged_store_is_refused(tmp_path: Path, whole: Path, how: str, problem: str) -> None:
    store = tmp_path / "c"
    shutil.copytree(whole, store)
    name = damage(store, how)
    with pytest.raises(UserError) as raised:
        Corpus.open(store)
    assert str(raised.value).startswith(f"{store / name}: ")
    assert problem in str(raised.value)


def test_check_finds_what_opening_a_large_store_would_not(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "c"
    shutil.copytree(whole, store)
    damage(store, "flipped")
    monkeypatch.setattr("clozelab.text.store.corpus._SMALL", 0)
    corpus = Corpus.open(store)
    with pytest.raises(UserError, match="checksum differs"):
        corpus.check()


def test_a_damaged_store_is_one_sentence_to_the_command(tmp_path: Path, whole: Path) -> None:
    store = tmp_path / "c"
    shutil.copytree(whole, store)
    damage(store, "flipped")
    assert "train/ids.npy: its checksum differs" in refused(run("corpus", "check", str(store)))


def test_a_place_that_is_taken_is_refused(tmp_path: Path, whole: Path) -> None:
    file = write(tmp_path / "a.jsonl", texts(2))
    before = digests(whole)
    with pytest.raises(UserError, match="holds a finished corpus; remove it"):
        build(file, whole)
    assert digests(whole) == before
    with pytest.raises(UserError, match="is not empty and no corpus; choose another folder"):
        build(file, tmp_path)
    with pytest.raises(UserError, match="is a file; choose a folder"):
        build(file, tmp_path / "a.jsonl")


def test_what_a_kill_at_the_very_end_left_is_swept(tmp_path: Path, whole: Path) -> None:
    store = tmp_path / "c"
    shutil.copytree(whole, store)
    (store / "building").mkdir()
    assert Corpus.open(store).manifest["version"] == 1
    with pytest.raises(UserError, match="holds a finished corpus"):
        build(write(tmp_path / "a.jsonl", texts(2)), store)
    assert digests(store) == digests(whole) and not (store / "building").exists()

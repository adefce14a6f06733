"""Text added to a corpus: after all that was in it, whole or not at all, and nothing is lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.corpora import add, alter, build, decoded, digests, texts, write

import clozelab
from clozelab import files
from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.pretraining import starting
from clozelab.text.store import Corpus, adding, shards
from clozelab.text.store import build as building
from clozelab.text.store.corpus import open_stores

TEXTS = texts(30)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder with two more texts, and a corpus with one of them added."""
    folder = tmp_path_factory.mktemp("parts")
    names = folder / "names.txt"
    names.write_text("Usenet\n", encoding="utf-8")
    build(
        write(folder / "a.jsonl", TEXTS[:10]),
        folder / "small",
        held_out=0.2,
        phrases=True,
        entities=str(names),
    )
    write(folder / "b.jsonl", TEXTS[8:20])
    write(folder / "c.jsonl", TEXTS[20:])
    shutil.copytree(folder / "small", folder / "large")
    add(str(folder / "b.jsonl"), folder / "large", held_out=0.2)
    return folder, folder / "large"


@pytest.fixture
def small(parts: tuple[Path, Path], tmp_path: Path) -> Path:
    """A corpus to add to."""
    return Path(shutil.copytree(parts[0] / "small", tmp_path / "corpus"))


def test_what_is_added_comes_after_what_was_there(parts: tuple[Path, Path]) -> None:
    folder, place = parts
    small, large = Corpus.open(folder / "small"), Corpus.open(place)
    large.check()
    alone = build(str(folder / "b.jsonl"), folder / "alone", small.tokenizer, held_out=0.2)
    for split in ("train", "held_out"):
        assert decoded(large, split) == decoded(small, split) + decoded(alone, split)
    assert (large.vocabulary.counts == np.bincount(large.documents().ids, minlength=600)).all()
    assert (large.spelling.words == small.spelling.words).all()
    assert large.manifest["parent"] == small.manifest["fingerprint"]
    assert large.manifest["fingerprint"] != small.manifest["fingerprint"]
    assert large.manifest["inputs"] == [str(folder / name) for name in ("a.jsonl", "b.jsonl")]
    assert [each["inputs"] for each in large.manifest["added"]] == [[str(folder / "b.jsonl")]]
    assert large.manifest["units"]["phrase"] > small.manifest["units"]["phrase"] > 0
    sentences = large.documents().sentences
    assert (np.diff(sentences) > 0).all() and sentences[-1] == len(large.documents().ids)


def test_shards_do_not_change_a_byte(
    parts: tuple[Path, Path], small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SHARD", 2000)
    add(str(parts[0] / "b.jsonl"), small, held_out=0.2)
    assert digests(small) == digests(parts[1])


def test_a_corpus_that_cannot_be_written_to_is_refused(
    parts: tuple[Path, Path], small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    with pytest.raises(UserError, match=f"^{small}: cannot be written to; change its permissions"):
        add(str(parts[0] / "b.jsonl"), small, held_out=0.2)


def test_what_a_corpus_was_can_still_be_opened(parts: tuple[Path, Path], small: Path) -> None:
    folder, _ = parts
    states = [Corpus.open(small).manifest["fingerprint"]]
    before = decoded(Corpus.open(small))
    for name in ("b.jsonl", "c.jsonl"):
        states.append(add(str(folder / name), small).manifest["fingerprint"])
    assert len(set(states)) == 3
    for state in states:
        opened = Corpus.open(f"{small}@{state[:8]}")
        opened.check()
        assert opened.manifest["fingerprint"] == state
        ((mixed, weight),) = open_stores([f"{small}@{state[:8]}:0.5"])
        assert (mixed, weight) == (opened, 0.5)
    assert decoded(Corpus.open(f"{small}@{states[0][:6]}")) == before
    facts = clozelab.show_corpus(small).facts["before text was added"]
    assert [line.partition(":")[0] for line in facts.splitlines()] == [
        f"{small}@{state[:8]}" for state in states[1::-1]
    ]
    with pytest.raises(UserError, match=f"no version 00ff; name one of {states[2][:8]}"):
        Corpus.open(f"{small}@00ff")


def test_a_run_goes_on_with_what_the_corpus_was(small: Path, parts: tuple[Path, Path]) -> None:
    fingerprint = Corpus.open(small).manifest["fingerprint"]
    facts = {"data": [f"{small}:1"], "fingerprint": [fingerprint]}
    assert starting._where(Path("run"), (), facts) == [f"{small}:1"]
    add(str(parts[0] / "b.jsonl"), small)
    places = starting._where(Path("run"), (), facts)
    assert places == [f"{small}@{fingerprint[:16]}:1"]
    assert open_stores(places)[0][0].manifest["fingerprint"] == fingerprint
    assert starting._where(Path("run"), (), {**facts, "data": places}) == places


def test_documents_of_the_corpus_are_not_added_again(
    small: Path, parts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clozelab.text.store.cleaning._FOLDED", 300)
    counts, before = Counts(), Corpus.open(small)
    file = write(small.parent / "d.jsonl", [TEXTS[0], TEXTS[25], TEXTS[5], TEXTS[25]])
    corpus = add(file, small, unique="documents", held_out=0, counts=counts)
    whole = {text.strip() for split in ("train", "held_out") for text in decoded(before, split)}
    known = sum(text.strip() in whole for text in (TEXTS[0], TEXTS[5]))
    assert known and counts.numbers["documents left out that are in the corpus"] == known
    assert counts.numbers["documents left out as repeats"] == 1
    assert len(decoded(corpus)) == len(decoded(before)) + 3 - known
    with pytest.raises(UserError, match="all of this text is already in the corpus"):
        add(write(small.parent / "e.jsonl", [TEXTS[25]]), small, unique="documents")


def test_text_that_comes_to_both_sides_is_counted(tmp_path: Path) -> None:
    what = "sentences of 8 tokens or more that are held out and also trained on"
    file, out = write(tmp_path / "a.jsonl", TEXTS[:6]), tmp_path / "c"
    build(file, out, held_out=0)
    counts = Counts()
    corpus = add(file, out, held_out=0.5, counts=counts)
    held = corpus.documents("held_out")
    long = int((np.diff(held.sentences) >= 8).sum())
    assert long and counts.numbers[what] == corpus.manifest["notes"][what] == long
    counts = Counts()
    add(write(tmp_path / "b.jsonl", TEXTS[6:12]), out, held_out=0.5, counts=counts)
    assert what not in counts.numbers
    counts = Counts()
    add(file, out, held_out=0, counts=counts)
    assert counts.numbers[what] == long


@pytest.mark.parametrize("step", range(4))
def test_an_addition_that_is_killed_changes_nothing_and_goes_on(
    parts: tuple[Path, Path], small: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    place, name = [
        (building, "finish"),
        (adding.files, "mark"),
        (adding.files, "sync"),
        (adding, "render"),  # the manifest is about to be written
    ][step]
    before = Corpus.open(small)
    with monkeypatch.context() as patched:
        patched.setattr(place, name, killed)
        with pytest.raises(KeyboardInterrupt):
            add(str(parts[0] / "b.jsonl"), small, held_out=0.2)
    assert Corpus.open(small).manifest == before.manifest
    add(str(parts[0] / "b.jsonl"), small, held_out=0.2)
    assert digests(small) == digests(parts[1])


@pytest.mark.parametrize(("place", "name"), [(files, "_remove"), (files.os, "replace")])
def test_an_addition_that_is_killed_at_its_end_is_not_made_twice(
    parts: tuple[Path, Path], small: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str
) -> None:
    """While the files are removed that it was made of, or when only the note of it is left."""
    real = getattr(place, name)

    def killed(path: Path, *more: Any) -> None:
        inside = path.parent.name == "building" and path.suffix != ".part"
        if path.name == "building" if name == "replace" else inside:
            raise KeyboardInterrupt
        real(path, *more)

    with monkeypatch.context() as patched:
        patched.setattr(place, name, killed)
        with pytest.raises(KeyboardInterrupt):
            add(str(parts[0] / "b.jsonl"), small, held_out=0.2)
    other = Path(shutil.copytree(small, small.with_name("other")))
    counts = Counts()
    add(str(parts[0] / "b.jsonl"), small, held_out=0.2, counts=counts)
    assert digests(small) == digests(parts[1]) and counts.numbers
    more = add(str(parts[0] / "c.jsonl"), other, held_out=0.2)
    assert more.manifest["parent"] == Corpus.open(small).manifest["fingerprint"]


def test_what_is_no_whole_corpus_is_left_alone(small: Path, parts: tuple[Path, Path]) -> None:
    text = str(parts[0] / "b.jsonl")
    fingerprint = Corpus.open(small).manifest["fingerprint"]

    def refused(sentence: str, place: Path = small) -> None:
        before = digests(small)
        with pytest.raises(UserError, match=sentence):
            add(text, place)
        assert digests(small) == before

    refused("is not a corpus", small.parent)
    refused("add the text to the current one", Path(f"{small}@{fingerprint[:8]}"))
    with files.locked(small, work="build"):
        refused("another build is writing to it")
    (small / "added-1").mkdir()
    (small / "added-1" / "mine").touch()
    refused("added-1: already exists")
    shutil.rmtree(small / "added-1")
    (small / "train" / "marks.npy").write_bytes(b"broken")
    refused("marks.npy: 6 bytes instead of")
    (small / files.MARKER).unlink()
    shutil.copy(parts[0] / "small" / "train" / "marks.npy", small / "train" / "marks.npy")
    refused("built by an early version")
    (small / "manifest.json").rename(small / "elsewhere")
    (small / "building").mkdir()
    refused("this corpus is unfinished")


def test_a_folder_outside_is_refused(small: Path, parts: tuple[Path, Path]) -> None:
    add(str(parts[0] / "b.jsonl"), small)
    alter(small, folder="../elsewhere")
    with pytest.raises(UserError, match="folder is no name of a folder in it"):
        Corpus.open(small)

"""Stores that are broken, and places that are taken: refused, by the file and with the remedy."""

from __future__ import annotations

import json
import random
import shutil
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.corpora import alter, build, digests, refused, run, texts, write

from clozelab.api.corpora import show_corpus
from clozelab.errors import UserError
from clozelab.files import mark
from clozelab.text.store import Corpus
from clozelab.text.store.manifest import ARRAYS, SPLITS
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
            other = {**manifest, "version": 99}
            if how == "keys":
                del manifest["fingerprint"]
                other = {**manifest, "version": 1}
            (store / name).write_text(json.dumps([1] if how == "list" else other))
        case "sealed":
            name = "manifest.json"
            text = (store / name).read_text(encoding="utf-8")
            (store / name).write_text(text.replace('"held_out": 0.01', '"held_out": 0.02'))
    return name


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("missing", "missing from the corpus; restore it from a copy, or remove the folder"),
        ("truncated", "bytes instead of"),
        ("flipped", "its checksum differs, so the file was altered; restore it"),
        ("tokenizer", "restore it from a copy"),
        ("junk", "not a corpus manifest; build the corpus again"),
        ("empty", "not a corpus manifest; build the corpus again"),
        ("list", "not a corpus manifest; build the corpus again"),
        ("keys", "not a whole corpus manifest (lacks fingerprint); build the corpus again"),
        ("sealed", "its checksum differs, so the file was altered; restore it from a copy"),
        (
            "version",
            "has format version 99, but this clozelab reads 1 and 2; build the corpus again",
        ),
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
    monkeypatch.setattr("clozelab.text.store.corpus.CHECKED_WHOLE", 0)
    with pytest.raises(UserError, match="checksum differs"):
        Corpus.open(store)
    monkeypatch.setattr("clozelab.text.store.corpus._LITTLE", 0)
    corpus = Corpus.open(store)
    with pytest.raises(UserError, match="checksum differs"):
        corpus.check()


def test_a_damaged_store_is_one_sentence_to_the_command(tmp_path: Path, whole: Path) -> None:
    store = tmp_path / "c"
    shutil.copytree(whole, store)
    damage(store, "flipped")
    assert "train/ids.npy: its checksum differs" in refused(run("corpus", "check", str(store)))


def unsealed(store: Path, **values: Any) -> None:
    """Make a store one of the first version, which had no seal, that says this or that."""
    manifest = json.loads((store / "manifest.json").read_text(encoding="utf-8"))
    for key in ("seal", "held_out"):
        del manifest[key]
    old_manifest = {**manifest, "version": 1, **values}
    (store / "manifest.json").write_text(json.dumps(old_manifest, indent=1), encoding="utf-8")


def test_a_store_of_the_first_version_opens_with_the_fingerprint_it_had(
    tmp_path: Path, whole: Path
) -> None:
    store = tmp_path / "c"
    shutil.copytree(whole, store)
    (store / ".clozelab").unlink()
    unsealed(store, fingerprint="ab" * 32)
    corpus = Corpus.open(store)
    corpus.check()
    assert corpus.manifest["fingerprint"] == "ab" * 32
    assert len(corpus.documents()) > 0
    assert "whole document" in run("corpus", "show", str(store)).stdout
    with pytest.raises(UserError, match="contains a finished corpus; use it, remove it"):
        build(write(tmp_path / "a.jsonl", texts(2)), store)


def test_a_manifest_with_any_bit_flipped_is_refused(tmp_path: Path, whole: Path) -> None:
    store = tmp_path / "c"
    shutil.copytree(whole, store)
    content = (store / "manifest.json").read_bytes()
    draw = random.Random(14)
    for _ in range(400):
        at, bit = draw.randrange(len(content)), draw.randrange(8)
        flipped = bytearray(content)
        flipped[at] ^= 1 << bit
        (store / "manifest.json").write_bytes(flipped)
        with pytest.raises(UserError):
            Corpus.open(store)
    (store / "manifest.json").write_bytes(content)
    Corpus.open(store).check()


def test_flips_in_a_store_too_large_to_be_compared_leave_no_traceback(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening leaves the large files to `check`, which finds every flip."""
    monkeypatch.setattr("clozelab.text.store.corpus.CHECKED_WHOLE", 0)
    monkeypatch.setattr("clozelab.text.store.corpus._LITTLE", 0)
    store = tmp_path / "c"
    shutil.copytree(whole, store)
    draw = random.Random(14)
    for name in (f"{split}/{array}.npy" for split in SPLITS for array in ARRAYS):
        content = (store / name).read_bytes()
        for most in (200, len(content)) * 10:  # half of them in the header
            flipped = bytearray(content)
            flipped[draw.randrange(min(most, len(content)))] ^= 1 << draw.randrange(8)
            (store / name).write_bytes(flipped)
            with pytest.raises(UserError):
                Corpus.open(store).check()
            with suppress(UserError):
                show_corpus(store)
        (store / name).write_bytes(content)


def test_the_flips_of_an_unsealed_manifest_leave_no_traceback(tmp_path: Path, whole: Path) -> None:
    store = tmp_path / "c"
    shutil.copytree(whole, store)
    unsealed(store)
    content = (store / "manifest.json").read_bytes()
    draw = random.Random(14)
    for _ in range(400):
        flipped = bytearray(content)
        flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        (store / "manifest.json").write_bytes(flipped)
        with suppress(UserError):
            show_corpus(store)


@pytest.mark.parametrize("value", [5, "x", None, [], {}, True, -1, [5], {"a": 5}, 1e400])
def test_the_manifest_is_read_by_types(tmp_path: Path, whole: Path, value: object) -> None:
    store = tmp_path / "c"
    shutil.copytree(whole, store)
    unsealed(store)
    manifest = json.loads((store / "manifest.json").read_text(encoding="utf-8"))
    for key in manifest:
        unsealed_text = json.dumps({**manifest, key: value})
        (store / "manifest.json").write_text(unsealed_text, encoding="utf-8")
        with suppress(UserError):
            show_corpus(store)
    for key in ("splits", "files", "units"):
        (store / "manifest.json").write_text(json.dumps({**manifest, key: value}))
        with pytest.raises(UserError, match="not a whole corpus manifest"):
            Corpus.open(store)


@pytest.mark.parametrize("name", ["../secret.npy", "/etc/passwd", "train/../../x", "a\\b", "c:x"])
def test_names_in_the_manifest_do_not_leave_the_folder(
    tmp_path: Path, whole: Path, name: str
) -> None:
    store = tmp_path / "c"
    shutil.copytree(whole, store)
    files = Corpus.open(store).manifest["files"]
    alter(store, files={**files, name: {"bytes": 1, "sha256": "0" * 64}})
    with pytest.raises(UserError, match="which is no name of a file in the folder"):
        Corpus.open(store)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, whole: Path) -> None:
    store = tmp_path / "c"
    shutil.copytree(whole, store)
    (store / "train" / "ids.npy").rename(tmp_path / "ids.npy")
    (store / "train" / "ids.npy").symlink_to(tmp_path / "ids.npy")
    with pytest.raises(UserError, match=r"ids\.npy: is a link to outside the corpus"):
        Corpus.open(store)
    (tmp_path / "link").symlink_to(whole)
    Corpus.open(tmp_path / "link").check()


def test_arrays_must_fit_the_manifest_whatever_it_lists(tmp_path: Path, whole: Path) -> None:
    store = tmp_path / "c"
    shutil.copytree(whole, store)
    alter(store, files={})
    with pytest.raises(UserError, match="not a whole corpus manifest"):
        Corpus.open(store)
    files = Corpus.open(whole).manifest["files"]
    short = (store / "train" / "ids.npy").read_bytes()[:-64]
    (store / "train" / "ids.npy").write_bytes(short)
    entry = {"bytes": len(short), "sha256": sha256(short).hexdigest()}
    alter(store, files={**files, "train/ids.npy": entry})
    with pytest.raises(UserError, match=r"ids\.npy: is not a readable array"):
        Corpus.open(store)


def test_a_place_that_is_taken_is_refused(tmp_path: Path, whole: Path) -> None:
    file = write(tmp_path / "a.jsonl", texts(2))
    before = digests(whole)
    with pytest.raises(UserError, match="contains a finished corpus; use it, remove it"):
        build(file, whole)
    assert digests(whole) == before
    with pytest.raises(UserError, match="contains other files; name a new or empty folder"):
        build(file, tmp_path)
    with pytest.raises(UserError, match="is not a folder; name a new or empty one"):
        build(file, tmp_path / "a.jsonl")
    with pytest.raises(UserError, match="is not a folder; name a new or empty one"):
        build(file, Path("/dev/null"))
    mark(tmp_path / "run", "run")
    with pytest.raises(UserError, match="holds a run, not a corpus"):
        build(file, tmp_path / "run")


@pytest.mark.parametrize("left", ["building", ".building.gone"])
def test_what_a_kill_at_the_very_end_left_is_swept(tmp_path: Path, whole: Path, left: str) -> None:
    store = tmp_path / "c"
    shutil.copytree(whole, store)
    mark(store / left, "unfinished corpus")
    (store / left / "a.npz").touch()
    assert Corpus.open(store).manifest["version"] == 2
    with pytest.raises(UserError, match="contains a finished corpus"):
        build(write(tmp_path / "a.jsonl", texts(2)), store)
    assert digests(store) == digests(whole) and not (store / left).exists()


@pytest.mark.parametrize("moved", [0, 7, 15])
def test_a_build_stopped_while_its_files_are_moved_goes_on(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    file, store = write(tmp_path / "a.jsonl", texts(5)), tmp_path / "c"
    tokenizer = Corpus.open(whole).tokenizer
    replace, seen = Path.replace, []

    def stop(path: Path, target: Path) -> Path:
        seen.append(path)
        if len(seen) > moved:
            raise KeyboardInterrupt
        return replace(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            build(file, store, tokenizer)
    with pytest.raises(UserError, match="this corpus is unfinished"):
        Corpus.open(store)
    build(file, store, tokenizer).check()
    expected = {name: digest for name, digest in digests(whole).items() if name != "manifest.json"}
    assert digests(store).items() >= expected.items()


@pytest.mark.parametrize("beside", ["manifest.json", None, ".clozelab"])
def test_a_folder_building_that_is_not_ours_stays(tmp_path: Path, beside: str | None) -> None:
    file, out = write(tmp_path / "a.jsonl", texts(2)), tmp_path / "p"
    (out / "building").mkdir(parents=True)
    (out / "building" / "mine.txt").write_text("work of a year")
    if beside == ".clozelab":
        mark(out, "corpus")
    elif beside:
        (out / beside).write_text('{"name": "a browser extension"}')
    with pytest.raises(UserError, match="contains other files; name a new or empty folder"):
        build(file, out)
    assert (out / "building" / "mine.txt").read_text() == "work of a year"


def test_a_finished_corpus_keeps_a_folder_that_is_not_ours(tmp_path: Path, whole: Path) -> None:
    store = tmp_path / "c"
    shutil.copytree(whole, store)
    (store / "building").mkdir()
    (store / "building" / "mine.txt").write_text("work of a year")
    with pytest.raises(UserError, match="contains a finished corpus"):
        build(write(tmp_path / "a.jsonl", texts(2)), store)
    assert (store / "building" / "mine.txt").exists()


def test_a_link_is_followed_and_a_refused_build_leaves_nothing(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", texts(2))
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "c")
    build(file, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert Corpus.open(tmp_path / "disk" / "c").bytes
    empty = write(tmp_path / "b.jsonl", [" "])
    (tmp_path / "mine").mkdir()
    for name in ("new", "mine"):
        with pytest.raises(UserError, match="no text"):
            build(empty, tmp_path / name)
    assert not (tmp_path / "new").exists() and not any((tmp_path / "mine").iterdir())

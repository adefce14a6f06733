"""Runs whose corpus, tasks and copies are at URLs: the same runs, and nothing secret in them."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import fsspec
import pytest
import torch
from support import small_studies
from support.corpora import build, texts, write
from support.file_server import Server, at

import clozelab
from clozelab.api import training
from clozelab.api.watching import Watch
from clozelab.errors import UserError
from clozelab.remote import access, cache, copies
from clozelab.runs.directory import Run
from clozelab.text.store import Corpus

ON: dict[str, Any] = {"device": "cpu", "workers": 0, "progress": False}
TINY: dict[str, Any] = {"size": "tiny", "set": {"schedule.batch_size": 4}, **ON}
MEMORY = fsspec.filesystem("memory")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("text")
    return build(write(folder / "a.jsonl", texts(30)), folder / "corpus", held_out=0.1)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    monkeypatch.setattr(access, "WAIT", 0.001)
    torch.set_num_threads(1)
    yield tmp_path
    while cache._uses:
        cache._uses.popitem()[1].release()
    if MEMORY.exists("/at"):
        MEMORY.rm("/at", recursive=True)


def uploaded(folder: Path, name: str, root: str = "memory://at") -> str:
    system, path = fsspec.core.url_to_fs(f"{root}/{name}")
    system.put(f"{folder}/", f"{path}/", recursive=True)
    return f"{root}/{name}"


def files_of(url: str) -> dict[str, bytes]:
    """What is at a URL, but for the list of it."""
    all_files = access.files_under(url)
    names = all_files.keys() - {"copied.json"}
    return {name: all_files[name].system.cat_file(all_files[name].path) for name in names}


def files_in(folder: Path) -> dict[str, bytes]:
    """The same of a folder, without its lock."""
    all_files = {file for file in folder.rglob("*") if file.is_file()}
    names = {str(file.relative_to(folder)) for file in all_files if ".lock" not in file.name}
    return {name: (folder / name).read_bytes() for name in names - {"copied.json"}}


def cache_of(url: str) -> Corpus:
    return Corpus.open(url, trusting=True, ahead=True)


def test_a_run_from_a_url_that_is_read_while_it_is_fetched(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clozelab.text.store.fetching._LARGE", 0)
    monkeypatch.setattr("clozelab.remote.ahead.GRAIN", 1_000)
    url = uploaded(corpus.path, "corpus")
    free, real, came = Event(), access.ranged, list[str]()

    def ranged(file: Any, start: int, end: int) -> bytes | None:
        if threading.current_thread().name == "fetch-ahead":  # which no step waits for
            free.wait(60)
        came.append(file.url)
        return real(file, start, end)

    monkeypatch.setattr(access, "ranged", ranged)
    run = clozelab.pretrain("bert", data=url, out="a", budget="3steps", **TINY)
    assert 2 < came.count(f"{url}/train/ids.npy") < 2 * corpus.array("train/ids").nbytes // 1_000
    assert cache_of(url).is_arriving
    free.set()
    assert cache_of(url).check() is None and not cache_of(url).is_arriving
    local = clozelab.pretrain("bert", data=corpus, out="b", budget="3steps", **TINY)
    assert run.losses() == local.losses()


def test_a_run_from_a_url_with_a_copy_at_another(corpus: Corpus, place: Path) -> None:
    url = uploaded(corpus.path, "corpus")
    saving = {"save_every": 2, "keep": 1, "evaluate_every": 0}
    run = clozelab.pretrain(
        "bert", data=url, out="a", budget="4steps", copy_to="memory://at/a", **saving, **TINY
    )
    assert run.machine()["data"] == [f"{url}:1"]
    local = clozelab.pretrain("bert", data=corpus, out="b", budget="4steps", **saving, **TINY)
    assert run.losses() == local.losses()
    copied = files_of("memory://at/a")
    assert copied == files_in(run.path)
    assert [name for name in copied if name.endswith("checksums.json")] == [
        "checkpoints/step-00000004/checksums.json"
    ]
    assert run.resume(copy_to="memory://at/a", **ON).result() == run.result()
    assert files_of("memory://at/a") == files_in(run.path)
    with pytest.raises(UserError, match="--copy-to memory://at/a: contains other files"):
        local.resume(copy_to="memory://at/a", **ON)

    filled = clozelab.fill("memory://at/a", "the [MASK] cat", progress=False)
    assert repr(filled) == repr(clozelab.fill(run, "the [MASK] cat", progress=False))
    assert clozelab.export(run, "memory://at/hf", progress=False) == "memory://at/hf"
    with pytest.raises(UserError, match="memory://at/hf: already contains files"):
        clozelab.export(run, "memory://at/hf", progress=False)
    taken = clozelab.import_model("memory://at/hf", "c", progress=False)
    assert taken.machine()["from"] == "memory://at/hf"
    assert repr(taken.load().fill("the [MASK] cat")) == repr(filled)


def test_a_run_that_was_lost_goes_on_from_its_copy(corpus: Corpus, place: Path) -> None:
    saving = {"save_every": 2, "keep": 2, "evaluate_every": 0}
    copy = "memory://at/a"
    run = clozelab.pretrain(
        "bert", data=corpus, out="a", budget="4steps", copy_to=copy, **saving, **TINY
    )
    losses = run.losses()
    # As the copy of a run that was lost after its second step.
    listed = json.loads((run.path / "copied.json").read_text())
    for name in [*listed["files"]]:
        if name == "result.json" or name.startswith("checkpoints/step-00000004"):
            del listed["files"][name]
            MEMORY.rm_file(f"/at/a/{name}")
    MEMORY.pipe_file("/at/a/copied.json", json.dumps(listed).encode())
    shutil.rmtree(run.path)
    with pytest.raises(
        UserError, match=r"a: does not exist, and neither does a copy at memory://at/b"
    ):
        clozelab.resume("a", copy_to="memory://at/b", **ON)
    assert not run.path.exists()
    again = clozelab.resume("a", copy_to=copy, **ON)
    assert again.losses() == losses and again.result()
    assert files_of(copy) == files_in(again.path)


def test_a_lost_run_is_restored_by_one_process_of_several(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored: list[Path] = []

    def slowly(url: str, folder: Path) -> None:
        restored.append(folder)
        time.sleep(0.2)
        folder.mkdir()

    monkeypatch.setattr(copies, "restore", slowly)
    arguments = (place / "runs" / "a", "memory://at/a", Watch(progress=False))
    threads = [threading.Thread(target=training._restore, args=arguments) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert restored == [place / "runs" / "a"] == [*(place / "runs").iterdir()]


def test_a_fine_tuning_of_files_at_urls(corpus: Corpus, place: Path) -> None:
    run = clozelab.pretrain("bert", data=corpus, out="a", budget="1steps", **TINY)
    rows = [("a small wild cat", "1"), ("a loaf of dark bread", "0")] * 8
    text = "sentence\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in rows)
    for name in ("tasks/SST-2/train.tsv", "tasks/SST-2/dev.tsv", "tasks/CoLA/train.tsv"):
        MEMORY.pipe_file(f"/at/{name}", text.encode())
    tuned = run.finetune(
        "sst2", task_data="memory://at/tasks", copy_to="memory://at/t", set={"epochs": 1}, **ON
    )
    assert files_of("memory://at/t") == files_in(tuned.path)
    assert not list((place / "cache").rglob("CoLA"))
    known = clozelab.evaluate(tuned, "sst2", task_data="memory://at/tasks", progress=False)
    own = clozelab.evaluate(tuned, "memory://at/tasks/SST-2/dev.tsv", progress=False)
    assert known == own
    with pytest.raises(UserError, match=r"memory://at/t has no data for sst2"):
        run.finetune("sst2", task_data="memory://at/t", out="u", **ON)
    with pytest.raises(UserError, match=r"there is no file or folder memory://at/none\.tsv"):
        run.finetune("classify", train="memory://at/none.tsv", dev="x.tsv", out="u", **ON)
    with pytest.raises(UserError, match="memory://at/a: is at a URL; name the folder"):
        clozelab.finetune("memory://at/a", "sst2", task_data="memory://at/tasks", **ON)


def test_a_study_with_a_copy(corpus: Corpus, place: Path) -> None:
    url = uploaded(corpus.path, "corpus")
    spec = small_studies.write_study(place / "masks.toml", small_studies.STATIC)
    how: dict[str, Any] = {"copy_to": "memory://at/s", "at_once": 1, **ON}
    done = clozelab.study(str(spec), data=url, out="s", budget="2steps", **how)
    copied = files_of("memory://at/s")
    assert copied == files_in(done.path) and "cells/static/seed-0/result.json" in copied
    again = clozelab.study(str(spec), data=url, out="s", budget="2steps", **how)
    assert again.table() == done.table()


def test_a_store_that_fails_stops_no_training(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def put(*_: Any, **__: Any) -> None:
        raise ConnectionError("s3://me:secret@bucket/a?key=secret is down")

    monkeypatch.setattr(type(MEMORY), "put_file", put)
    options = {**TINY, "progress": True, "save_every": 1}
    with pytest.raises(UserError) as failure:
        clozelab.pretrain(
            "bert", data=corpus, out="a", budget="2steps", copy_to="memory://at/a", **options
        )
    assert Run("a").result() and not MEMORY.exists("/at/a")
    behind = "the copy at memory://at/a is behind (memory://at/a/copied.json cannot be written"
    ends = str(failure.value)
    assert ends.startswith(f"a: is saved, but {behind}")
    assert ends.endswith("; continue with the same --copy-to to copy the rest")
    told = " ".join(capsys.readouterr().err.split())
    assert "the next save tries again" in told
    assert all("s3://bucket/a" in each and "secret" not in each for each in (told, ends))


def test_a_copy_in_a_folder_of_another_disk(corpus: Corpus, place: Path) -> None:
    url = f"file://{place}/far/copy"
    run = clozelab.pretrain("bert", data=corpus, out="a", budget="2steps", copy_to=url, **TINY)
    losses = run.losses()
    assert files_in(place / "far" / "copy") == files_in(run.path)
    shutil.rmtree(run.path)
    assert clozelab.resume("a", copy_to=url, **ON).losses() == losses
    clozelab.export(run, f"file://{place}/far/hf", progress=False)
    assert clozelab.load(place / "far" / "hf").fill("the [MASK] cat")


def test_nothing_secret_is_recorded(corpus: Corpus, server: Server, place: Path) -> None:
    shutil.copytree(corpus.path, server.folder / "served")
    url = at(server, "served?signature=secret")
    run = clozelab.pretrain("bert", data=f"{url}", out="a", budget="1steps", **TINY)
    assert run.machine()["data"] == [at(server, "served:1")]
    assert not [name for name, content in files_in(place).items() if b"secret" in content]
    with pytest.raises(UserError) as error:
        clozelab.pretrain("bert", data=url.replace("served", "none"), out="b", **TINY)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("option", ["out", "copy_to"])
def test_urls_that_cannot_be_written_are_sentences(corpus: Corpus, option: str) -> None:
    options = {"out": "b", "data": corpus, "budget": "1steps", **TINY, option: "https://a/b"}
    sentences = {
        "out": "--out https://a/b: must be a folder on this machine",
        "copy_to": "a web server",
    }
    with pytest.raises(UserError, match=sentences[option]):
        clozelab.pretrain("bert", **options)
    assert not Path("b").exists()


def test_a_run_with_an_s3_server(corpus: Corpus, s3: Any) -> None:
    s3.mkdir("bucket")
    url = uploaded(corpus.path, "corpus", "s3://bucket")
    run = clozelab.pretrain(
        "bert", data=url, out="a", budget="2steps", copy_to="s3://bucket/a", **TINY
    )
    assert files_of("s3://bucket/a") == files_in(run.path)
    assert not [name for name, content in files_in(Path()).items() if b"hush" in content]
    clozelab.export("s3://bucket/a", "s3://bucket/hf", progress=False)
    assert clozelab.import_model("s3://bucket/hf", "b", progress=False).path == Path("b")
    for option, sentence in (("data", "is not a corpus"), ("copy_to", "the bucket does not exist")):
        options = {"data": url, "out": "c", **TINY, option: "s3://none/a"}
        with pytest.raises(UserError, match=f"s3://none/a: {sentence}"):
            clozelab.pretrain("bert", **options)
    assert not Path("c").exists()

"""What is at a URL, on this machine: fetched once, checked, bounded, shared."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.corpora import add, build, texts, write
from support.file_server import Server, at

from clozelab.errors import UserError
from clozelab.remote import access, ahead, cache, fetching
from clozelab.remote.cache import local_file, local_folder
from clozelab.text.store import Corpus, plans
from clozelab.text.store import fetching as fetched
from clozelab.text.store.corpus import as_it_was, open_stores, weighted


@pytest.fixture(scope="module")
def local_corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("made")
    return build(write(folder / "a.jsonl", texts(20)), folder / "corpus")


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache of a test."""
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    yield tmp_path / "cache"
    no_process_uses_it()


def no_process_uses_it() -> None:
    """As when all processes have ended."""
    while cache._uses:
        cache._uses.popitem()[1].release()


def put_up(local_corpus: Corpus, server: Server) -> str:
    shutil.copytree(local_corpus.path, server.folder / "corpus")
    return at(server, "corpus")


def remembered(name: str, size: int) -> str:
    import fsspec

    url = f"memory://{name}"
    fsspec.filesystem("memory").pipe_file(url, os.urandom(size))
    return url


def the_same(first: Corpus, other: Corpus) -> bool:
    arrays = zip(first._arrays("train").values(), other._arrays("train").values(), strict=True)
    return first.manifest == other.manifest and all(np.array_equal(a, b) for a, b in arrays)


@pytest.mark.parametrize("troubles", [[], ["503", "dropped", "500", "dropped"], ["", "altered"]])
def test_a_corpus_at_a_url_is_that_corpus(
    local_corpus: Corpus,
    server: Server,
    cache_dir: Path,
    troubles: list[str],
) -> None:
    url = put_up(local_corpus, server)
    server.troubles = troubles
    corpus = Corpus.open(url)
    assert the_same(corpus, local_corpus) and server.troubles == []
    assert corpus.path.is_relative_to(cache_dir) and corpus.name == url == corpus.place
    assert plans._home(corpus).is_relative_to(cache_dir)
    assert not list(cache_dir.rglob("*.part"))
    server.requests = []
    assert the_same(Corpus.open(url), local_corpus)
    assert [path.rpartition("/")[2] for path in server.requests] == ["manifest.json"]


@pytest.mark.thorough
def test_a_server_without_ranges_will_do(local_corpus: Corpus, server: Server) -> None:
    url = put_up(local_corpus, server)
    server.ranges = False
    assert the_same(Corpus.open(url), local_corpus)


def test_a_wrong_checksum_is_told(local_corpus: Corpus, server: Server, cache_dir: Path) -> None:
    url = put_up(local_corpus, server)
    ids = server.folder / "corpus" / "train" / "ids.npy"
    ids.write_bytes(ids.read_bytes()[:-1] + b"\xff")
    sentence = r"ids\.npy: its checksum is not that of the manifest, in two downloads"
    with pytest.raises(UserError, match=sentence):
        Corpus.open(url)
    assert not list(cache_dir.rglob("train/ids.npy")) and not list(cache_dir.rglob("*.part"))


@pytest.mark.thorough
def test_what_was_damaged_in_the_cache_is_fetched_again(
    local_corpus: Corpus,
    server: Server,
) -> None:
    url = put_up(local_corpus, server)
    ids = Corpus.open(url).path / "train" / "ids.npy"
    ids.write_bytes(ids.read_bytes()[:-1] + b"\xff")
    assert the_same(Corpus.open(url), local_corpus)
    ids.unlink()
    assert the_same(Corpus.open(url), local_corpus)


@pytest.mark.thorough
def test_a_fetch_that_was_stopped_goes_on(
    local_corpus: Corpus,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = put_up(local_corpus, server)
    monkeypatch.setattr(fetching, "_CONNECTIONS", 1)
    monkeypatch.setattr(access, "PIECE", 3_000)
    pieces = -(-(local_corpus.path / "train" / "ids.npy").stat().st_size // access.PIECE)
    assert pieces > 3
    real = access.ranged

    def stopped(file: Any, start: int, end: int) -> bytes | None:
        if file.url.endswith("train/ids.npy") and start >= 2 * access.PIECE:
            raise KeyboardInterrupt
        return real(file, start, end)

    with monkeypatch.context() as patched:
        patched.setattr(access, "ranged", stopped)
        with pytest.raises(KeyboardInterrupt):
            Corpus.open(url)
    server.requests = []
    assert the_same(Corpus.open(url), local_corpus)
    assert server.requests.count("/corpus/train/ids.npy") == pieces - 2
    assert server.requests.count("/corpus/tokenizer.json") == 0


@pytest.mark.thorough
def test_two_that_come_at_once_share_what_one_fetches(
    local_corpus: Corpus,
    server: Server,
) -> None:
    url = put_up(local_corpus, server)
    with ThreadPoolExecutor(2) as pool:
        assert all(the_same(corpus, local_corpus) for corpus in pool.map(Corpus.open, [url] * 2))
    assert server.requests.count("/corpus/words.txt") <= -(
        -(local_corpus.path / "words.txt").stat().st_size // access.PIECE
    )


def test_what_was_not_used_for_long_makes_room(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.GIGABYTES, "0.00025")
    a, b, c = (remembered(f"room/{name}.bin", 100_000) for name in "abc")
    places = {url: local_file(url) for url in (a, b)}
    for age, url in enumerate((a, b)):  # the second was used before the first
        os.utime(places[url].parent / ".files.json", (1000 - age, 1000 - age))
    with pytest.raises(
        UserError, match=r"c\.bin: is .* but running processes use 0\.0002 of the 0\.00025"
    ):
        local_file(c)
    no_process_uses_it()
    assert local_file(c).stat().st_size == 100_000
    assert places[a].exists() and not places[b].exists()
    no_process_uses_it()
    assert local_file(b).read_bytes() and not places[a].exists()
    whole = sum(file.stat().st_size for file in cache_dir.rglob("*") if file.is_file())
    assert whole < 250_000


def test_an_entry_that_others_wait_for_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.GIGABYTES, "0.00015")
    first = local_file(remembered("alone/a.bin", 100_000))
    no_process_uses_it()
    from clozelab import files

    with files.locked(first.parent), pytest.raises(UserError, match="processes use"):
        local_file(remembered("alone/b.bin", 100_000))
    assert first.exists()


def test_processes_of_the_same_number_share_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    url = remembered("shared/a.bin", 100_000)
    folder = local_file(url).parent
    of_others, cache._uses = cache._uses, {}
    (folder / ".used-1-ended").touch()
    with ThreadPoolExecutor(1) as pool:
        try:
            assert pool.submit(local_file, url).result(timeout=20).exists()
        finally:  # so that one that waits goes on
            while of_others:
                of_others.popitem()[1].release()
    assert len([*folder.glob(".used-*")]) == 2
    monkeypatch.setenv(cache.GIGABYTES, "0.00015")
    with pytest.raises(UserError, match="processes use"):
        local_file(remembered("shared/b.bin", 100_000))


def test_what_is_being_fetched_counts_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.GIGABYTES, "0.00015")
    monkeypatch.setattr(access, "PIECE", 100_000)
    first, second = (remembered(f"whole/{name}.bin", 100_000) for name in "ab")
    real, messages = access.ranged, list[str]()

    def ranged(file: Any, start: int, end: int) -> bytes | None:
        if file.url == first:
            with pytest.raises(UserError) as error:
                local_file(second)
            messages.append(str(error.value))
        return real(file, start, end)

    monkeypatch.setattr(access, "ranged", ranged)
    assert local_file(first).stat().st_size == 100_000
    assert len(messages) == 1 and "processes use 0.0001 of the 0.00015 GB" in messages[0]


def test_what_does_not_fit_is_told(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = remembered("large/a.bin", 1_000_000)
    monkeypatch.setenv(cache.GIGABYTES, "0.0005")
    with pytest.raises(
        UserError, match=r"a\.bin: is 0\.001 GB, but the cache .* is limited to 0\.0005"
    ):
        local_file(url)
    monkeypatch.setenv(cache.GIGABYTES, "much")
    with pytest.raises(UserError, match="CLOZELAB_CACHE_GB=much: must be a number above 0"):
        local_file(url)
    monkeypatch.delenv(cache.GIGABYTES)
    with monkeypatch.context() as patched:
        patched.setattr(cache.shutil, "disk_usage", lambda path: SimpleNamespace(free=5_000))
        with pytest.raises(UserError, match=r"needs 0\.001 GB in .*CLOZELAB_CACHE to"):
            local_file(url)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(access, "ranged", full)
        with pytest.raises(UserError, match=r"a\.bin: no space is left in .*/remote; free"):
            local_file(url)
    assert not list(cache_dir.rglob("a.bin"))
    assert local_file(url).stat().st_size == 1_000_000


def test_a_cache_that_cannot_be_written_to_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    url = remembered("closed/a.bin", 100)
    local_file(url)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    monkeypatch.setattr("clozelab.files.FileLock.acquire", refuse)
    said = r"a\.bin: the cache .*/remote is not writable; set CLOZELAB_CACHE to another folder"
    with pytest.raises(UserError, match=said):
        local_file(url)


def test_a_file_that_has_changed_is_fetched_again() -> None:
    import fsspec

    url = remembered("changed/a.bin", 100)
    before = local_file(url).read_bytes()
    fsspec.filesystem("memory").pipe_file(url, bytes(100))
    assert local_file(url).read_bytes() == bytes(100) != before


def test_of_a_folder_what_is_wanted_is_fetched() -> None:
    for name in ("a/one.tsv", "a/deep/two.tsv", "b/three.tsv"):
        remembered(f"tasks/{name}", 10)
    folder = local_folder("memory://tasks", lambda name: name.startswith("a/"))
    there = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.tsv"))
    assert there == ["a/deep/two.tsv", "a/one.tsv"] and folder.name == "tasks"
    with pytest.raises(UserError, match="the folder memory://none does not exist or is empty"):
        local_folder("memory://none")
    assert local_folder("here/and/there") == Path("here/and/there")


def test_a_folder_of_a_web_server_whose_pages_lead_to_folders_and_to_other_orders(
    server: Server,
) -> None:
    server.orders = ("/", "?C=N;O=D", "?C=M;O=A")  # as Apache's
    for name in ("one.tsv", "deep/two.tsv"):
        (server.folder / "tasks" / name).parent.mkdir(parents=True, exist_ok=True)
        (server.folder / "tasks" / name).write_text(name, encoding="utf-8")
    for place in ("tasks", "tasks/", "tasks?signature=secret"):
        folder = local_folder(at(server, place))
        there = {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*.tsv")}
        assert there == {"one.tsv": "one.tsv", "deep/two.tsv": "deep/two.tsv"}
    (server.folder / "none").mkdir()
    with pytest.raises(UserError, match="none does not exist or is empty"):
        local_folder(at(server, "none"))


def test_of_a_folder_what_was_deleted_at_the_url_goes() -> None:
    import fsspec

    names = ("model.safetensors", "deep/one.tsv", "kept.json")
    urls = {name: remembered(f"model/{name}", 10) for name in names}
    folder = local_folder("memory://model")
    for name in names[:2]:
        fsspec.filesystem("memory").rm(urls[name])
    remembered("model/deep", 10)
    local_folder("memory://model", lambda name: name != "kept.json")
    there = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*"))
    assert there == ["deep", "kept.json"] and (folder / "deep").is_file()
    assert cache._read_index(folder.parent)["files"].keys() == {"model/kept.json", "model/deep"}


@pytest.mark.thorough
def test_a_state_of_a_corpus_before_text_was_added(
    server: Server,
) -> None:
    first = build(write(server.folder / "a.jsonl", texts(8)), server.folder / "growing")
    second = add(write(server.folder / "b.jsonl", texts(12)[8:]), server.folder / "growing")
    url, mark = at(server, "growing"), first.manifest["fingerprint"]
    assert the_same(Corpus.open(url), second)
    assert the_same(Corpus.open(f"{url}@{mark[:8]}"), first)
    assert as_it_was(f"{url}:0.5", mark) == f"{url}@{mark[:16]}:0.5"
    assert as_it_was(f"{url}:1", second.manifest["fingerprint"]) == f"{url}:1"
    assert f"{url}@{mark[:8]}: " in Corpus.open(url).show().facts["before text was added"]
    with pytest.raises(UserError, match=f"has no version 0000.*{mark[:8]}"):
        Corpus.open(f"{url}@0000")


def test_credentials_of_a_corpus_are_not_shown(
    local_corpus: Corpus,
    server: Server,
) -> None:
    url = f"{put_up(local_corpus, server)}?signature=secret"
    ((corpus, weight),) = open_stores([url])
    assert the_same(corpus, local_corpus) and weight == 1
    assert all("signature=secret" in path for path in server.requests)
    assert "secret" not in corpus.name + repr(corpus)
    for wrong in (url.replace("corpus", "none"), url.replace("corpus", "corpus@0000")):
        with pytest.raises(UserError) as error:
            Corpus.open(wrong)
        assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("word", "place", "weight"),
    [
        ("s3://bucket/corpus", "s3://bucket/corpus", 1),
        ("s3://bucket/corpus:0.5", "s3://bucket/corpus", 0.5),
        ("s3://bucket/corpus@12ab:2", "s3://bucket/corpus@12ab", 2),
        ("http://host:80/corpus", "http://host:80/corpus", 1),
        ("http://host:80/corpus:3", "http://host:80/corpus", 3),
        ("http://host:80", "http://host:80", 1),
        ("corpus:0.5", "corpus", 0.5),
    ],
)
def test_the_weight_of_a_corpus_at_a_url(word: str, place: str, weight: float) -> None:
    assert weighted(word) == (place, weight)


def test_urls_without_a_corpus_are_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="memory://empty: is not a corpus; upload the folder"):
        Corpus.open("memory://empty")
    with pytest.raises(UserError, match="--data memory://empty:x: x is not a weight"):
        open_stores(["memory://empty:x"])
    monkeypatch.setattr(access, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="needs pip install 'clozelab\\[remote\\]'"):
        Corpus.open("memory://empty")


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every corpus counts as a large one."""
    monkeypatch.setattr(fetched, "_LARGE", 0)
    monkeypatch.setattr(ahead, "GRAIN", 1_000)


@pytest.fixture
def held_back(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Until it is set, nothing comes but what somebody waits for."""
    real, free = access.ranged, Event()

    def ranged(file: Any, start: int, end: int) -> bytes | None:
        if end - start > ahead.GRAIN and file.url.endswith(("ids.npy", "marks.npy")):
            free.wait(60)
        return real(file, start, end)

    monkeypatch.setattr(access, "ranged", ranged)
    return free


@pytest.mark.usefixtures("large")
def test_tokens_are_read_while_they_are_fetched(
    local_corpus: Corpus, server: Server, cache_dir: Path, held_back: Event
) -> None:
    url = put_up(local_corpus, server)
    corpus = Corpus.open(url, ahead=True)
    ids, plain = corpus.documents().ids, local_corpus.documents().ids
    places = np.array([[len(plain) - 1, 3], [2000, 2001]])
    server.requests, server.troubles = [], ["503", "dropped"]
    assert np.array_equal(ids[places], plain[places]) and np.array_equal(ids[7:9], plain[7:9])
    assert server.requests.count("/corpus/train/ids.npy") == 4  # two grains, the first was there
    assert corpus.is_arriving
    with pytest.raises(UserError, match=r"ids\.npy: is still being downloaded"), no_thread():
        Corpus.open(corpus.path)
    held_back.set()
    assert np.array_equal(np.asarray(ids), plain)
    corpus.check()
    assert not corpus.is_arriving and not list(cache_dir.rglob("*.grains"))
    server.requests = []
    assert the_same(Corpus.open(url), local_corpus)
    assert [path.rpartition("/")[2] for path in server.requests] == ["manifest.json"]


@contextmanager
def no_thread() -> Iterator[None]:
    """As in another process, which fetches nothing."""
    filling = ahead._filling.copy()
    ahead._filling.clear()
    try:
        yield
    finally:
        ahead._filling.update(filling)


@pytest.mark.usefixtures("large")
def test_a_wrong_checksum_stops_who_reads_ahead(
    local_corpus: Corpus, server: Server, held_back: Event
) -> None:
    url = put_up(local_corpus, server)
    file = server.folder / "corpus" / "train" / "ids.npy"
    right = file.read_bytes()
    file.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    corpus = Corpus.open(url, ahead=True)
    ids = corpus.documents().ids
    assert ids[5] == local_corpus.documents().ids[5]
    held_back.set()
    for read in (lambda: np.asarray(ids), lambda: ids[5]):
        with pytest.raises(UserError, match=r"ids\.npy: its checksum .* restart the run"):
            read()
    file.write_bytes(right)
    assert the_same(Corpus.open(url), local_corpus)


@pytest.mark.usefixtures("large")
def test_what_was_fetched_ahead_is_not_fetched_again(
    local_corpus: Corpus, server: Server, held_back: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put_up(local_corpus, server)
    corpus = Corpus.open(url, ahead=True)
    ids = corpus.documents().ids
    assert ids[2000] == local_corpus.documents().ids[2000]
    with monkeypatch.context() as patched:
        patched.setattr(access, "ranged", lambda *_: None)  # what is under way goes on
        held_back.set()
        for name in ("ids", "marks"):
            with pytest.raises(UserError, match="no longer sends parts"):
                getattr(corpus.documents(), name)[:]
    server.requests = []
    corpus = Corpus.open(url, ahead=True)
    assert np.array_equal(np.asarray(corpus.documents().ids), local_corpus.documents().ids)
    pieces = -(-(local_corpus.path / "train" / "ids.npy").stat().st_size // access.PIECE)
    assert 0 < server.requests.count("/corpus/train/ids.npy") <= pieces + 1
    assert the_same(corpus, local_corpus)


@pytest.mark.usefixtures("large")
def test_a_full_disk_is_told_before_the_first_step(
    local_corpus: Corpus, server: Server, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    url = put_up(local_corpus, server)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match=r"no space is left in .*; free some, or set CLOZE"):
        Corpus.open(url, ahead=True)
    assert not list(cache_dir.rglob("train/ids.npy"))
    monkeypatch.undo()
    monkeypatch.setenv(cache.FOLDER, str(cache_dir))
    assert the_same(Corpus.open(url), local_corpus)


@pytest.mark.usefixtures("large")
def test_what_another_process_fetches_ahead_is_waited_for(
    local_corpus: Corpus, server: Server
) -> None:
    url = put_up(local_corpus, server)
    file = Corpus.open(url).path / "train" / "ids.npy"
    no_process_uses_it()
    file.unlink()
    file.with_name(".ids.npy.grains").write_bytes(b"")
    with ThreadPoolExecutor(1) as pool:
        with ahead.lock_of(file):
            task = pool.submit(Corpus.open, url)
            time.sleep(0.3)
            assert not task.done()
        assert the_same(task.result(), local_corpus)

"""The shards of a build, whatever an engine loses of them: read again, once, in the same order."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.corpora import build, digests, texts, write

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.text.reading import sources
from clozelab.text.store import build as store_build
from clozelab.text.store import shards
from clozelab.text.store.engines import TaskLost
from clozelab.text.store.tasks import ShardReader, make_shard

TEXTS = texts(60)


class _Promising:
    """A reader on a node: what it gives is not known before a task has it."""

    def __init__(self, *arguments: Any) -> None:
        self._reader = ShardReader(*arguments)
        self.close = self._reader.close

    def next(self) -> Callable[[], Any]:
        cut = self._reader.next()
        return lambda: cut


class _Losing:
    """Runs tasks when they are asked for, the last first; of all the `lost` ones are lost."""

    width, readers = 7, 3

    def __init__(self, lost: Collection[int]) -> None:
        self._lost, self.submitted, self.started = lost, 0, 0

    def reader(self, *arguments: Any) -> _Promising:
        self.started += 1
        return _Promising(*arguments)

    def prepare(self, settings: shards.TokenisingSettings, folder: Path) -> None:
        self._settings = settings

    def submit(self, cut: Callable[[], Any]) -> tuple[int, Any]:
        self.submitted += 1
        return self.submitted, cut

    def first_done(self, tasks: Collection[Any]) -> list[Any]:
        return [max(tasks, key=lambda task: task[0])]

    def result(self, task: tuple[int, Callable[[], Any]]) -> Any:
        number, cut = task
        if number in self._lost:
            raise TaskLost("the node died")
        return make_shard(self._settings, cut())


@pytest.fixture
def sharded_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files of several portions, of several shards each."""
    monkeypatch.setattr(shards, "SHARD", 1_500)
    monkeypatch.setattr(sources, "PORTION", 10_000)
    names = [f"{name}.jsonl" for name in "abcdefghij"]
    written = [write(tmp_path / name, TEXTS[at::10]) for at, name in enumerate(names)]
    for name in (written[0], written[-1]):  # something to be counted, at its first place
        with Path(name).open("ab") as file:
            file.write(b'{"text": "one\0two"}\n')
    return written


def _on(monkeypatch: pytest.MonkeyPatch, lost: Collection[int]) -> list[_Losing]:
    """Let builds run on an engine that loses some tasks."""
    engines: list[_Losing] = []

    @contextmanager
    def engine(options: Any) -> Any:
        engines.append(_Losing(lost))
        yield engines[-1]

    monkeypatch.setattr(store_build, "engine", engine)
    return engines


def test_what_is_lost_is_read_again_and_comes_to_the_same(
    tmp_path: Path, sharded_files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, again = Counts(), Counts()
    build(sharded_files, tmp_path / "here", counts=counted)
    assert [
        sharded_files[0] in place for what, place in counted.places.items() if "NUL" in what
    ] == [True]
    portions = len(sources.find(sharded_files, sources.Reading()).portions())
    for name, lost, read_again in (("whole", set[int](), 0), ("losing", {3, 4, 5, 11, 30, 31}, 4)):
        with monkeypatch.context() as patch:
            engines = _on(patch, lost=lost)
            build(sharded_files, tmp_path / name, counts=again)
        assert digests(tmp_path / name) == digests(tmp_path / "here")
        assert again == counted
        again.clear()
        assert portions + bool(lost) <= engines[0].started <= portions + read_again
        assert engines[0].submitted > max(lost, default=0)


def test_text_that_is_lost_again_and_again_is_told_of_and_what_is_finished_stays(
    tmp_path: Path, sharded_files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "c"
    with monkeypatch.context() as patch:
        _on(patch, lost=range(8, 1000))
        with pytest.raises(UserError, match=r"lost 5 times.*the node died.*same command again"):
            build(sharded_files, out)
    finished = [*(out / "building").glob("*.npz")]
    assert finished
    with monkeypatch.context() as patch:
        patch.setattr(shards, "save", _saving(finished))
        build(sharded_files, out)


def _saving(finished: Collection[Path]) -> Callable[[bytes, Path], None]:
    save = shards.save

    def saving(content: bytes, file: Path) -> None:
        assert file not in finished
        save(content, file)

    return saving


def test_files_are_read_in_portions_by_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "PORTION", 10)
    for name, size in {"a": 4, "b": 4, "c": 4, "d": 20, "e": 1}.items():
        (tmp_path / f"{name}.txt").write_text("x" * size, encoding="utf-8")
    urls = [f"file://{tmp_path}/a.txt", f"file://{tmp_path}/b.txt"]
    portions = sources.find([str(tmp_path), *urls], sources.Reading()).portions()
    names = [[Path(item.name).name for item in portion.items] for portion in portions]
    assert names == [["a.txt", "b.txt", "c.txt"], ["d.txt"], ["e.txt"], ["a.txt", "b.txt"]]
    assert [portion.is_remote for portion in portions] == [False, False, False, True]

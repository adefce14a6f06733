"""A copy of a folder at a URL: whole or not at all, and never in the way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from clozelab.errors import UserError
from clozelab.remote import access, copies
from clozelab.remote.copies import LIST, FolderCopy, check_new, put_folder, restore

MEMORY = fsspec.filesystem("memory")
URL = "memory://copies/run"


@pytest.fixture(autouse=True)
def emptied(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(access, "WAIT", 0.001)
    yield
    if MEMORY.exists("/copies"):
        MEMORY.rm("/copies", recursive=True)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder as runs have them."""
    folder = tmp_path / "run"
    for name in (".clozelab", ".lock", "recipe.toml", "metrics.jsonl", "result.json"):
        _written(folder / name, name)
    checkpoint(folder, 1)
    _written(folder / "checkpoints" / ".step-2.123.part" / "model.safetensors", "half")
    return folder


def checkpoint(run: Path, step: int, content: str = "weights") -> None:
    for name in ("model.safetensors", "state/state.json", "checksums.json"):
        _written(run / "checkpoints" / f"step-{step}" / name, f"{content} {name}")


def _written(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def there() -> dict[str, str]:
    """What the copy has."""
    names = MEMORY.find("/copies/run") if MEMORY.exists("/copies/run") else []
    return {name.removeprefix("/copies/run/"): MEMORY.cat(name).decode() for name in names}


def listed() -> set[str]:
    return {*json.loads(there()[LIST])["files"]}


def is_like(run: Path) -> bool:
    content = {name: text for name, text in there().items() if name != LIST}
    names = {str(file.relative_to(run)) for file in run.rglob("*") if file.is_file()}
    names = {name for name in names if ".lock" not in name and ".part" not in name} - {LIST}
    return content == {name: (run / name).read_text() for name in names} and listed() == names


def brought(run: Path, *, warn: Callable[[str], None] = pytest.fail) -> None:
    """Bring the copy up to date, as at the end of a command."""
    FolderCopy(run, URL, warn=warn).close()


@pytest.fixture
def store_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the store is asked to do, in order."""
    calls: list[str] = []
    for method, place in (("put_file", 1), ("rm_file", 0)):
        real = getattr(type(MEMORY), method)

        def spy(self: Any, *arguments: Any, real: Any = real, at: int = place, **more: Any) -> Any:
            verb = real.__name__.partition("_")[0]
            calls.append(f"{verb} {arguments[at].removeprefix('/copies/run/')}")
            return real(self, *arguments, **more)

        monkeypatch.setattr(type(MEMORY), method, spy)
    return calls


def test_what_vouches_for_others_is_put_after_them(run: Path, store_calls: list[str]) -> None:
    brought(run)
    assert is_like(run)
    assert (
        store_calls[0] == store_calls[-1] == f"put {LIST}" and store_calls[-2] == "put result.json"
    )
    assert store_calls[-3] == "put checkpoints/step-1/checksums.json"


def test_only_what_changed_is_put_again(run: Path, store_calls: list[str]) -> None:
    brought(run)
    store_calls.clear()
    brought(run)
    assert store_calls == []
    _written(run / "metrics.jsonl", "two lines")
    brought(run)
    assert is_like(run) and store_calls == ["put metrics.jsonl", f"put {LIST}"]


def test_what_is_gone_goes_when_the_newer_is_there(run: Path, store_calls: list[str]) -> None:
    brought(run)
    store_calls.clear()
    checkpoint(run, 2)
    for file in sorted((run / "checkpoints" / "step-1").rglob("*.*"), reverse=True):
        file.unlink()
    brought(run)
    assert is_like(run)
    puts = [number for number, call in enumerate(store_calls) if "put checkpoints/step-2" in call]
    removed = [call for call in store_calls if call.startswith("rm")]
    assert removed[0] == "rm checkpoints/step-1/checksums.json" and len(removed) == 3
    assert max(puts) < store_calls.index(removed[0])


def test_a_checkpoint_that_is_replaced_has_no_seal_meanwhile(
    run: Path, store_calls: list[str]
) -> None:
    brought(run)
    store_calls.clear()
    _written(run / "checkpoints" / "step-1" / "state" / "state.json", "another")
    brought(run)
    seal = "checkpoints/step-1/checksums.json"
    assert store_calls[:3] == [
        f"rm {seal}",
        "put checkpoints/step-1/state/state.json",
        f"put {seal}",
    ]
    assert is_like(run)


def test_a_checkpoint_whose_seal_is_gone_while_its_files_change_is_copied(run: Path) -> None:
    brought(run)
    checkpoint(run, 1, "others")
    (run / "checkpoints" / "step-1" / "checksums.json").unlink()  # as in the midst of a save
    brought(run)
    assert is_like(run)


def failing(monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> list[str]:
    """Let the store fail so often to take a file."""
    real, failed = type(MEMORY).put_file, list[str]()

    def put(self: Any, local: str, path: str, **more: Any) -> Any:
        if path.endswith(name) and len(failed) < times:
            failed.append(path)
            raise ConnectionResetError("reset")
        return real(self, local, path, **more)

    monkeypatch.setattr(type(MEMORY), "put_file", put)
    return failed


def test_what_fails_is_tried_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = failing(monkeypatch, "model.safetensors", access.TRIES - 1)
    brought(run)
    assert is_like(run) and len(failed) == access.TRIES - 1


def test_what_stays_down_is_told_and_leaves_nothing_half(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "model.safetensors", access.TRIES)
    messages: list[str] = []
    copy = FolderCopy(run, URL, warn=messages.append)
    copy.update()
    while not messages:
        copy._thread.join(0.01)
    assert messages == [
        f"the copy at {URL} is behind (memory://copies/run/checkpoints/step-1/model.safetensors"
        " cannot be written after 5 tries (reset); check the connection); the next save tries"
        " again"
    ]
    assert not {"result.json", "checkpoints/step-1/checksums.json"} & there().keys()
    assert listed() == set()
    copy.close()
    assert is_like(run) and len(messages) == 1


def test_a_copy_whose_last_update_succeeds_is_complete(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, real = FolderCopy(run, URL, warn=print), FolderCopy._update_copy
    tries = iter((True, False))

    def update(self: FolderCopy) -> None:
        if next(tries):
            self._due.set()  # asked for once more while it works
            raise ConnectionResetError("reset")
        real(self)

    monkeypatch.setattr(FolderCopy, "_update_copy", update)
    assert copy.close() and is_like(run) and not copy.behind


def test_what_is_removed_while_it_is_copied_is_no_fault(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = copies._upload

    def put(file: Path, url: str) -> None:
        if "step-1" in url and file.name == "model.safetensors":
            checkpoint(run, 2)
            for each in (run / "checkpoints" / "step-1").rglob("*.*"):
                each.unlink()
        real(file, url)

    monkeypatch.setattr(copies, "_upload", put)
    brought(run)
    assert is_like(run) and "checkpoints/step-2/checksums.json" in there()


def test_places_that_are_not_its_own_are_refused(run: Path, tmp_path: Path) -> None:
    brought(run)
    other = tmp_path / "other"
    _written(other / "recipe.toml", "other")
    refused = f"--copy-to {URL}: contains other files; name a new place"
    with pytest.raises(UserError, match=refused):
        brought(other)
    MEMORY.pipe_file(f"/copies/run/{LIST}", b"[]")
    with pytest.raises(UserError, match=refused):
        brought(run)
    with pytest.raises(UserError, match="https://a/b: a web server is not writable"):
        FolderCopy(run, "https://me:secret@a/b?key=secret", warn=pytest.fail)
    with pytest.raises(UserError, match="nothing://a cannot be read"):
        FolderCopy(run, "nothing://a", warn=pytest.fail)


@pytest.mark.parametrize(
    "altered",
    [
        {"files": ["recipe.toml"]},
        {"files": {"recipe.toml": 3}},
        {"files": {"recipe.toml": ["3", 4]}},
        {"files": {"recipe.toml": [3, -1]}},
        {"id": 3},
        {"to": None},
    ],
)
def test_a_list_that_was_altered_is_told(
    run: Path, tmp_path: Path, altered: dict[str, Any]
) -> None:
    brought(run)
    copied = json.dumps({**json.loads(there()[LIST]), **altered})
    MEMORY.pipe_file(f"/copies/run/{LIST}", copied.encode())
    with pytest.raises(UserError, match=rf"{URL}/{LIST}: is not a list of files .* it was altered"):
        restore(URL, tmp_path / "again")
    _written(run / LIST, copied)
    with pytest.raises(UserError, match="contains other files; name a new place"):
        brought(run)


def test_a_bucket_that_is_not_there_is_told(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(*args: Any, **kwargs: Any) -> None:
        raise FileNotFoundError("The specified bucket does not exist")

    monkeypatch.setattr(type(MEMORY), "find", find)
    with pytest.raises(UserError, match=f"^{URL}: the bucket does not exist; make it first"):
        FolderCopy(run, URL, warn=pytest.fail)


def test_a_folder_is_put_up_with_its_last_file_last(run: Path, store_calls: list[str]) -> None:
    check_new(URL)
    put_folder(run, URL, last="recipe.toml")
    assert store_calls[-1] == "put recipe.toml" and LIST not in there()
    with pytest.raises(UserError, match=f"{URL}: already contains files; name a new place"):
        check_new(URL)

"""A folder of this machine → a copy of it at a URL, which others can rely on while it is made.

Files that vouch for others (a checkpoint's checksums, a result) are put up after those, and a list
of all that is there last: `copied.json`, in the copy and beside what was copied.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from threading import Event, Thread
from typing import Any
from uuid import uuid4

from clozelab import files
from clozelab.errors import UserError
from clozelab.remote import access
from clozelab.remote.access import MissingError, RemoteFile, joined, shown
from clozelab.remote.fetching import Wanted, fetch

LIST = "copied.json"
_SEAL = "checksums.json"  # of a checkpoint, whose files are those beside it and below
_RESULT = "result.json"
_SLOW = 1 << 20  # bytes a second, below which a connection is taken for lost

Stamps = dict[str, list[int]]  # size and time of change (ns) of each file, by its name


def put_folder(folder: Path, url: str, *, last: str) -> None:
    """Put the files of a folder up where nothing is, the one of that name last."""
    names = sorted(_stamps(folder), key=lambda name: (name == last, name))
    for name in names:
        _put(folder / name, joined(url, name))


def check_new(url: str) -> None:
    """Refuse a URL that cannot be written, or where something is."""
    if _names_at(url):
        raise UserError(f"{shown(url)}: has files in it already; name a new place")


def restore(url: str, folder: Path) -> None:
    """Make the folder again of which a copy is at a URL, whole or not at all."""
    content = _content(partial(access.content, joined(url, LIST)))
    known = _parsed(content)
    if content is not None and not known:
        raise UserError(f"{shown(url)}/{LIST}: is no list of files and their sizes; it was altered")
    if not known:
        raise UserError(f"{folder}: is not there, and no copy of it at {shown(url)}; check both")
    with files.new_folder(folder) as part:
        for name, (size, changed) in known["files"].items():
            if {"", ".", ".."} & {*name.split("/")}:
                raise UserError(f"{shown(url)}/{LIST}: names a file {name!r}; it was altered")
            place = joined(url, name)
            wanted = Wanted(name, RemoteFile(place, *access.system_of(place), size, str(changed)))
            file = part / name
            file.parent.mkdir(parents=True, exist_ok=True)
            fetch(wanted, file, part=part / ".part", tell=lambda there: None)
            os.utime(file, ns=(changed, changed))  # so that it is known to be in the copy
        (part / LIST).write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def _names_at(url: str) -> set[str]:
    """The names of what is at a URL that can be written."""
    if access.is_web(url):
        raise UserError(
            f"{shown(url)}: a web server cannot be written; name a bucket, as in s3://bucket/name"
        )
    try:
        return {*access.files_under(url)}
    except access.MissingError:  # a folder that is not there has no files, and is no mistake
        raise UserError(
            f"{shown(url)}: there is no such bucket; make it first, or name another place"
        ) from None


class FolderCopy:
    """A copy of a folder, brought up to date by a thread of its own whenever it is asked for.

    What cannot be put up is told, and tried again the next time; only `close` waits for it.
    """

    def __init__(self, folder: Path, url: str, *, warn: Callable[[str], None]) -> None:
        self.folder, self.url, self.warn = folder, url, warn
        self._due, self._ends = Event(), False
        self._thread = Thread(target=self._work, daemon=True)
        known = _read(_local(folder / LIST))
        self._id = str(known.get("id") or uuid4().hex)
        self._check(known)
        same = known.get("to") == shown(url)
        self._there: Stamps = dict(known["files"]) if same else {}  # what the copy has
        self._thread.start()

    def update(self) -> None:
        """Ask for it to be brought up to date."""
        self._due.set()

    def close(self, seconds: float | None = None) -> bool:
        """Bring it up to date, and wait for that, but not longer; whether it is done."""
        if not self._ends:
            self._ends = True
            self._due.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _check(self, known: Mapping[str, Any]) -> None:
        """Refuse a URL where something else is than an earlier copy of this folder."""
        names = _names_at(self.url)
        if not names:
            return
        other = _read(partial(access.content, joined(self.url, LIST))) if LIST in names else {}
        if not known or other.get("id") != known.get("id"):
            raise UserError(f"--copy-to {shown(self.url)}: has other files in it; name a new place")

    def _work(self) -> None:
        said = ""
        while True:
            self._due.wait()
            self._due.clear()
            ends = self._ends  # whatever is written before that is said is in the copy
            try:
                self._bring_up_to_date()
                said = ""
            except (UserError, OSError) as error:
                later = "to go on with it, with the same --copy-to, puts up the rest"
                again = later if ends else "the next save tries again"
                sentence = (
                    f"the copy at {shown(self.url)} is behind ({access.said(error)}); {again}"
                )
                if sentence != said:
                    self.warn(sentence)
                said = sentence
            if ends and not self._due.is_set():
                return

    def _bring_up_to_date(self) -> None:
        now = _stamps(self.folder) if self.folder.is_dir() else {}
        if not now:
            return
        if not self._there:
            self._write_list()  # so that it is known whose copy this is
        changed = [name for name, stamp in now.items() if self._there.get(name) != stamp]
        gone = self._there.keys() - now.keys()
        for name in sorted(_seals(changed) & self._there.keys()):
            self._remove(name)
            changed += [name] if name in now and name not in changed else []
        for name in sorted(changed, key=_order):
            try:
                _put(self.folder / name, joined(self.url, name))
            except (MissingError, FileNotFoundError):
                if (self.folder / name).exists():
                    raise
                self._due.set()  # it was removed meanwhile, and something newer took its place
                return
            self._there[name] = now[name]
        if changed or gone:
            self._write_list(without=gone)
        for name in sorted(gone, key=_order, reverse=True):
            self._remove(name)
        if gone:
            self._write_list()

    def _remove(self, name: str) -> None:
        url = joined(self.url, name)
        system, path = access.system_of(url)
        with suppress(MissingError):
            access.tried(partial(access.call, system, "rm_file", path), url, verb="removed")
        del self._there[name]

    def _write_list(self, *, without: set[str] | frozenset[str] = frozenset()) -> None:
        stamps = {name: stamp for name, stamp in sorted(self._there.items()) if name not in without}
        entry = {"id": self._id, "to": shown(self.url), "files": stamps}
        files.write_text(self.folder / LIST, json.dumps(entry, indent=1) + "\n")
        _put(self.folder / LIST, joined(self.url, LIST))


def _stamps(folder: Path) -> Stamps:
    """The files of a folder that are whole: not what is being written, nor locks."""
    stamps = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            file = Path(place, name)
            if name == files.MARKER or not (name.startswith(".") or name == LIST):
                with suppress(FileNotFoundError):  # removed meanwhile
                    at = file.stat()
                    stamps[file.relative_to(folder).as_posix()] = [at.st_size, at.st_mtime_ns]
    return stamps


def _seals(changed: list[str]) -> set[str]:
    """The seals of what has changed, in the same folder or above it."""
    return {str(folder / _SEAL) for name in changed for folder in PurePosixPath(name).parents}


def _order(name: str) -> tuple[int, int, str]:
    """Seals come after what they seal, and results after all, the innermost first."""
    path = PurePosixPath(name)
    return (path.name == _SEAL) + 2 * (path.name == _RESULT), -len(path.parts), name


def _put(file: Path, url: str) -> None:
    """Put a file up, whole or not at all where the store can do that."""
    system, path = access.system_of(url)
    limit = access.PATIENCE + file.stat().st_size / _SLOW
    put = partial(access.call, system, "put_file", str(file), path, seconds=limit)
    access.tried(put, url, verb="written")


def _local(file: Path) -> Callable[[], bytes]:
    return file.read_bytes


def _read(content: Callable[[], bytes]) -> dict[str, Any]:
    """A list of what was copied; nothing where there is none, or one that was altered."""
    return _parsed(_content(content))


def _content(content: Callable[[], bytes]) -> bytes | None:
    """The bytes of a list; None where there is none."""
    try:
        return content()
    except (OSError, UserError):
        return None


def _parsed(content: bytes | None) -> dict[str, Any]:
    """The list that some bytes are; nothing where they are none."""
    try:
        entry = json.loads(content or b"{}")
    except ValueError:
        return {}
    if not isinstance(entry, dict) or not isinstance(entry.get("files"), dict):
        return {}
    named = isinstance(entry.get("id"), str) and isinstance(entry.get("to"), str)
    return entry if named and all(map(_is_stamp, entry["files"].values())) else {}


def _is_stamp(value: Any) -> bool:
    """Whether a value is a size and a time of change."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(number) is int and 0 <= number < 1 << 63 for number in value)
    )

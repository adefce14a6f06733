"""A folder of this machine → a copy of it at a URL, which is consistent while it is made.

Files that vouch for others (a checkpoint's checksums, a result) are uploaded after those, and last
a list of all files in the copy: `copied.json`, in the copy and in the folder.
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
_SEAL = "checksums.json"  # of a checkpoint, for the files beside and below it
_RESULT = "result.json"
_SLOW = 1 << 20  # bytes per second; a slower connection counts as lost

Stamps = dict[str, list[int]]  # size and time of change (ns) of each file, by its name


def put_folder(folder: Path, url: str, *, last: str) -> None:
    """Upload the files of a folder to a new place, the one named `last` last."""
    names = sorted(_stamps(folder), key=lambda name: (name == last, name))
    for name in names:
        _upload(folder / name, joined(url, name))


def check_new(url: str) -> None:
    """Refuse a URL that cannot be written or that has files already."""
    if _has_files(url):
        raise UserError(f"{shown(url)}: already contains files; name a new place")


def restore(url: str, folder: Path) -> None:
    """Restore a folder from its copy at a URL, completely or not at all."""
    known = _read_list(partial(access.content, joined(url, LIST)))
    if known is None:
        raise UserError(
            f"{folder}: does not exist, and neither does a copy at {shown(url)}; check both"
        )
    if not known:
        raise UserError(
            f"{shown(url)}/{LIST}: is not a list of files and sizes, so it was altered;"
            " restore it there"
        )
    with files.new_folder(folder) as part:
        for name, (size, changed) in known["files"].items():
            if {"", ".", ".."} & {*name.split("/")}:
                raise UserError(
                    f"{shown(url)}/{LIST}: lists a file {name!r}, so it was altered; restore"
                    " it there"
                )
            place = joined(url, name)
            wanted = Wanted(name, RemoteFile(place, *access.system_of(place), size, str(changed)))
            file = part / name
            file.parent.mkdir(parents=True, exist_ok=True)
            fetch(wanted, file, part=part / ".part", tell=lambda there: None)
            os.utime(file, ns=(changed, changed))  # so that it counts as copied
        (part / LIST).write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def _has_files(url: str) -> bool:
    """Whether there are files at a URL; refuses one that cannot be written."""
    if access.is_web(url):
        raise UserError(
            f"{shown(url)}: a web server is not writable; name a bucket, as in s3://bucket/name"
        )
    try:
        return bool(access.files_under(url))
    except access.MissingError:  # a missing folder has no files; only a missing bucket raises
        raise UserError(
            f"{shown(url)}: the bucket does not exist; make it first, or name another place"
        ) from None


class FolderCopy:
    """A copy of a folder, which a thread of its own updates on request.

    Failed uploads are warned of and tried again with the next update; only `close` waits. If the
    last update fails, `behind` says so.
    """

    def __init__(self, folder: Path, url: str, *, warn: Callable[[str], None]) -> None:
        self.folder, self.url, self.warn = folder, url, warn
        self.behind = ""
        self._due, self._ends = Event(), False
        self._thread = Thread(target=self._work, daemon=True)
        known = _read_list((folder / LIST).read_bytes) or {}
        self._id = str(known.get("id") or uuid4().hex)
        self._check(known)
        same = known.get("to") == shown(url)
        self._copied: Stamps = dict(known["files"]) if same else {}  # what the copy has
        self._thread.start()

    def update(self) -> None:
        """Request an update, without waiting for it."""
        self._due.set()

    def close(self, seconds: float | None = None) -> bool:
        """Request the last update and wait for it, at most `seconds`; whether it is done."""
        if not self._ends:
            self._ends = True
            self._due.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _check(self, known: Mapping[str, Any]) -> None:
        """Refuse a URL with files other than those of an earlier copy of this folder."""
        if not _has_files(self.url):
            return
        other = _read_list(partial(access.content, joined(self.url, LIST))) or {}
        if not known or other.get("id") != known["id"]:
            raise UserError(f"--copy-to {shown(self.url)}: contains other files; name a new place")

    def _work(self) -> None:
        said = ""
        while True:
            self._due.wait()
            self._due.clear()
            ends = self._ends  # read before the update, which then has all files of that time
            try:
                self._update_copy()
                said = self.behind = ""
            except (UserError, OSError) as error:
                later = "continue with the same --copy-to to copy the rest"
                again = later if ends else "the next save tries again"
                sentence = (
                    f"the copy at {shown(self.url)} is behind ({access.said(error)}); {again}"
                )
                if ends:
                    self.behind = sentence
                elif sentence != said:
                    self.warn(sentence)
                said = sentence
            if ends and not self._due.is_set():
                return

    def _update_copy(self) -> None:
        now = _stamps(self.folder) if self.folder.is_dir() else {}
        if not now:
            return
        if not self._copied:
            self._write_list()  # marks the place as a copy of this folder
        changed = [name for name, stamp in now.items() if self._copied.get(name) != stamp]
        for name in sorted(_seals(changed) & self._copied.keys()):
            self._remove(name)
            changed += [name] if name in now and name not in changed else []
        gone = self._copied.keys() - now.keys()
        for name in sorted(changed, key=_upload_order):
            try:
                _upload(self.folder / name, joined(self.url, name))
            except (MissingError, FileNotFoundError):
                if (self.folder / name).exists():
                    raise
                self._due.set()  # it was removed meanwhile: update again
                return
            self._copied[name] = now[name]
        if changed or gone:
            self._write_list(without=gone)
        for name in sorted(gone, key=_upload_order, reverse=True):
            self._remove(name)
        if gone:
            self._write_list()

    def _remove(self, name: str) -> None:
        url = joined(self.url, name)
        system, path = access.system_of(url)
        with suppress(MissingError):
            access.call_with_retries(url, system, "rm_file", path, verb="removed")
        del self._copied[name]

    def _write_list(self, *, without: set[str] | frozenset[str] = frozenset()) -> None:
        stamps = {name: self._copied[name] for name in sorted(self._copied) if name not in without}
        entry = {"id": self._id, "to": shown(self.url), "files": stamps}
        files.write_text(self.folder / LIST, json.dumps(entry, indent=1) + "\n")
        _upload(self.folder / LIST, joined(self.url, LIST))


def _stamps(folder: Path) -> Stamps:
    """The complete files of a folder: without those being written, and without locks."""
    stamps = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            file = Path(place, name)
            if name == files.MARKER or not (name.startswith(".") or name == LIST):
                with suppress(FileNotFoundError):  # removed meanwhile
                    stat = file.stat()
                    stamps[file.relative_to(folder).as_posix()] = [stat.st_size, stat.st_mtime_ns]
    return stamps


def _seals(changed: list[str]) -> set[str]:
    """The paths of seals that would cover changed files, in the same folder or above."""
    return {str(folder / _SEAL) for name in changed for folder in PurePosixPath(name).parents}


def _upload_order(name: str) -> tuple[int, int, str]:
    """The sort key of uploads: seals after the files, results after all, innermost first."""
    path = PurePosixPath(name)
    return (path.name == _SEAL) + 2 * (path.name == _RESULT), -len(path.parts), name


def _upload(file: Path, url: str) -> None:
    """Upload a file, atomically if the store can do that."""
    system, path = access.system_of(url)
    limit = access.PATIENCE + file.stat().st_size / _SLOW
    if access.has_folders(system):
        folder = path.rpartition("/")[0]
        access.tried(partial(system.makedirs, folder, exist_ok=True), url, verb="written")
    access.call_with_retries(
        url, system, "put_file", str(file), path, seconds=limit, verb="written"
    )


def _read_list(content: Callable[[], bytes]) -> dict[str, Any] | None:
    """A list of copied files; None if it cannot be read, empty if it is not valid."""
    try:
        entry = json.loads(content())
    except (OSError, UserError):
        return None
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

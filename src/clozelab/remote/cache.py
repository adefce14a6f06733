"""What was fetched from URLs, on this machine: in a folder of bounded size that processes share.

CACHE/remote/DIGEST/   an entry: the files of a corpus, or some of a folder at a URL
  .files.json          what is there in which version, and how large it will be; touched when used
  .used-PID-ID         locked by a process that uses the entry, for as long as it lives

One process fetches while the others wait. Who needs room removes the entries that were not used for
the longest time, but none that a process uses.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from filelock import FileLock, Timeout

from clozelab import files
from clozelab.errors import UserError
from clozelab.remote import access, ahead
from clozelab.remote.access import MissingError, shown
from clozelab.remote.fetching import Wanted, fetch

FOLDER = "CLOZELAB_CACHE"  # environment variables: where it is, and how large it may be
GIGABYTES = "CLOZELAB_CACHE_GB"
_USUAL = 200  # GB; not tuned: CLOZELAB_CACHE_GB is for machines with less
_KIND = "cache"
_INDEX = ".files.json"
_USED = ".used-"

Tell = Callable[[int, int], None]

# The entries that this process uses, until it ends; one that was forked has its own.
_uses: dict[tuple[Path, int], FileLock] = {}


def home() -> Path:
    """The user's cache folder of clozelab."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get(FOLDER) or caches / "clozelab")


def local_file(place: str) -> Path:
    """A file on this machine: that of a path, or that of a URL, fetched."""
    if not access.is_url(place):
        return Path(place)
    name = _last_name(place)
    return entry(place, [Wanted(name, access.file_at(place))], url=place) / name


def local_folder(place: str, wanted: Callable[[str], bool] = lambda name: True) -> Path:
    """A folder on this machine: that of a path, or the wanted files of that at a URL, fetched."""
    if not access.is_url(place):
        return Path(place)
    remote_files = access.files_under(place)
    if not remote_files.keys() - {""}:
        raise MissingError(f"there is no folder {shown(place)}, or nothing in it: check the name")
    name = _last_name(place)
    chosen = [
        Wanted(f"{name}/{inside}", file)
        for inside, file in remote_files.items()
        if not {"", ".", ".."} & {*inside.split("/")} and "?" not in inside and wanted(inside)
    ]
    listed = {f"{name}/{inside}" for inside in remote_files}
    folder = entry(place, chosen, url=place, listed=listed) / name
    folder.mkdir(exist_ok=True)
    return folder


def _last_name(url: str) -> str:
    return shown(url).rstrip("/").rpartition("/")[2].lstrip(".") or "root"


def entry(
    key: str,
    wanted: Sequence[Wanted],
    *,
    url: str,
    checked: bool = False,
    listed: Set[str] | None = None,
    later: Callable[[Wanted], bool] = lambda wanted: False,
    tell: Tell = lambda done, total: None,
) -> Path:
    """The folder of an entry with the wanted files in it, which this process uses from now on.

    Of files that are there already, checksums are compared only where that is asked for. Of what
    is fetched it is told how many bytes are there, and how many there will be. Files that may come
    `later` are fetched in the background (`remote/ahead.py`). What is not `listed`, where that is
    all there is at the URL, is removed.
    """
    folder = home() / "remote" / sha256(key.encode()).hexdigest()[:32]
    with _disk_said(folder.parent, url):
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            with files.locked(folder, wait=True):
                files.claim(folder, _KIND)
                _use(folder)
                if listed is not None:
                    _remove_others(folder, listed)
                missing = _missing(folder, wanted, checked=checked)
                files_of_others = [each for each in missing if _is_filled_elsewhere(folder, each)]
                if not files_of_others:
                    _bring(folder, missing, url=url, later=later, tell=tell)
                    return folder
            with ahead.lock_of(folder / files_of_others[0].name).acquire(timeout=-1):
                pass  # when the process that fills it has ended, or is done


def _remove_others(folder: Path, listed: Set[str]) -> None:
    """Remove the files that are no longer at the URL, and forget them."""
    for place, _, names in os.walk(folder, topdown=False):
        inside = Path(place).relative_to(folder)
        if inside == Path():  # an entry's own files
            continue
        for name in names:
            if (inside / name).as_posix() not in listed:
                (folder / inside / name).unlink()
        with suppress(OSError):  # not empty
            (folder / inside).rmdir()
    known = _read(folder)["files"]
    if known.keys() - listed:
        _write(folder, files={name: known[name] for name in known if name in listed})


def _missing(folder: Path, wanted: Sequence[Wanted], *, checked: bool) -> list[Wanted]:
    """What is neither there nor on its way to this process."""
    index = _read(folder)
    others = (each for each in wanted if not ahead.is_coming(folder / each.name))
    return [each for each in others if not _is_there(folder, each, index, checked=checked)]


def _is_filled_elsewhere(folder: Path, wanted: Wanted) -> bool:
    file = folder / wanted.name
    return ahead.is_unfinished(file) and _is_held(ahead.lock_of(file))


def _bring(
    folder: Path,
    missing: Sequence[Wanted],
    *,
    url: str,
    later: Callable[[Wanted], bool],
    tell: Tell,
) -> None:
    """Fetch what is missing, now or in the background."""
    if missing:
        _make_room(folder, sum(each.bytes for each in missing), url=url)
        after = [each for each in missing if later(each) and access.has_ranges(each.file)]
        _fetch(folder, [each for each in missing if each not in after], tell)
        begun = []
        for each in after:
            target = folder / each.name
            target.parent.mkdir(parents=True, exist_ok=True)
            lock = ahead.lock_of(target)
            lock.acquire()
            begun.append((ahead.AheadFile(each, target, lock), partial(_enter, folder, each)))
        ahead.fill(begun)
    if (folder / _INDEX).exists():
        os.utime(folder / _INDEX)


def _enter(folder: Path, wanted: Wanted) -> None:
    """Note that a file is whole."""
    with files.locked(folder, wait=True):
        _write(folder, files={**_read(folder)["files"], wanted.name: wanted.version})


def _fetch(folder: Path, missing: Sequence[Wanted], tell: Tell) -> None:
    done, total = 0, sum(each.bytes for each in missing)

    def tell_of_one(there: int) -> None:
        tell(done + there, total)

    for each in missing:
        tell(done, total)
        target, digest = folder / each.name, sha256(f"{each.name} {each.version}".encode())
        target.parent.mkdir(parents=True, exist_ok=True)
        part = folder / f".{digest.hexdigest()[:16]}.part"
        fetch(each, target, part=part, tell=tell_of_one)
        ahead.forget(target)
        _write(folder, files={**_read(folder)["files"], each.name: each.version})
        done += each.bytes


def _is_there(folder: Path, wanted: Wanted, index: Mapping[str, Any], *, checked: bool) -> bool:
    file = folder / wanted.name
    if not wanted.version or index["files"].get(wanted.name) != wanted.version:
        return False
    if not file.is_file() or wanted.file.size not in (None, file.stat().st_size):
        return False
    return not (checked and wanted.sha256) or files.sha256(file) == wanted.sha256


def _make_room(folder: Path, need: int, *, url: str) -> None:
    """Let so many bytes more fit into the cache, and claim the room before another process does."""
    most, root, size = _most(), folder.parent, need + _there(folder)
    larger = f"set {GIGABYTES} to more, or {FOLDER} to a folder on another disk"
    if size > most:
        raise UserError(
            f"{shown(url)}: is {_gigabytes(size)} GB, and the cache {root} may have"
            f" {_gigabytes(most)}; {larger}"
        )
    with files.locked(root, wait=True):
        others = [path for path in root.iterdir() if files.kind_of(path) == _KIND]
        others = sorted((path for path in others if path != folder), key=_last_used)
        taken = {path: _size(path) for path in others}
        for path in others:
            if size + sum(taken.values()) <= most and need <= shutil.disk_usage(root).free:
                break
            if _cleared(path):
                taken[path] = 0
        if size + sum(taken.values()) > most:
            raise UserError(
                f"{shown(url)}: is {_gigabytes(size)} GB, and processes use"
                f" {_gigabytes(sum(taken.values()))} of the {_gigabytes(most)} GB that the cache"
                f" {root} may have; wait for them, or {larger}"
            )
        free = shutil.disk_usage(root).free
        if need > free:
            raise UserError(
                f"{shown(url)}: needs {_gigabytes(need)} GB of space in {root}, where"
                f" {_gigabytes(free)} are left; free some, or set {FOLDER} to another folder"
            )
        _write(folder, bytes=size)


def _most() -> int:
    """Bytes that the cache may have."""
    word = os.environ.get(GIGABYTES) or str(_USUAL)
    try:
        number = float(word)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise UserError(f"{GIGABYTES}={word}: must be a number above 0, in gigabytes")
    return int(number * 1e9)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.3g}"


def _use(folder: Path) -> None:
    """Note that this process uses an entry, which the caller has locked.

    In containers that share a cache several processes have the same number.
    """
    key = folder, os.getpid()
    if key not in _uses:
        for use in folder.glob(f"{_USED}*"):
            if not _is_in_use(use):
                use.unlink(missing_ok=True)
        lock = FileLock(folder / f"{_USED}{os.getpid()}-{uuid4().hex}", thread_local=False)
        lock.acquire()
        _uses[key] = lock


def _cleared(folder: Path) -> bool:
    """Remove what is in an entry, but its marker and lock; not if a process uses it."""
    lock = FileLock(folder / files.LOCK, timeout=0)
    try:
        with lock:
            if any(map(_is_in_use, folder.glob(f"{_USED}*"))):
                return False
            files.clear(folder)
            return True
    except Timeout:
        return False


def _is_in_use(use: Path) -> bool:
    """Whether the process that made a note of its use still lives."""
    mine = {Path(lock.lock_file) for lock in _uses.values()}
    return use in mine or _is_held(FileLock(use, timeout=0))


def _is_held(lock: FileLock) -> bool:
    """Whether a process has a lock."""
    try:
        with lock:
            return False
    except Timeout:
        return True


def _last_used(folder: Path) -> float:
    index = folder / _INDEX
    return index.stat().st_mtime if index.exists() else 0.0


def _size(folder: Path) -> int:
    """Bytes that an entry has, or will have; plans that were made in it count as well."""
    return max(_there(folder), int(_read(folder)["bytes"]))


def _there(folder: Path) -> int:
    """Bytes of the files that an entry has whole."""
    whole = (file for file in folder.rglob("*") if file.suffix != ".part" and file.is_file())
    return sum(file.lstat().st_size for file in whole)


def _read(folder: Path) -> dict[str, Any]:
    """What is in an entry."""
    empty: dict[str, Any] = {"bytes": 0, "files": {}}
    try:
        return {**empty, **json.loads((folder / _INDEX).read_text(encoding="utf-8"))}
    except (OSError, ValueError, TypeError):
        return empty


def _write(folder: Path, **changes: Any) -> None:
    files.write_text(folder / _INDEX, json.dumps({**_read(folder), **changes}, indent=1) + "\n")


@contextmanager
def _disk_said(root: Path, url: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in files.FULL:
            raise UserError(
                f"{shown(url)}: no space is left for it in {root}; free some, or set {FOLDER} to"
                " another folder"
            ) from None
        if isinstance(error, PermissionError):
            raise UserError(
                f"{shown(url)}: the cache {root} cannot be written; set {FOLDER} to another folder"
            ) from None
        raise

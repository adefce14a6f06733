"""The cache of files fetched from URLs: a folder of bounded size that processes share.

CACHE/remote/DIGEST/   an entry: the files of a corpus, or some of a folder at a URL
  .files.json          its files with their versions, and its final size; touched when used
  .used-PID-ID         locked by a process that uses the entry, for as long as it lives

One process fetches while the others wait. To make room, the least recently used entries are
removed, except those that a process uses.
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

FOLDER = "CLOZELAB_CACHE"  # environment variables: the folder of the cache, and its largest size
GIGABYTES = "CLOZELAB_CACHE_GB"
_USUAL = 200  # GB; not tuned: CLOZELAB_CACHE_GB is for machines with less
_KIND = "cache"
_INDEX = ".files.json"
_USED = ".used-"

Tell = Callable[[int, int], None]

# The locks of the entries that this process uses, by entry and PID: a forked process has its own.
_uses: dict[tuple[Path, int], FileLock] = {}


def home() -> Path:
    """The user's cache folder of clozelab."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get(FOLDER) or caches / "clozelab")


def local_file(place: str) -> Path:
    """The file of a path, or the cached file of a URL, fetched if need be."""
    if not access.is_url(place):
        return Path(place)
    name = _last_name(place)
    return entry(place, [Wanted(name, access.file_at(place))], url=place) / name


def local_folder(place: str, wanted: Callable[[str], bool] = lambda name: True) -> Path:
    """The folder of a path, or a cached folder with the wanted files of a URL, fetched."""
    if not access.is_url(place):
        return Path(place)
    remote_files = access.files_under(place)
    if not remote_files.keys() - {""}:
        raise MissingError(f"the folder {shown(place)} does not exist or is empty; check the name")
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
    """The folder of an entry with the wanted files, which this process uses from now on.

    Checksums of files that are there already are compared only if `checked`. `tell` is called with
    the bytes fetched so far and in all. Files that may come `later` are fetched in the background
    (`remote/ahead.py`). `listed`, if given, are all files at the URL: others are removed from the
    entry.
    """
    folder = home() / "remote" / sha256(key.encode()).hexdigest()[:32]
    with _disk_errors(folder.parent, url):
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            with files.locked(folder, wait=True):
                files.claim(folder, _KIND)
                _lock_use(folder)
                if listed is not None:
                    _remove_others(folder, listed)
                missing = _missing(folder, wanted, checked=checked)
                elsewhere = [file for file in missing if _is_filled_elsewhere(folder, file)]
                if not elsewhere:
                    _fetch_missing(folder, missing, url=url, later=later, tell=tell)
                    return folder
            with ahead.lock_of(folder / elsewhere[0].name).acquire(timeout=-1):
                pass  # wait until the process that fills it is done or has ended


def _remove_others(folder: Path, listed: Set[str]) -> None:
    """Remove the files that are not listed, from the entry and its index."""
    for place, _, names in os.walk(folder, topdown=False):
        inside = Path(place).relative_to(folder)
        if inside == Path():  # the entry's index and locks
            continue
        for name in names:
            if (inside / name).as_posix() not in listed:
                (folder / inside / name).unlink()
        with suppress(OSError):  # not empty
            (folder / inside).rmdir()
    known = _read_index(folder)["files"]
    if known.keys() - listed:
        _write_index(folder, files={name: known[name] for name in known if name in listed})


def _missing(folder: Path, wanted: Sequence[Wanted], *, checked: bool) -> list[Wanted]:
    """The wanted files that are neither complete nor being fetched by this process."""
    index = _read_index(folder)
    others = (file for file in wanted if not ahead.is_coming(folder / file.name))
    return [file for file in others if not _is_complete(folder, file, index, checked=checked)]


def _is_filled_elsewhere(folder: Path, wanted: Wanted) -> bool:
    file = folder / wanted.name
    return ahead.is_unfinished(file) and _is_held(ahead.lock_of(file))


def _fetch_missing(
    folder: Path,
    missing: Sequence[Wanted],
    *,
    url: str,
    later: Callable[[Wanted], bool],
    tell: Tell,
) -> None:
    """Fetch the missing files, now or in the background."""
    if missing:
        _make_room(folder, sum(wanted.bytes for wanted in missing), url=url)
        background = [item for item in missing if later(item) and access.has_ranges(item.file)]
        _fetch_now(folder, [item for item in missing if item not in background], tell)
        begun = []
        for item in background:
            target = folder / item.name
            target.parent.mkdir(parents=True, exist_ok=True)
            lock = ahead.lock_of(target)
            lock.acquire()
            begun.append((ahead.AheadFile(item, target, lock), partial(_record_file, folder, item)))
        ahead.fill(begun)
    if (folder / _INDEX).exists():
        os.utime(folder / _INDEX)


def _record_file(folder: Path, wanted: Wanted) -> None:
    """Record in the index that a file is complete."""
    with files.locked(folder, wait=True):
        _write_index(folder, files={**_read_index(folder)["files"], wanted.name: wanted.version})


def _fetch_now(folder: Path, missing: Sequence[Wanted], tell: Tell) -> None:
    done, total = 0, sum(wanted.bytes for wanted in missing)

    def tell_total(file_bytes: int) -> None:
        tell(done + file_bytes, total)

    for wanted in missing:
        tell(done, total)
        target, digest = folder / wanted.name, sha256(f"{wanted.name} {wanted.version}".encode())
        target.parent.mkdir(parents=True, exist_ok=True)
        part = folder / f".{digest.hexdigest()[:16]}.part"
        fetch(wanted, target, part=part, tell=tell_total)
        ahead.forget(target)
        _write_index(folder, files={**_read_index(folder)["files"], wanted.name: wanted.version})
        done += wanted.bytes


def _is_complete(folder: Path, wanted: Wanted, index: Mapping[str, Any], *, checked: bool) -> bool:
    file = folder / wanted.name
    if not wanted.version or index["files"].get(wanted.name) != wanted.version:
        return False
    if not file.is_file() or wanted.file.size not in (None, file.stat().st_size):
        return False
    return not (checked and wanted.sha256) or files.sha256(file) == wanted.sha256


def _make_room(folder: Path, need: int, *, url: str) -> None:
    """Remove old entries until `need` more bytes fit, and reserve them against other processes."""
    most, root, size = _most(), folder.parent, need + _bytes_on_disk(folder)
    larger = f"set {GIGABYTES} to more, or {FOLDER} to a folder on another disk"
    if size > most:
        raise UserError(
            f"{shown(url)}: is {_gigabytes(size)} GB, but the cache {root} is limited to"
            f" {_gigabytes(most)}; {larger}"
        )
    with files.locked(root, wait=True):
        others = [path for path in root.iterdir() if files.kind_of(path) == _KIND]
        others = sorted((path for path in others if path != folder), key=_last_used)
        taken = {path: _reserved_bytes(path) for path in others}
        for path in others:
            if size + sum(taken.values()) <= most and need <= shutil.disk_usage(root).free:
                break
            if _clear_unused(path):
                taken[path] = 0
        if size + sum(taken.values()) > most:
            raise UserError(
                f"{shown(url)}: is {_gigabytes(size)} GB, but running processes use"
                f" {_gigabytes(sum(taken.values()))} of the {_gigabytes(most)} GB of the"
                f" cache {root}; wait for them, or {larger}"
            )
        free = shutil.disk_usage(root).free
        if need > free:
            raise UserError(
                f"{shown(url)}: needs {_gigabytes(need)} GB in {root}, where"
                f" {_gigabytes(free)} are free; free some space, or set {FOLDER} to another"
                " folder"
            )
        _write_index(folder, bytes=size)


def _most() -> int:
    """Bytes that the cache may take."""
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


def _lock_use(folder: Path) -> None:
    """Record that this process uses an entry, which the caller has locked.

    The file's name has a random part too, since containers that share a cache share PIDs.
    """
    key = folder, os.getpid()
    if key not in _uses:
        for use in folder.glob(f"{_USED}*"):
            if not _is_in_use(use):
                use.unlink(missing_ok=True)
        lock = FileLock(folder / f"{_USED}{os.getpid()}-{uuid4().hex}", thread_local=False)
        lock.acquire()
        _uses[key] = lock


def _clear_unused(folder: Path) -> bool:
    """Clear an entry except for marker and lock, unless a process uses it; whether it was done."""
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
    """Whether the process that holds this file's lock is alive."""
    mine = {Path(lock.lock_file) for lock in _uses.values()}
    return use in mine or _is_held(FileLock(use, timeout=0))


def _is_held(lock: FileLock) -> bool:
    """Whether some process holds a lock."""
    try:
        with lock:
            return False
    except Timeout:
        return True


def _last_used(folder: Path) -> float:
    index = folder / _INDEX
    return index.stat().st_mtime if index.exists() else 0.0


def _reserved_bytes(folder: Path) -> int:
    """Bytes that an entry has or has reserved, including plans that were made in it."""
    return max(_bytes_on_disk(folder), int(_read_index(folder)["bytes"]))


def _bytes_on_disk(folder: Path) -> int:
    """Bytes of the complete files of an entry."""
    complete = (file for file in folder.rglob("*") if file.suffix != ".part" and file.is_file())
    return sum(file.lstat().st_size for file in complete)


def _read_index(folder: Path) -> dict[str, Any]:
    """The index of an entry."""
    empty: dict[str, Any] = {"bytes": 0, "files": {}}
    try:
        return {**empty, **json.loads((folder / _INDEX).read_text(encoding="utf-8"))}
    except (OSError, ValueError, TypeError):
        return empty


def _write_index(folder: Path, **changes: Any) -> None:
    text = json.dumps({**_read_index(folder), **changes}, indent=1) + "\n"
    files.write_text(folder / _INDEX, text)


@contextmanager
def _disk_errors(root: Path, url: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in files.FULL:
            raise UserError(
                f"{shown(url)}: no space is left in {root}; free some, or set {FOLDER} to"
                " another folder"
            ) from None
        if isinstance(error, PermissionError):
            raise UserError(
                f"{shown(url)}: the cache {root} is not writable; set {FOLDER} to another folder"
            ) from None
        raise

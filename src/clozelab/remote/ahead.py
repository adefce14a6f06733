"""A large file at a URL that is used while it is fetched.

The file lies at its place from the beginning, with nothing in it. A thread fills it from its
beginning to its end. Who reads from it gets at once what is there; what is not there yet is fetched
before all else, in grains. When all is there its checksum is compared; until then no other process
uses the file, and one that differs stops whoever reads it.

FILE            the bytes, and zeros where none are yet
.FILE.grains    a byte for each grain that is there, to go on after an interruption
.FILE.filling   locked by the process that fills it
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import numpy as np
from filelock import FileLock

from clozelab import files
from clozelab.errors import UserError
from clozelab.remote import access
from clozelab.remote.access import shown
from clozelab.remote.fetching import Wanted

POSSIBLE = hasattr(os, "pwrite")  # not on Windows
GRAIN = 1 << 16  # bytes that are fetched for a reader at least
_CONNECTIONS = 16  # grains that are asked for at a time: each is short, and most of it is waiting

_filling: dict[Path, AheadFile] = {}  # by the file's path; of this process


def filling(file: Path) -> AheadFile | None:
    """A file that this process is still fetching, or could not fetch."""
    return _filling.get(file)


def is_coming(file: Path) -> bool:
    """Whether this process is still fetching a file."""
    return file in _filling and not _filling[file].has_ended


def bytes_ahead(folder: Path) -> int:
    """The size of the files in a folder that this process is still fetching."""
    files_there = [file for place, file in [*_filling.items()] if place.is_relative_to(folder)]
    return sum(file.size for file in files_there if not file.has_ended)


def is_unfinished(file: Path) -> bool:
    """Whether a file is not whole yet."""
    return _grains(file).exists()


def forget(file: Path) -> None:
    """Note that a file has come whole by another way."""
    _grains(file).unlink(missing_ok=True)
    _filling.pop(file, None)


def lock_of(file: Path) -> FileLock:
    """The lock of who fills a file."""
    return FileLock(file.with_name(f".{file.name}.filling"), timeout=0, thread_local=False)


def _grains(file: Path) -> Path:
    return file.with_name(f".{file.name}.grains")


def _reserve(file: Path, size: int) -> None:
    """An empty file of a size; a full disk is told now, where a system can, not in the middle."""
    with file.open("wb") as stream:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(stream.fileno(), 0, size)
        except OSError as error:
            if error.errno in files.FULL:
                file.unlink()
                raise
        stream.truncate(size)


class AheadFile:
    """A file that is filled while it is read; of a size and a checksum that are known."""

    def __init__(self, wanted: Wanted, target: Path, lock: FileLock) -> None:
        assert wanted.file.size is not None
        self.wanted, self.target, self.size = wanted, target, wanted.file.size
        grains, count = _grains(target), -(-self.size // GRAIN)
        known = target.exists() and target.stat().st_size == self.size and grains.exists()
        if not known or grains.stat().st_size != count:
            target.unlink(missing_ok=True)  # another process may have mapped it
            grains.write_bytes(bytes(count))
            _reserve(target, self.size)
        self._there: Any = np.memmap(grains, dtype=np.uint8, mode="r+")
        self._handle = os.open(target, os.O_WRONLY)
        self._file_lock, self._lock = lock, Lock()
        self._pool = ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="grains")
        self._problem: Exception | None = None
        self._ended = Event()  # the thread that fills it
        _filling[target] = self

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes."""
        return self._ended.is_set()

    def need(self, first: Any, last: Any) -> None:
        """Have the bytes of some ranges, which begin and end there; wait for them if need be."""
        if not self._ended.is_set():
            low, high = np.ravel(first) // GRAIN, (np.ravel(last) - 1) // GRAIN
            inside = [np.arange(low[one], high[one] + 1) for one in np.flatnonzero(high > low)]
            grains = np.unique(np.concatenate([low, *inside]))
            missing = grains[self._there[grains] == 0].tolist()
            with self._lock:
                missing = [] if self._ended.is_set() else missing
                tasks = [self._pool.submit(self._fetch, one, one + 1) for one in missing]
            for task in tasks:
                task.result()
        if self._problem:
            raise self._problem

    def join(self) -> None:
        """Wait until all of it is there, and right."""
        self._ended.wait()
        if self._problem:
            raise self._problem

    def fill(self, done: Callable[[], None]) -> None:
        """Fetch all that is missing; `done` is called when its checksum is right."""
        step = max(access.PIECE // GRAIN, 1)
        grains = _grains(self.target)
        try:
            for first in range(0, len(self._there), step):
                last = min(first + step, len(self._there))
                if not self._there[first:last].all():
                    self._fetch(first, last)
            if files.sha256(self.target) != self.wanted.sha256:
                self.target.unlink()
                raise UserError(
                    f"{shown(self.wanted.file.url)}: its checksum is not that of the manifest; put"
                    " the corpus there again, and start the run anew: it has read from this one"
                )
            files.sync(self.target)
            grains.unlink()
            done()
        except Exception as problem:
            self._problem = problem
        finally:
            with self._lock:
                self._ended.set()
                os.close(self._handle)
                self._pool.shutdown(wait=False)
            self._file_lock.release()
            if not self._problem and _filling.get(self.target) is self:
                del _filling[self.target]

    def _fetch(self, first: int, last: int) -> None:
        """Fetch grains from one up to another; whoever is second writes the same bytes again."""
        start, end = first * GRAIN, min(last * GRAIN, self.size)
        piece = access.ranged(self.wanted.file, start, end)
        if piece is None:
            raise UserError(f"{shown(self.wanted.file.url)}: its server sends no parts any more")
        with self._lock:
            if not self._ended.is_set():
                os.pwrite(self._handle, piece, start)
                self._there[first:last] = 1


class AheadArray:
    """An array in a file that is fetched while it is read: what is indexed is waited for."""

    def __init__(self, array: Any, file: AheadFile, *, offset: int) -> None:
        self._array, self._file, self._offset = array, file, offset
        self.dtype, self.shape = array.dtype, array.shape

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            if step != 1:
                self._file.join()
            elif last > first:
                self._have(np.array([first]), np.array([last]))
        else:
            places = np.asarray(index)
            if places.dtype == bool or (places.size and int(places.min()) < 0):
                self._file.join()
            elif places.size:
                self._have(places, places + 1)
        return self._array[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        self._file.join()
        return np.asarray(self._array, dtype=dtype)

    def _have(self, first: Any, last: Any) -> None:
        each = self.dtype.itemsize
        self._file.need(self._offset + first * each, self._offset + last * each)


def fill(ahead: Sequence[tuple[AheadFile, Callable[[], None]]]) -> None:
    """Fill some files, one after the other, in a thread that ends with the process."""

    def work() -> None:
        for file, done in ahead:
            file.fill(done)

    Thread(target=work, name="fetch-ahead", daemon=True).start()

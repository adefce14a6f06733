"""A large file at a URL that is read while it is fetched.

The file has its full size from the start, without content. A thread fills it from beginning to end.
Bytes that are there can be read at once; missing ones are fetched first, in grains. When all are
there, the checksum is compared; until then no other process uses the file, and if it differs,
reading raises an error.

FILE            the bytes, and zeros where none are yet
.FILE.grains    a byte for each grain that is there, to continue after an interruption
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
GRAIN = 1 << 16  # bytes: the unit in which missing bytes are fetched for a reader
_CONNECTIONS = 16  # grains that are requested at a time: most of their time is latency

_filling: dict[Path, AheadFile] = {}  # by path, the files that this process fills


def filling(file: Path) -> AheadFile | None:
    """The file if this process is still fetching it, or failed to."""
    return _filling.get(file)


def is_coming(file: Path) -> bool:
    """Whether this process is still fetching a file."""
    return file in _filling and not _filling[file].has_ended


def bytes_ahead(folder: Path) -> int:
    """The size of the files in a folder that this process is still fetching."""
    files_there = [file for place, file in [*_filling.items()] if place.is_relative_to(folder)]
    return sum(file.size for file in files_there if not file.has_ended)


def is_unfinished(file: Path) -> bool:
    """Whether a file is not complete yet."""
    return _grains_file(file).exists()


def forget(file: Path) -> None:
    """Forget the state of a file that was completed in another way."""
    _grains_file(file).unlink(missing_ok=True)
    _filling.pop(file, None)


def lock_of(file: Path) -> FileLock:
    """The lock that the process which fills a file holds."""
    return FileLock(file.with_name(f".{file.name}.filling"), timeout=0, thread_local=False)


def _grains_file(file: Path) -> Path:
    return file.with_name(f".{file.name}.grains")


def _reserve(file: Path, size: int) -> None:
    """Make a file of zeros; a full disk raises now, if the system can tell, not in the middle."""
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
    """A file that is filled while it is read; its size and checksum are known."""

    def __init__(self, wanted: Wanted, target: Path, lock: FileLock) -> None:
        assert wanted.file.size is not None
        self.wanted, self.target, self.size = wanted, target, wanted.file.size
        grains, count = _grains_file(target), -(-self.size // GRAIN)
        known = target.exists() and target.stat().st_size == self.size and grains.exists()
        if not known or grains.stat().st_size != count:
            target.unlink(missing_ok=True)  # another process may have mapped it
            grains.write_bytes(bytes(count))
            _reserve(target, self.size)
        self._is_fetched: Any = np.memmap(grains, dtype=np.uint8, mode="r+")
        self._handle = os.open(target, os.O_WRONLY)
        self._file_lock, self._lock = lock, Lock()
        self._pool = ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="grains")
        self._problem: Exception | None = None
        self._ended = Event()  # set when filling is finished or failed
        _filling[target] = self

    @property
    def has_ended(self) -> bool:
        """Whether filling is finished or failed."""
        return self._ended.is_set()

    def need(self, first: Any, last: Any) -> None:
        """Wait until the bytes of some half-open ranges are there, fetching what is missing."""
        if not self._ended.is_set():
            low, high = np.ravel(first) // GRAIN, (np.ravel(last) - 1) // GRAIN
            longer = [np.arange(low[at], high[at] + 1) for at in np.flatnonzero(high > low)]
            grains = np.unique(np.concatenate([low, *longer]))
            missing = grains[self._is_fetched[grains] == 0].tolist()
            with self._lock:
                missing = [] if self._ended.is_set() else missing
                tasks = [self._pool.submit(self._fetch, grain, grain + 1) for grain in missing]
            for task in tasks:
                task.result()
        if self._problem:
            raise self._problem

    def join(self) -> None:
        """Wait until the file is complete and its checksum is right."""
        self._ended.wait()
        if self._problem:
            raise self._problem

    def fill(self, done: Callable[[], None]) -> None:
        """Fetch all that is missing; calls `done` if the checksum is right."""
        step = max(access.PIECE // GRAIN, 1)
        grains = _grains_file(self.target)
        try:
            for first in range(0, len(self._is_fetched), step):
                last = min(first + step, len(self._is_fetched))
                if not self._is_fetched[first:last].all():
                    self._fetch(first, last)
            if files.sha256(self.target) != self.wanted.sha256:
                self.target.unlink()
                raise UserError(
                    f"{shown(self.wanted.file.url)}: its checksum is not that of the"
                    " manifest; upload the corpus again, and restart the run, which has"
                    " read damaged text"
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
        """Fetch the grains [first, last); two threads may write the same bytes."""
        start, end = first * GRAIN, min(last * GRAIN, self.size)
        piece = access.ranged(self.wanted.file, start, end)
        if piece is None:
            raise UserError(
                f"{shown(self.wanted.file.url)}: its server no longer sends parts of files;"
                " download the corpus first"
            )
        with self._lock:
            if not self._ended.is_set():
                os.pwrite(self._handle, piece, start)
                self._is_fetched[first:last] = 1


class AheadArray:
    """An array in a file that is fetched while it is read; indexing waits for the bytes."""

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
                self._wait_for(np.array([first]), np.array([last]))
        else:
            indices = np.asarray(index)
            if indices.dtype == bool or (indices.size and int(indices.min()) < 0):
                self._file.join()
            elif indices.size:
                self._wait_for(indices, indices + 1)
        return self._array[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        self._file.join()
        return np.asarray(self._array, dtype=dtype)

    def _wait_for(self, first: Any, last: Any) -> None:
        size = self.dtype.itemsize
        self._file.need(self._offset + first * size, self._offset + last * size)


def fill(ahead: Sequence[tuple[AheadFile, Callable[[], None]]]) -> None:
    """Fill some files one after the other, in a daemon thread."""

    def work() -> None:
        for file, done in ahead:
            file.fill(done)

    Thread(target=work, name="fetch-ahead", daemon=True).start()

"""Watched folders: whether they are being written, and a cache of what was read."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable
from pathlib import Path
from typing import Any, TypeVar

from clozelab import files
from clozelab.runs.directory import PLAN, STUDY, runs_by_seed

FRESH = 60  # seconds; a younger log is still being written, perhaps by another machine
_FILES = ("recipe.toml", "machine.toml", "metrics.jsonl", "result.json", PLAN, STUDY, "cells.jsonl")
Stamp = tuple[str, int, int]  # a file's name, when it was written in nanoseconds, and its size
T = TypeVar("T")


def activity(folder: Path, *, done: bool) -> str:
    """Whether a run is finished, running, starting or stopped."""
    if done or (folder / "result.json").is_file():
        return "finished"
    log = folder / "metrics.jsonl"
    if files.is_locked(folder):
        return "running" if log.is_file() else "starting"
    return "running" if _is_young([_stamp(log)]) else "stopped"


def finished_tunings(folder: Path) -> list[Path]:
    """The results of the fine-tunings in a folder that are done, by cell of a grid and seed."""
    runs = (run for place in (folder, *folder.glob("*")) for run in runs_by_seed(place).values())
    return sorted(file for run in runs if (file := run.path / "result.json").is_file())


class Readings:
    """A cache of what was read of folders, valid until their files change."""

    def __init__(self) -> None:
        self._cache: dict[tuple[Path, Callable[[Path], Any]], tuple[Hashable, Any]] = {}

    def of(self, folder: Path, read: Callable[[Path], T]) -> T:
        """The result of `read` for a folder, cached."""
        key, state = (folder, read), _state(folder)
        cached = self._cache.get(key)
        if cached is None or cached[0] != state:
            cached = self._cache[key] = state, read(folder)
        result: T = cached[1]
        return result

    def forget_others(self, folders: Collection[Path]) -> None:
        """Drop the entries of folders that are no longer watched."""
        for key in [*self._cache]:
            if key[0] not in folders:
                self._cache.pop(key, None)


def _state(folder: Path) -> Hashable:
    """Sizes and times of a folder's files, and whether they are being written."""
    places = [folder / name for name in _FILES]
    places += [*sorted(folder.glob("cells/*/seed-*/*.json*")), *finished_tunings(folder)]
    stamps = [_stamp(place) for place in places]
    return (*stamps, files.is_locked(folder), _is_young(stamps))


def _is_young(stamps: Collection[Stamp]) -> bool:
    """Whether some file was written within the last minute."""
    return time.time() - max(written for _, written, _ in stamps) / 1e9 < FRESH


def _stamp(file: Path) -> Stamp:
    try:
        status = file.stat()
    except OSError:
        return file.name, 0, 0
    return file.name, status.st_mtime_ns, status.st_size

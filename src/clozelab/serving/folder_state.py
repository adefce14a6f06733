"""Folders that are watched: whether somebody writes there, and what was read of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable
from pathlib import Path
from typing import Any, TypeVar

from clozelab import files
from clozelab.runs.directory import PLAN, STUDY

FRESH = 60  # seconds: a log that is so young is still written, if by another machine
_FILES = ("recipe.toml", "machine.toml", "metrics.jsonl", "result.json", PLAN, STUDY, "cells.jsonl")
T = TypeVar("T")


def activity(folder: Path, *, done: bool) -> str:
    """Whether a run is finished, running, starting or stopped."""
    if done or (folder / "result.json").is_file():
        return "finished"
    log = folder / "metrics.jsonl"
    if files.is_locked(folder):
        return "running" if log.is_file() else "starting"
    return "running" if _is_young([log]) else "stopped"


class Readings:
    """What was read of folders, until their files change."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, str], tuple[Hashable, Any]] = {}

    def of(self, folder: Path, read: Callable[[Path], T]) -> T:
        """What a function reads of a folder."""
        place, state = (folder, f"{read.__module__}.{read.__qualname__}"), _state(folder)
        known = self._known.get(place)
        if known is None or known[0] != state:
            known = self._known[place] = state, read(folder)
        result: T = known[1]
        return result

    def forget_others(self, folders: Collection[Path]) -> None:
        """Keep nothing of folders that are no longer watched."""
        for place in [*self._known]:
            if place[0] not in folders:
                self._known.pop(place, None)


def _state(folder: Path) -> Hashable:
    """Sizes and times of the files of a run, of fine-tunings or of a study, and who writes them."""
    places = [folder / name for name in _FILES]
    places += sorted(folder.glob("cells/*/seed-*/*.json*"))
    return (*map(_stamp, places), files.is_locked(folder), _is_young(places))


def _is_young(places: Collection[Path]) -> bool:
    """Whether some file was written just now."""
    youngest = max((stamp[1] for stamp in map(_stamp, places)), default=0)
    return time.time() - youngest / 1e9 < FRESH


def _stamp(file: Path) -> tuple[str, int, int]:
    try:
        status = file.stat()
    except OSError:
        return file.name, 0, 0
    return file.name, status.st_mtime_ns, status.st_size

"""The folders that the app was given, and their kinds; nothing outside of them is read.

A browser refers to a folder by its listed name, never by a path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from clozelab import files
from clozelab.errors import UserError
from clozelab.runs.directory import PLAN, STUDY

Kind = Literal["run", "tuning", "study", "model", "corpus"]
_STEP = re.compile(r"step-(\d+)")
_MOST_INSIDE = 1000  # folders below one that was given


@dataclass(frozen=True)
class Folder:
    """One folder, and what is in it."""

    name: str  # the path as given, or below the given one
    path: Path
    kind: Kind

    @property
    def steps(self) -> list[int]:
        """The steps of a run's checkpoints, in their order."""
        return sorted(self._checkpoints())

    def _checkpoints(self) -> dict[int, Path]:
        """The folders of a run's checkpoints, by step."""
        paths = (self.path / "checkpoints").glob("step-*")
        return {int(match[1]): path for path in paths if (match := _STEP.fullmatch(path.name))}

    def checkpoint(self, step: int | None) -> Path:
        """The folder of the model at a step, by default the newest."""
        if self.name != str(self.path):
            raise UserError(f"{self.name}: its name is not UTF-8; rename it")
        checkpoints = self._checkpoints()
        if self.kind == "run" and step is None:
            step = max(checkpoints, default=None)
        if step is None:
            return self.path
        if step not in checkpoints:
            raise UserError(f"{self.name}: has no checkpoint of step {step:,}; choose another step")
        return checkpoints[step]


class Folders:
    """All folders that the app may read, listed anew each time."""

    def __init__(self, places: Sequence[str]) -> None:
        self._places = [Path(place) for place in places]
        for place in self._places:
            if not place.is_dir():
                problem = "is a file" if place.exists() else "does not exist"
                raise UserError(f"{place}: {problem}; name a folder on this machine")
            if not list(_folders_at(place)):
                raise UserError(
                    f"{place}: is not a run; name runs, studies, corpora or Hugging Face"
                    " directories, or a folder of these"
                )

    def all(self) -> list[Folder]:
        """All folders that exist now."""
        folders = {folder.name: folder for place in self._places for folder in _folders_at(place)}
        return list(folders.values())

    def of(self, *kinds: Kind) -> list[Folder]:
        """The folders of some kinds."""
        return [folder for folder in self.all() if folder.kind in kinds]

    def named(self, name: str, *kinds: Kind) -> Folder:
        """The folder of that name; refused if it was not given, or is gone."""
        for place in self._places:
            for folder in _folders_at(place, only=name):
                if folder.name == name and folder.kind in kinds:
                    return folder
        raise UserError(f"{name}: is not among the folders here, or was removed; choose another")


def _folders_at(place: Path, *, only: str | None = None) -> Iterator[Folder]:
    """Yield the folder at a place, or those right below it; `only` is a name to look for."""
    if kind := _kind(place):
        yield Folder(_name(place), place, kind)
        return
    try:
        inside = sorted(path for path in place.iterdir() if not path.name.startswith("."))
    except OSError:  # it is gone, or not readable
        return
    for path in inside[:_MOST_INSIDE]:
        if only in (None, _name(path)) and path.is_dir() and (kind := _kind(path)):
            yield Folder(_name(path), path, kind)


def _name(path: Path) -> str:
    """A path as text, with bytes that are no UTF-8 replaced."""
    return os.fsencode(path).decode("utf-8", "replace")


def _kind(path: Path) -> Kind | None:
    """The kind of a folder, by its files."""
    if files.kind_of(path) == "corpus":
        return "corpus"
    for name, kind in _KIND_FILES.items():
        if (path / name).is_file():
            return kind
    return None


# The files that tell the kind of a folder, the first one that exists.
_KIND_FILES: dict[str, Kind] = {
    STUDY: "study",
    PLAN: "tuning",
    "checksums.json": "model",  # a checkpoint
    "recipe.toml": "run",
    "config.json": "model",  # of Hugging Face
}

"""The folders that the app was given: what each is, and nothing outside of them.

A browser names a folder by the name that it was told, never by a path.
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
_MOST = 1000  # folders below one that was given


@dataclass(frozen=True)
class Folder:
    """One folder, and what is in it."""

    name: str  # as it was given, or as it lies below what was given
    path: Path
    kind: Kind

    @property
    def has_model(self) -> bool:
        """Whether there may be a model to open."""
        return self.kind in ("run", "tuning", "model")

    @property
    def steps(self) -> list[int]:
        """The steps of a run's checkpoints, in their order."""
        matches = (
            _STEP.fullmatch(path.name) for path in (self.path / "checkpoints").glob("step-*")
        )
        return sorted(int(match[1]) for match in matches if match)

    def checkpoint(self, step: int | None) -> Path:
        """Where the model of a step lies, or the newest."""
        if self.name != str(self.path):
            raise UserError(f"{self.name}: its name is not UTF-8; rename it")
        steps = self.steps
        if self.kind == "run" and steps and step is None:
            step = steps[-1]
        if step is None:
            return self.path
        if step not in steps:
            raise UserError(f"{self.name}: has no checkpoint of step {step:,}; choose another step")
        (path,) = (p for p in self.path.glob("checkpoints/step-*") if _is_step(p, step))
        return path


class Folders:
    """All that the app may read; folders of runs are looked through each time anew."""

    def __init__(self, places: Sequence[str]) -> None:
        self._places = [Path(place) for place in places]
        for place in self._places:
            if not place.is_dir():
                raise UserError(f"{place}: there is no such folder; name one on this machine")
            if not list(_at(place)):
                raise UserError(
                    f"{place}: is no run; name folders of runs, studies or corpora, Hugging Face"
                    " directories, or a folder of such folders"
                )

    def all(self) -> list[Folder]:
        """What there is now; what was removed is left out."""
        folders = {folder.name: folder for place in self._places for folder in _at(place)}
        return list(folders.values())

    def of(self, *kinds: Kind) -> list[Folder]:
        """Those of some kinds."""
        return [folder for folder in self.all() if folder.kind in kinds]

    def named(self, name: str, *kinds: Kind) -> Folder:
        """The folder of that name; refused where it was not given, or is gone."""
        for place in self._places:
            for folder in _at(place, only=name):
                if folder.name == name and folder.kind in kinds:
                    return folder
        raise UserError(f"{name}: is not among the folders here, or was removed; choose another")


def _at(place: Path, *, only: str | None = None) -> Iterator[Folder]:
    """A place itself, or what lies right below it, if it is not to be one of a name."""
    if kind := _kind(place):
        yield Folder(_name(place), place, kind)
        return
    try:
        inside = sorted(path for path in place.iterdir() if not path.name.startswith("."))
    except OSError:  # it is gone, or closed to us
        return
    for path in inside[:_MOST]:
        if only in (None, _name(path)) and path.is_dir() and (kind := _kind(path)):
            yield Folder(_name(path), path, kind)


def _name(path: Path) -> str:
    """A path as it is shown; bytes that are no UTF-8 have a sign in their place."""
    return os.fsencode(path).decode("utf-8", "replace")


def _kind(path: Path) -> Kind | None:
    """What a folder is, by the files in it."""
    if files.kind_of(path) == "corpus":
        return "corpus"
    for name, kind in _SIGNS.items():
        if (path / name).is_file():
            return kind
    return None


def _is_step(path: Path, step: int) -> bool:
    match = _STEP.fullmatch(path.name)
    return match is not None and int(match[1]) == step


# The files by which a folder is known, the first that is there.
_SIGNS: dict[str, Kind] = {
    STUDY: "study",
    PLAN: "tuning",
    "checksums.json": "model",  # a checkpoint
    "recipe.toml": "run",
    "config.json": "model",  # of Hugging Face
}

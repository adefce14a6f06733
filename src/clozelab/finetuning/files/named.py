"""The named tasks: their kinds, the usual layout of their files, and their submissions.

They are the tables of tasks.toml, which explains its keys.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from clozelab.finetuning.files.documents import gap, litbank
from clozelab.finetuning.files.sentences import senteval, sts, wic

FileReader = Callable[[Path, str], list[Any]]
Setting = str | int | float | bool | tuple[str, ...]

# Tasks of the papers that protocols know, though no layout of their files is known here.
ELSEWHERE = {"xnli": "classify", "ontonotes": "coreference"}


# Readers of files with a format of their own.
READERS: dict[str, FileReader] = {
    "gap": gap,
    "litbank": litbank,
    "senteval": senteval,
    "wic": wic,
    **{f"sts{year % 100}": partial(sts, year=year) for year in range(2012, 2017)},
}


class File(NamedTuple):
    """A file that may hold a split."""

    name: str
    columns: Mapping[str, str] = {}  # those without usual names
    note: str = ""  # for the user


@dataclass(frozen=True)
class Named:
    """A task by name; `settings` are the fields of its kind of task."""

    name: str
    title: str
    kind: str
    folders: tuple[str, ...]
    splits: Mapping[str, tuple[File, ...]]  # the first of these that exists
    settings: Mapping[str, Setting] = field(default_factory=dict)
    submission: Mapping[str, str] = field(default_factory=dict)  # split → name of the file to send
    undecided: tuple[str, ...] = ()  # labels of rows that are skipped
    skips: bool = False  # whether the published files have rows cut short
    level: str = ""  # of RACE
    note: str = ""
    protocol: str = ""  # its key in protocols; empty: its name
    scores: tuple[str, ...] = ()  # if they are not those of the metrics
    scale: tuple[float, ...] = ()  # of the numbers in a submission
    letters: bool = False  # whether a submission names choices by letters
    read: FileReader | None = None  # if it has its own format

    def spelled(self, prediction: tuple[Any, ...]) -> str:
        """The first field of a prediction, as text of a submission."""
        label = prediction[0]
        if self.scale:
            return f"{min(max(label, self.scale[0]), self.scale[1]):.3f}"
        return chr(ord("A") + label) if self.letters else str(label)


def task(name: str, table: Mapping[str, Any]) -> Named:
    """The task that a table describes."""
    facts = _tuples(table)
    files, entities = facts.pop("files", ("{split}.tsv",)), facts.pop("entities", ())
    if not isinstance(files, Mapping):
        files = dict.fromkeys(("train", "dev", "test"), files)
    settings = _tuples(facts.pop("settings", {}))
    if entities:
        settings["tags"] = ("O", *(f"{role}-{kind}" for kind in entities for role in "BI"))
    splits = {
        split: tuple(_file(value, split) for value in choices) for split, choices in files.items()
    }
    read = READERS[facts.pop("reader")] if "reader" in facts else None
    return Named(name, splits=splits, settings=settings, read=read, **facts)


def _tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table whose lists are tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


def _file(value: str | Mapping[str, Any], split: str) -> File:
    file = File(value) if isinstance(value, str) else File(**value)
    return file._replace(name=file.name.replace("{split}", split))


def _packaged() -> dict[str, Named]:
    text = resources.files(__package__).joinpath("tasks.toml").read_text(encoding="utf-8")
    return {name: task(name, table) for name, table in tomllib.loads(text).items()}


NAMED = _packaged()

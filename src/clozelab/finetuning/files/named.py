"""The tasks that go by name: what kind each is, where its files usually lie, how it is sent in.

They are the tables of tasks.toml, which says what its keys mean.
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


# How files are read that have a way of their own, of a file and a split.
READERS: dict[str, FileReader] = {
    "gap": gap,
    "litbank": litbank,
    "senteval": senteval,
    "wic": wic,
    **{f"sts{year % 100}": partial(sts, year=year) for year in range(2012, 2017)},
}


class File(NamedTuple):
    """A file that a split may lie in."""

    name: str
    columns: Mapping[str, str] = {}  # those that do not go by their usual names, or numbers
    note: str = ""  # what whoever reads it should know


@dataclass(frozen=True)
class Named:
    """A task by name; `settings` are the fields of its kind of task."""

    name: str
    title: str
    kind: str
    folders: tuple[str, ...]
    splits: Mapping[str, tuple[File, ...]]  # the first of these that is there
    settings: Mapping[str, Setting] = field(default_factory=dict)
    submission: Mapping[str, str] = field(default_factory=dict)  # split → name of the file to send
    undecided: tuple[str, ...] = ()  # labels of rows that are skipped
    skips: bool = False  # whether the published files have rows cut short
    level: str = ""  # of RACE
    note: str = ""
    protocol: str = ""  # what protocols know it by; empty: by its name
    scores: tuple[str, ...] = ()  # where they are not those of the metrics
    scale: tuple[float, ...] = ()  # of the numbers in a submission
    letters: bool = False  # whether a submission calls choices by letters
    read: FileReader | None = None  # of a file and a split, if its own way

    def spelled(self, prediction: tuple[Any, ...]) -> str:
        """A prediction as a submission has it: its first field."""
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

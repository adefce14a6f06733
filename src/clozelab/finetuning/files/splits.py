"""Where the splits of a task lie, and reading them: `find` for a task by name, `own` for files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.finetuning.files import lines
from clozelab.finetuning.files.columns import Asked
from clozelab.finetuning.files.hub import hub, is_hub
from clozelab.finetuning.files.named import NAMED, File, Named, Setting
from clozelab.finetuning.files.tables import Table
from clozelab.finetuning.kinds import KINDS, TaskKind, own_words
from clozelab.nearest import nearest

VARIABLE = "CLOZELAB_DATA"
_INSIDE = ("", "glue", "GLUE", "glue_data")  # folders of folders


@dataclass(frozen=True)
class Split:
    """A file or a table, and how it is to be read."""

    source: Path | Table
    asked: Asked


@dataclass(frozen=True)
class TaskSplits:
    """A task whose files are there; `settings` are the fields of its kind of task."""

    name: str
    kind: str
    settings: Mapping[str, Setting]
    splits: Mapping[str, Split]
    notes: tuple[str, ...] = ()
    submission: Mapping[str, str] = field(default_factory=dict)
    layout: str = ""  # what should be there, for whoever asks for what is not
    counts: Counts = field(default_factory=Counts)  # what was skipped or fixed in what was read
    held: dict[str, list[Any]] = field(default_factory=dict, repr=False)
    reads: Callable[[Path, str], list[Any]] | None = None  # of a file and a split, if its own way

    @property
    def part(self) -> type[TaskKind]:
        """Its kind of task."""
        return KINDS[self.kind]

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of its labels; none where it has none."""
        labels = self.settings.get(self.part.label_field or "", ())
        return labels if isinstance(labels, tuple) else ()

    def read(self, split: str) -> list[Any]:
        """The examples of a split; read once."""
        if split not in self.held:
            self.held[split] = self._read(split)
        return self.held[split]

    def _split(self, split: str) -> Split:
        if split not in self.splits:
            has = ", ".join(self.splits)
            raise UserError(f"{self.name} has no {split} split here, only {has}{self.layout}")
        return self.splits[split]

    def _read(self, split: str) -> list[Any]:
        source, asked = self._split(split).source, self._split(split).asked
        if self.reads is not None and isinstance(source, Path):
            return self.reads(source, split)
        return self.part.read(source, asked, settings=self.settings, counts=self.counts)


def find(name: str, root: Path | None) -> TaskSplits:
    """A task by name, under a folder of tasks, or the one that the environment names."""
    return found_in(_named(name), root)


def found_in(named: Named, root: Path | None) -> TaskSplits:
    """The same of a task whose layout is given."""
    name = named.name
    if root is None:
        if not os.environ.get(VARIABLE):
            raise UserError(
                f"where the data of {name} lies is not said: say --task-data DIR or set"
                f" {VARIABLE} to it{_layout(named)}"
            )
        root = Path(os.environ[VARIABLE])
    best: dict[str, tuple[File, Path]] = {}
    folder = root
    for candidate in _folders(named, root):
        there = {
            split: (file, path)
            for split, files in named.splits.items()
            for file, path in _first(candidate, files)
        }
        if len(there) > len(best):
            best, folder = there, candidate
    if not best:
        raise UserError(
            f"{root} has no data of {name}: say --task-data DIR or set {VARIABLE}{_layout(named)}"
        )
    return _found(named, folder, best)


def _named(name: str) -> Named:
    if name not in NAMED:
        meant = nearest(name, NAMED, alike=0.4)
        hint = f"did you mean {meant}?" if meant else f"say one of {', '.join(NAMED)}"
        raise UserError(f"there is no task {name!r}: {hint}")
    return NAMED[name]


def _found(named: Named, folder: Path, best: Mapping[str, tuple[File, Path]]) -> TaskSplits:
    notes = [named.note] if named.note else []
    if folder.name.endswith("_subset"):
        notes.append(f"{folder.name} is a subset of {named.name}")
    notes += [file.note for file, _ in best.values() if file.note]
    labels = named.settings.get(KINDS[named.kind].label_field or "", ())
    asked = Asked(
        labels=labels if isinstance(labels, tuple) else (),
        undecided=named.undecided,
        skips=named.skips,
        level=named.level,
    )
    return TaskSplits(
        named.name,
        named.kind,
        named.settings,
        {
            split: Split(path, purpose(replace(asked, columns=file.columns), split))
            for split, (file, path) in best.items()
        },
        tuple(notes),
        named.submission,
        _layout(named),
        reads=named.read,
    )


def purpose(asked: Asked, split: str) -> Asked:
    """The same for a split: a test set may have no labels, and only training skips examples."""
    return replace(asked, labelled=not split.startswith("test"), training=split == "train")


def _folders(named: Named, root: Path) -> Iterator[Path]:
    """Where the task may lie: as published, then in part, then at the root itself."""
    names = (*named.folders, f"{named.name}_subset")
    for name in names:
        for inside in _INSIDE:
            yield root / inside / name
    if root.name in names:
        yield root


def _first(folder: Path, files: Sequence[File]) -> Iterator[tuple[File, Path]]:
    for file in files:
        if (path := lines.found(folder / file.name)) is not None:
            yield file, path
            return


def _layout(named: Named) -> str:
    """The end of an error: what should be there, as a small tree."""
    kept = [" or ".join(file.name for file in files) for files in named.splits.values()]
    rows = "".join(f"\n    {names}" for names in dict.fromkeys(kept))
    return f"; expected, plain or packed as .xz or .gz:\n  DIR/{named.folders[0]}/{rows}"


def own(
    word: str,
    *,
    train: str | Path | None = None,
    dev: str | Path | None = None,
    test: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    labels: Sequence[str] = (),
) -> TaskSplits:
    """The user's files as a task, all read at once, so that what is wrong shows before training.

    `word` is a kind of task or another word for one. `labels` are those there are; without them,
    those of `train` are. A test file may lack them.
    """
    if word not in own_words():
        raise UserError(f"there is no kind of task {word!r}: say {', '.join(own_words())}")
    files = {"train": train, "dev": dev, "test": test}
    sources = {split: _source(name, split) for split, name in files.items() if name is not None}
    if not sources:
        raise UserError("no file is named: say --train FILE --dev FILE")
    name, meant = own_words()[word]
    kind = KINDS[name]
    asked = Asked(columns=columns or {}, labels=tuple(labels))
    settings = {**meant, **kind.file_settings(next(iter(sources.values())), asked)}
    held: dict[str, list[Any]] = {}
    splits: dict[str, Split] = {}
    counts = Counts()
    for split, source in sources.items():  # train first
        splits[split] = Split(source, purpose(asked, split))
        held[split] = kind.read(source, splits[split].asked, settings=settings, counts=counts)
        if split == "train" and not labels:
            asked = replace(asked, labels=kind.labels_of(held[split]))
    if kind.label_field and train is not None and len(asked.labels) < 2:
        raise UserError(
            f"{train}: has only the class {', '.join(asked.labels) or 'none'}; a classifier needs"
            " examples of two or more"
        )
    every = [example for examples in held.values() for example in examples]
    settings |= kind.derive(every, labels=asked.labels)
    layout = ": name its file by --train, --dev or --test"
    notes = kind.notes(settings)
    return TaskSplits("own", name, settings, splits, notes, layout=layout, counts=counts, held=held)


def _source(name: str | Path, split: str) -> Path | Table:
    return hub(str(name), split) if is_hub(str(name)) else Path(name)

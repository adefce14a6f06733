"""Find and read the splits of a task, and write predictions for them.

`find` is for a task by name, `own` for the user's files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.files import check_output, write_text
from clozelab.finetuning.files.columns import ReadOptions, Source
from clozelab.finetuning.files.hub import hub, is_hub
from clozelab.finetuning.files.named import NAMED, File, Named, Setting
from clozelab.finetuning.files.tables import existing
from clozelab.finetuning.kinds import KINDS, TaskKind, own_words
from clozelab.nearest import nearest, remedy
from clozelab.remote.access import shown
from clozelab.remote.cache import local_file, local_folder

VARIABLE = "CLOZELAB_DATA"
_PARENTS = ("", "glue", "GLUE", "glue_data")  # parent folders of tasks


@dataclass(frozen=True)
class Split:
    """A file or a table, and how to read it."""

    source: Source
    options: ReadOptions


@dataclass(frozen=True)
class TaskSplits:
    """A task whose files exist; `settings` are the fields of its kind of task."""

    name: str  # of a known task, or the word for the kind of the user's own files
    kind: str
    settings: Mapping[str, Setting]
    splits: Mapping[str, Split]
    notes: tuple[str, ...] = ()
    layout: str = ""  # the expected layout, for errors; empty: the files are the user's own
    counts: Counts = field(default_factory=Counts)  # what was skipped or fixed
    named: Named | None = None
    examples: dict[str, list[Any]] = field(
        default_factory=dict, repr=False
    )  # of splits already read

    @property
    def part(self) -> type[TaskKind]:
        """Its kind of task."""
        return KINDS[self.kind]

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of its labels; empty if it has none."""
        labels = self.settings.get(self.part.label_field or "", ())
        return labels if isinstance(labels, tuple) else ()

    def read(self, split: str) -> list[Any]:
        """The examples of a split, cached."""
        if split not in self.splits:
            raise self._missing(split)
        if split not in self.examples:
            self.examples[split] = self._read(split, self.splits[split])
        return self.examples[split]

    def parts(self, split: str) -> list[str]:
        """The names of a split's parts, as MNLI has two dev sets; refused if there is none."""
        names = [name for name in self.splits if name.startswith(split)]
        if not names:
            raise self._missing(split)
        return names

    def _missing(self, split: str) -> UserError:
        has, fix = ", ".join(self.splits), self.layout or f"; give --{split} FILE"
        return UserError(f"{self.name} has no {split} split here, only {has}{fix}")

    def _read(self, name: str, split: Split) -> list[Any]:
        if self.named and self.named.read and isinstance(split.source, Path):
            return self.named.read(split.source, name)
        settings, counts = self.settings, self.counts
        return self.part.read(split.source, split.options, settings=settings, counts=counts)

    def submission(self, split: str) -> str:
        """The name of the file with the predictions for a split."""
        files = self.named.submission if self.named else {}
        return files.get(split, f"{split}.{self.part.suffix}")


def find(name: str, root: str | Path | None) -> TaskSplits:
    """A named task in a folder of tasks or at a URL, by default that of the environment."""
    if name not in NAMED:
        meant = nearest(name, (*NAMED, *own_words()), alike=0.4)
        hint = f"did you mean {meant}?" if meant else f"choose from {', '.join(NAMED)}"
        raise UserError(f"task {name!r} is unknown; {hint}")
    return found_in(NAMED[name], root)


def found_in(named: Named, root: str | Path | None) -> TaskSplits:
    """As `find`, for a task whose layout is given."""
    name = named.name
    root = str(root or os.environ.get(VARIABLE, ""))
    if not root:
        raise UserError(
            f"the folder with the data of {name} is not set; give --task-data DIR or set"
            f" {VARIABLE}{_layout(named)}"
        )
    layouts = [(folder, _files(named, folder)) for folder in _folders(named, _local(named, root))]
    folder, files = max(layouts, key=lambda layout: len(layout[1]))
    if not files:
        raise UserError(
            f"{shown(root)} has no data for {name}; give --task-data DIR or set"
            f" {VARIABLE}{_layout(named)}"
        )
    notes = [named.note] if named.note else []
    if folder.name.endswith("_subset"):
        notes.append(f"{folder.name} is a subset of {name}")
    notes += [file.note for file, _ in files.values() if file.note]
    task = TaskSplits(
        name, named.kind, named.settings, {}, tuple(notes), _layout(named), named=named
    )
    options = ReadOptions(
        labels=task.labels, undecided=named.undecided, skips=named.skips, level=named.level
    )
    splits = {
        split: Split(path, for_split(replace(options, columns=file.columns), split))
        for split, (file, path) in files.items()
    }
    return replace(task, splits=splits)


def for_split(options: ReadOptions, split: str) -> ReadOptions:
    """The options for a split: a test set may lack labels, and only training skips examples."""
    return replace(options, labelled=not split.startswith("test"), training=split == "train")


def _local(named: Named, root: str) -> Path:
    """The local folder of tasks; from a URL, only files of the task are fetched."""
    home = Path("/") / Path(shown(root)).name
    places = [folder.relative_to(home) for folder in _folders(named, home)]
    return local_folder(
        root, lambda file: any(Path(file).is_relative_to(place) for place in places)
    )


def _folders(named: Named, root: Path) -> list[Path]:
    """The possible folders of a task: as published, then a subset, then the root itself."""
    names = (*named.folders, f"{named.name}_subset")
    folders = [root / inside / name for name in names for inside in _PARENTS]
    return [*folders, root] if root.name in names else folders


def _files(named: Named, folder: Path) -> dict[str, tuple[File, Path]]:
    """The first file of each split that exists."""
    files: dict[str, tuple[File, Path]] = {}
    for split, choices in named.splits.items():
        for file in reversed(choices):
            if (path := existing(folder / file.name)) is not None:
                files[split] = file, path
    return files


def _layout(named: Named) -> str:
    """The expected layout as a small tree, for the end of an error."""
    names = [" or ".join(file.name for file in files) for files in named.splits.values()]
    rows = "".join(f"\n    {row}" for row in dict.fromkeys(names))
    return f"; expected, plain or compressed as .xz or .gz:\n  DIR/{named.folders[0]}/{rows}"


def own(
    word: str,
    *,
    train: str | Path | None = None,
    dev: str | Path | None = None,
    test: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    labels: Sequence[str] = (),
) -> TaskSplits:
    """The user's files as a task, all read at once, so that errors are found before training.

    `word` is a kind of task or another word for one. `labels` are the allowed ones, by default
    those of `train`. A test file may lack them.
    """
    if word not in own_words():
        raise UserError(f"kind of task {word!r} is unknown; {remedy(word, own_words())}")
    files = {"train": train, "dev": dev, "test": test}
    sources: dict[str, Source] = {
        split: hub(str(name), split) if is_hub(str(name)) else local_file(str(name))
        for split, name in files.items()
        if name is not None
    }
    if not sources:
        raise UserError("no file is named; give --train FILE --dev FILE")
    name, implied = own_words()[word]
    kind = KINDS[name]
    options = ReadOptions(columns=columns or {}, labels=tuple(labels))
    settings = {**implied, **kind.file_settings(next(iter(sources.values())), options)}
    splits: dict[str, Split] = {}
    task = TaskSplits(word, name, settings, splits)
    for split, source in sources.items():  # train first
        splits[split] = Split(source, for_split(options, split))
        examples = task.read(split)
        if split == "train" and not labels:
            options = replace(options, labels=kind.labels_of(examples))
    if kind.label_field and train is not None and len(options.labels) < 2:
        raise UserError(
            f"{train}: has only the class {', '.join(options.labels) or 'none'}; a classifier needs"
            " examples of two or more"
        )
    all_examples = [example for examples in task.examples.values() for example in examples]
    settings |= kind.derive(all_examples, labels=options.labels)
    return replace(task, notes=kind.notes(settings))


def check_submission(task: TaskSplits, split: str, *, folder: Path, overwrite: bool) -> None:
    """Refuse a folder where the file must not be written, before anything is predicted."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; name the folder of the submission")
    for name in (task.submission(split), *task.part.beside):
        if folder.is_dir():
            check_output(folder / name, overwrite=overwrite)


def write_submission(
    task: TaskSplits, split: str, *, predictions: Sequence[Any], folder: Path
) -> Path:
    """Write the predictions for a split, in the order of its examples, and return the file."""
    examples = task.read(split)
    if len(examples) != len(predictions):
        raise UserError(
            f"{task.name} {split} has {len(examples)} examples but there are"
            f" {len(predictions)} predictions; predict the same split"
        )
    spelled = task.named.spelled if task.named else None
    files = task.part.submission(examples, predictions, spelled=spelled)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_text(folder / (name or task.submission(split)), text)
    return folder / task.submission(split)

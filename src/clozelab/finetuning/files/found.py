"""Where the splits of a task lie, and reading them: `find` for a task by name, `own` for files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.finetuning.examples import Document, Example
from clozelab.finetuning.files import lines
from clozelab.finetuning.files.choices import choices
from clozelab.finetuning.files.columns import Asked
from clozelab.finetuning.files.documents import documents
from clozelab.finetuning.files.gap import Pronoun, gap
from clozelab.finetuning.files.named import NAMED, File, Named, Setting
from clozelab.finetuning.files.questions import questions
from clozelab.finetuning.files.sentences import sentences
from clozelab.finetuning.files.tables import Table
from clozelab.finetuning.files.tagged import tagged
from clozelab.nearest import nearest

VARIABLE = "CLOZELAB_DATA"
_TENTH = 10
_INSIDE = ("", "glue", "GLUE", "glue_data")  # folders of folders


@dataclass(frozen=True)
class Split:
    """A file or a table, and how it is to be read."""

    source: Path | Table
    asked: Asked


@dataclass(frozen=True)
class Found:
    """A task whose files are there; `settings` are the fields of its kind of task."""

    name: str
    kind: str
    settings: Mapping[str, Setting]
    splits: Mapping[str, Split]
    notes: tuple[str, ...] = ()
    submission: Mapping[str, str] = field(default_factory=dict)
    layout: str = ""  # what should be there, for whoever asks for what is not
    counts: Counts = field(default_factory=Counts)  # what was skipped or mended in what was read
    held: dict[str, list[Example]] = field(default_factory=dict, repr=False)

    def read(self, split: str) -> list[Example]:
        """The examples of a split; read once."""
        if split not in self.held:
            self.held[split] = self._read(split)
        return self.held[split]

    def pronouns(self, split: str) -> list[Pronoun]:
        """Of GAP: what is asked of each document of a split."""
        return gap(self._path(split))[1]

    def _split(self, split: str) -> Split:
        if split not in self.splits:
            has = ", ".join(self.splits)
            raise UserError(f"{self.name} has no {split} split here, only {has}{self.layout}")
        return self.splits[split]

    def _path(self, split: str) -> Path:
        source = self._split(split).source
        if self.name != "gap" or not isinstance(source, Path):
            raise UserError(f"{self.name} asks about no pronouns: only gap does")
        return source

    def _read(self, split: str) -> list[Example]:
        source, asked = self._split(split).source, self._split(split).asked
        if self.name == "gap" and isinstance(source, Path):
            return list(gap(source)[0])
        if self.name == "litbank" and isinstance(source, Path):
            return [
                document
                for number, document in enumerate(_litbank(source))
                if (number % _TENTH == _TENTH - 1) == (split == "dev")
            ]
        return examples(
            source, self.kind, asked, pair=bool(self.settings.get("pair")), counts=self.counts
        )


def examples(
    source: Path | Table, kind: str, asked: Asked, *, pair: bool, counts: Counts
) -> list[Example]:
    """The examples of a file, for a kind of task."""
    if kind in ("classify", "regress"):
        return list(sentences(source, asked, pair=pair, numeric=kind == "regress", counts=counts))
    if kind == "tag":
        return list(tagged(source, asked))
    if kind == "answer":
        return list(questions(source, asked, counts=counts))
    if kind == "choose":
        return list(choices(source, asked, counts=counts))
    return list(documents(source, asked))


def find(name: str, root: Path | None) -> Found:
    """A task by name, under a folder of tasks, or the one that the environment names."""
    named = _named(name)
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


def _found(named: Named, folder: Path, best: Mapping[str, tuple[File, Path]]) -> Found:
    notes = [named.note] if named.note else []
    if folder.name.endswith("_subset"):
        notes.append(f"{folder.name} is a subset of {named.name}")
    notes += [file.note for file, _ in best.values() if file.note]
    labels = named.settings.get("labels", named.settings.get("tags", ()))
    asked = Asked(
        labels=labels if isinstance(labels, tuple) else (),
        undecided=named.undecided,
        skips=named.skips,
        level=named.level,
    )
    return Found(
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


def _litbank(path: Path) -> list[Document]:
    if path.is_dir():
        return [one for file in sorted(path.glob("*.conll*")) for one in documents(file)]
    return documents(path)

"""A study to be run: its corpora, size, tasks and cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from clozelab.config.recipe import Recipe, read
from clozelab.config.renamed import first_names
from clozelab.errors import UserError
from clozelab.finetuning import protocols
from clozelab.finetuning.request import Data, absolute
from clozelab.nearest import remedy
from clozelab.remote.access import is_url, shown, without_secrets
from clozelab.runs.directory import CELLS
from clozelab.studies.scores import named_task
from clozelab.studies.spec import StudySpec, Variant


@dataclass(frozen=True)
class Cell:
    """One run of a study: a variant with a seed."""

    variant: str
    seed: int

    @property
    def name(self) -> str:
        """Its name, and its path among the cells."""
        return f"{self.variant}/seed-{self.seed}"

    def folder(self, out: Path) -> Path:
        """Its folder in that of the study."""
        return out / CELLS / self.variant / f"seed-{self.seed}"


@dataclass(frozen=True)
class StudyRequest:
    """A study and its options; paths are absolute, so that any process finds them."""

    study: StudySpec
    data: tuple[str, ...]  # DIR or DIR:WEIGHT, and NAME=DIR for variants with a corpus of their own
    size: str | None = None
    budget: str | None = None  # time for the whole study; tokens or steps for each cell
    task_data: str | None = None
    first_seed: int = 0  # the others follow it

    def recorded(self) -> dict[str, Any]:
        """The options as recorded in a plan, with URLs without credentials."""
        data = [without_secrets(word) for word in self.data]
        task_data = None if self.task_data is None else shown(self.task_data)
        return {"size": self.size, "data": data, "task_data": task_data, "budget": self.budget}

    def recipe(self, variant: str) -> Recipe:
        """The recipe of a variant at the size."""
        return self.study.recipe_of(variant, size=self.size)

    def protocol(self, variant: str) -> str:
        """The fine-tuning protocol: the variant's own, or the usual one of its recipe."""
        own = self.study.variant(variant)
        base = read(own.recipe or self.study.recipe)
        return own.protocol or protocols.protocol_for(self.recipe(variant), base=base)

    def stores(self, variant: str) -> list[str]:
        """The corpora that a variant reads."""
        own = self.study.variant(variant).data
        corpora = [word.removeprefix(f"{own}=") for word in self.data if name_of(word) == own]
        if own is not None and not (corpora and all(corpora)):
            raise UserError(
                f"{self.study.name}: variant {variant} needs its own corpus; give it with"
                f" --data {own}=CORPUS"
            )
        return corpora

    def tasks(self) -> dict[str, Data]:
        """The tasks by name, with the places of their examples."""
        name = self.study.name
        return {named_task(task, place=name): self._data(task) for task in self.study.tasks}

    def settings(self, variant: str, task: str) -> tuple[str, ...]:
        """The overrides of a variant's protocol for a task; TASK.KEY=VALUE is for that task."""
        tasks, words = {*protocols.tasks(), *self.tasks()}, self._finetune(variant)
        general = [word for word in words if word.partition(".")[0] not in tasks]
        own = [word.removeprefix(f"{task}.") for word in words if word.startswith(f"{task}.")]
        return _last_values((*general, *own))

    @cached_property
    def depends_on(self) -> dict[str, str]:
        """By variant, the one that must run before it: of shared pretraining, or its teacher."""
        return {
            variant.name: other
            for variant in self.study.variants
            if (other := self.shares_pretraining_with(variant.name) or variant.teacher) is not None
        }

    def seed(self, cell: Cell) -> int:
        """The seed of a cell's run: a variant that repeats another has other seeds."""
        return cell.seed + self.study.variant(cell.variant).seed_offset

    def shares_pretraining_with(self, variant: str) -> str | None:
        """The first variant with the same pretraining, if it is another."""
        own = self._pretraining[variant]
        first = next(name for name, other in self._pretraining.items() if other == own)
        return first if first != variant else None

    def fingerprint(self, variant: str) -> str:
        """A digest of a variant's pretraining and fine-tuning, which changes when they do."""
        parts = (
            self._pretraining[variant],
            self._finetune(variant),
            self.study.variant(variant).protocol,
        )
        return sha256(first_names(repr(parts)).encode()).hexdigest()

    def cells(self) -> list[Cell]:
        """The cells in order: seed by seed, so that partial results compare, and teachers first."""
        return [
            Cell(name, seed)
            for seed in range(self.first_seed, self.first_seed + self.study.seeds)
            for name in sorted((one.name for one in self.study.variants), key=self._depth)
        ]

    def _depth(self, variant: str) -> int:
        return 1 + self._depth(self.depends_on[variant]) if variant in self.depends_on else 0

    @cached_property
    def _pretraining(self) -> dict[str, tuple[object, ...]]:
        """By variant, all settings that determine its pretraining."""
        return {
            one.name: (
                *(repr(self.recipe(one.name).tables()), one.data, one.share, one.teacher),
                *([one.again] if one.again else []),
            )
            for one in self.study.variants
        }

    def _finetune(self, variant: str) -> tuple[str, ...]:
        """The fine-tuning settings of the study and, over them, of a variant."""
        return _last_values((*self.study.finetune, *self.study.variant(variant).finetune))

    def _data(self, task: str) -> Data:
        kind, sign, folder = task.partition("=")
        if not sign:
            return Data(kind, root=self.task_data)
        files = {split: _split_file(Path(folder), split) for split in ("train", "dev")}
        return Data(kind, train=files["train"], dev=files["dev"])


def make_request(
    study: StudySpec,
    data: Sequence[str],
    *,
    size: str | None = None,
    budget: str | None = None,
    task_data: str | None = None,
    first_seed: int = 0,
    others: Sequence[Variant] = (),
) -> StudyRequest:
    """A request with absolute paths; corpora of `others`, which are not run, may be given, too."""
    if not data:
        raise UserError(f"{study.name}: needs a corpus to train on; give --data CORPUS")
    words = tuple(_absolute(word) for word in data)
    names = [one.data for one in (*study.variants, *others) if one.data is not None]
    for name in filter(None, map(name_of, words)):
        if name not in names:
            raise UserError(
                f"--data {name}=…: no variant of {study.name} reads a corpus called {name};"
                f" {remedy(name, dict.fromkeys(names))}"
            )
    return StudyRequest(
        study,
        words,
        size=size,
        budget=budget,
        task_data=task_data if task_data and is_url(task_data) else absolute(task_data),
        first_seed=first_seed,
    )


def _last_values(words: Sequence[str]) -> tuple[str, ...]:
    """The last KEY=VALUE of each key; one of two rivals, as steps and epochs, drops the other."""
    last: dict[str, str] = {}
    for word in words:
        key = word.partition("=")[0].strip()
        task, dot, name = key.rpartition(".")
        last.pop(f"{task}{dot}{protocols.RIVALS.get(name)}", None)
        last[key] = word
    return tuple(last.values())


def name_of(word: str) -> str | None:
    """The name of a corpus in NAME=DIR; None for one without a name, whose path is absolute."""
    name, sign, _ = word.partition("=")
    return name if sign and "/" not in name else None


def _absolute(word: str) -> str:
    """DIR, DIR:WEIGHT or NAME=DIR with an absolute path, if there is such a folder."""
    if is_url(word):
        return word
    if Path(word).exists():
        return str(Path(word).resolve())
    name, sign, path = word.partition("=")
    if sign and path:
        return f"{name}={_absolute(path)}"
    folder, sign, weight = word.rpartition(":")
    return f"{Path(folder).resolve()}:{weight}" if sign and Path(folder).exists() else word


def _split_file(folder: Path, split: str) -> str:
    files = sorted(folder.glob(f"{split}.*"))
    if len(files) != 1:
        count = "no file" if not files else f"{len(files)} files"
        raise UserError(f"{folder}: has {count} named {split}.*; keep exactly one")
    return str(files[0])

"""A study as it was asked for: on which text, how large, on which tasks; and its cells in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from clozelab.config.recipe import Recipe, read
from clozelab.errors import UserError
from clozelab.finetuning import protocols
from clozelab.finetuning.request import Data, absolute
from clozelab.runs.directory import CELLS
from clozelab.studies.scores import named_task
from clozelab.studies.spec import Study


@dataclass(frozen=True)
class Cell:
    """One run of a study: a variant with a seed."""

    variant: str
    seed: int

    @property
    def name(self) -> str:
        """What it is called, and where it lies among the cells."""
        return f"{self.variant}/seed-{self.seed}"

    def place(self, out: Path) -> Path:
        """Its folder in that of the study."""
        return out / CELLS / self.variant / f"seed-{self.seed}"


@dataclass(frozen=True)
class Request:
    """What to run; every path is one that any process would find."""

    study: Study
    data: tuple[str, ...]  # DIR or DIR:WEIGHT, and NAME=DIR for variants with a corpus of their own
    size: str | None = None
    budget: str | None = None  # a time for all of it; tokens or steps for each cell
    task_data: str | None = None

    def recipe(self, variant: str) -> Recipe:
        """A variant's recipe at the size."""
        return self.study.recipe_of(variant, size=self.size)

    def protocol(self, variant: str) -> str:
        """How a variant is fine-tuned: as it says, or as the recipe is whose variant it is."""
        own = self.study.variant(variant)
        base = read(own.recipe or self.study.recipe)
        return own.protocol or protocols.protocol_for(self.recipe(variant), base=base)

    def stores(self, variant: str) -> list[str]:
        """The corpora that a variant reads."""
        own = {one.data for one in self.study.variants if one.data is not None}
        word = self.study.variant(variant).data
        split = [(name, place) for name, _, place in (one.partition("=") for one in self.data)]
        if word is None:
            return [f"{n}={p}" if p else n for n, p in split if not (p and n in own)]
        found = [place for name, place in split if place and name == word]
        if not found:
            raise UserError(
                f"{self.study.name}: variant {variant} has a corpus of its own; give it by"
                f" --data {word}=CORPUS"
            )
        return found

    def tasks(self) -> dict[str, Data]:
        """The tasks by name, with where their examples are."""
        name = self.study.name
        return {named_task(one, place=name): self._data(one) for one in self.study.tasks}

    def settings(self, variant: str, task: str) -> tuple[str, ...]:
        """What a variant changes in its protocol on a task; TASK.KEY=VALUE is for that alone."""
        tasks, words = {*protocols.tasks(), *self.tasks()}, self._tuning(variant)
        general = [word for word in words if word.partition(".")[0] not in tasks]
        own = [word.removeprefix(f"{task}.") for word in words if word.startswith(f"{task}.")]
        return _last((*general, *own))

    @cached_property
    def leans(self) -> dict[str, str]:
        """Variants that need another's run: its teacher's, or the very same pretraining."""
        return {
            one.name: found
            for one in self.study.variants
            if (found := one.teacher or self.twin(one.name)) is not None
        }

    def twin(self, variant: str) -> str | None:
        """An earlier variant with the same pretraining, which need not be done twice."""
        same = [name for name, one in self._learned.items() if one == self._learned[variant]]
        return same[0] if same[0] != variant else None

    def mark(self, variant: str) -> str:
        """A word for what a variant is, pretraining and fine-tuning: another if that changes."""
        told = (
            self._learned[variant],
            self._tuning(variant),
            self.study.variant(variant).protocol,
        )
        return sha256(repr(told).encode()).hexdigest()

    def cells(self) -> list[Cell]:
        """Seed by seed, so that what is there can be compared whenever it ends; teachers first."""
        return [
            Cell(name, seed)
            for seed in range(self.study.seeds)
            for name in sorted((one.name for one in self.study.variants), key=self._depth)
        ]

    def _depth(self, variant: str) -> int:
        return 1 + self._depth(self.leans[variant]) if variant in self.leans else 0

    @cached_property
    def _learned(self) -> dict[str, tuple[object, ...]]:
        """What makes each variant's pretraining what it is."""
        return {
            one.name: (repr(self.recipe(one.name).tables()), one.data, one.share, one.teacher)
            for one in self.study.variants
        }

    def _tuning(self, variant: str) -> tuple[str, ...]:
        """What a variant says of fine-tuning, over what all of them do."""
        return _last((*self.study.finetune, *self.study.variant(variant).finetune))

    def _data(self, task: str) -> Data:
        kind, sign, folder = task.partition("=")
        if not sign:
            return Data(kind, root=self.task_data)
        files = {split: _file(Path(folder), split) for split in ("train", "dev")}
        return Data(kind, train=files["train"], dev=files["dev"])


def asked(
    study: Study,
    data: Sequence[str],
    *,
    size: str | None = None,
    budget: str | None = None,
    task_data: str | None = None,
) -> Request:
    """A request whose paths are seen from anywhere."""
    if not data:
        raise UserError(f"{study.name}: no corpus to train on; give one by --data CORPUS")
    return Request(
        study,
        tuple(_seen(one) for one in data),
        size=size,
        budget=budget,
        task_data=absolute(task_data),
    )


def _last(words: Sequence[str]) -> tuple[str, ...]:
    """Of KEY=VALUE the last for each key."""
    return tuple({word.partition("=")[0].strip(): word for word in words}.values())


def _seen(word: str) -> str:
    """DIR, DIR:WEIGHT or NAME=DIR with the path in full, if there is one."""
    if Path(word).exists():
        return str(Path(word).resolve())
    name, sign, place = word.partition("=")
    if sign and place:
        return f"{name}={_seen(place)}"
    folder, sign, weight = word.rpartition(":")
    return f"{Path(folder).resolve()}:{weight}" if sign and Path(folder).exists() else word


def _file(folder: Path, split: str) -> str:
    found = sorted(folder.glob(f"{split}.*"))
    if len(found) != 1:
        many = "no file" if not found else f"{len(found)} files"
        raise UserError(f"{folder}: has {many} named {split}.*; a task of one's own has one")
    return str(found[0])

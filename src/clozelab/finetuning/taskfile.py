"""task.toml, which travels with a fine-tuned checkpoint: the task, and how it was tuned."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import Any

from clozelab import registry
from clozelab.config import toml
from clozelab.config.tables import build, plain
from clozelab.config.toml import written
from clozelab.errors import UserError
from clozelab.finetuning.kinds import KINDS, TaskKind
from clozelab.finetuning.tuning import Tuning
from clozelab.nearest import remedy

IMPORTED = "imported"


@dataclass(frozen=True)
class Assignment:
    """A task by its name, its kind with all settings, and its tuning."""

    name: str  # "sst2", or the kind where the data are the user's own
    kind: TaskKind
    tuning: Tuning
    columns: tuple[str, ...] = ()  # role=column of the files that it was tuned on

    @property
    def imported(self) -> bool:
        """Whether it came without a name; whether its texts are pairs is then not known."""
        return self.name == IMPORTED


def to_toml(given: Assignment) -> str:
    """The whole of it as text; it reads back equal."""
    return toml.to_toml(
        {
            "name": given.name,
            "imports": registry.modules([("task", given.kind.name)]) or None,
            "columns": given.columns or None,
            "task": {"use": given.kind.name, **plain(given.kind)},
            "tuning": plain(given.tuning),
        }
    )


def parse(text: str, place: str) -> Assignment:
    """The assignment that a text holds; `place` is what errors call it."""
    try:
        tables: dict[str, Any] = tomllib.loads(text)
        task = dict(tables["task"])
        use = task.pop("use")
        name, tuning = str(tables["name"]), tables["tuning"]
        columns = tuple(str(word) for word in tables.get("columns", ()))
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{place}: is no task file ({error}); put the checkpoint back") from None
    registry.require(tables.get("imports", []), place)
    part = registry.find("task", str(use))
    if part is None:
        fix = f"{remedy(str(use), KINDS)}{registry.failures()}"
        raise UserError(f"{place}: task.use = {written(use)} is unknown; {fix}")
    kind: TaskKind = build(part, task, place=place, key="task")
    return Assignment(name, kind, build(Tuning, tuning, place=place, key="tuning"), columns)

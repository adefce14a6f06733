"""A fine-tuned task: task.toml, which goes with a checkpoint, and its head in transformers.

Settings that their configs have no key for (pairs, metrics, windows, the null threshold of SQuAD
2.0) are stored under a key of ours; an imported model without it gets defaults.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from typing import Any

from clozelab import registry
from clozelab.config import toml
from clozelab.config.renamed import recorded
from clozelab.config.tables import build, plain
from clozelab.config.toml import written
from clozelab.errors import UserError
from clozelab.finetuning.config import FinetuneConfig
from clozelab.finetuning.kinds import KINDS, TaskKind
from clozelab.models.interop.families import Summary
from clozelab.models.interop.heads import EXTRA_KEY, IMPORTED, MARKS_KEY, TaskHead
from clozelab.nearest import remedy


@dataclass(frozen=True)
class TunedTask:
    """A task by its name, its kind with all settings, and its tuning."""

    name: str  # "sst2", or the kind if the data are the user's own
    kind: TaskKind
    tuning: FinetuneConfig
    columns: tuple[str, ...] = ()  # role=column of the files that it was tuned on
    special_tokens: bool = True  # whether its texts get special tokens; not for an imported GPT-2

    @property
    def imported(self) -> bool:
        """Whether it was imported without a name; then it is not known whether texts are pairs."""
        return self.name == IMPORTED

    @property
    def called(self) -> str:
        """Its name, or its kind if it has none."""
        return self.kind.name if self.imported else self.name


def to_toml(task: TunedTask) -> str:
    """The text of task.toml, which `parse` reads back."""
    return toml.to_toml(
        {
            "name": task.name,
            "imports": registry.modules([("task", task.kind.name)]) or None,
            "columns": task.columns or None,
            "marks": None if task.special_tokens else False,
            "task": {"use": task.kind.name, **plain(task.kind)},
            "tuning": plain(task.tuning),
        }
    )


def parse(text: str, place: str) -> TunedTask:
    """The task from the text of task.toml; `place` names it in errors."""
    try:
        tables: dict[str, Any] = tomllib.loads(text)
        task = dict(tables["task"])
        use = task.pop("use")
        name, tuning = str(tables["name"]), tables["tuning"]
        columns = tuple(str(word) for word in tables.get("columns", ()))
        special_tokens = tables.get("marks", True) is not False
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{place}: is not a task file ({error}); restore the checkpoint from a copy"
        ) from None
    registry.require(tables.get("imports", []), place)
    part = registry.find("task", str(use))
    if part is None:
        fix = f"{remedy(str(use), KINDS)}{registry.failures()}"
        raise UserError(f"{place}: task.use = {written(use)} is unknown; {fix}")
    with recorded():
        kind: TaskKind = build(part, task, place=place, key="task")
        config: FinetuneConfig = build(FinetuneConfig, tuning, place=place, key="tuning")
    return TunedTask(name, kind, config, columns, special_tokens)


# BERT's (A.3), since it is not known how an imported model was tuned.
_DEFAULT_TUNING: dict[str, Any] = {"learning_rate": 2e-5, "batch_size": 32, "epochs": 3.0}
_SUMMARY = ("summary", "drop_first", "bias")
# Settings with the same names in `TaskHead`.
_SAME_NAMES = ("pool", "head", "beams", "transform", "dropout")


def outward(task: TunedTask, *, length: int) -> TaskHead:
    """The head, for blocks of at most `length` tokens."""
    settings, name = plain(task.kind), task.kind.name
    labels = settings.pop(task.kind.label_field or "", [])
    summary_values = [settings.pop(field) for field in _SUMMARY if field in settings]
    same = {field: settings.pop(field) for field in _SAME_NAMES if field in settings}
    return TaskHead(
        name,
        labels=tuple(labels),
        summary=Summary(*summary_values),
        impossible=settings.get("impossible", False),
        vectors=_vectors(task.tuning),
        special_tokens=task.special_tokens,
        extra={"task": task.name, "kind": name, "length": length, **settings}
        | ({} if task.special_tokens else {MARKS_KEY: False}),
        **same,
    )


def inward(head: TaskHead, *, place: str, length: int) -> TunedTask:
    """The task of a head imported from `place`, for blocks of at most `length` tokens."""
    # The head may have been replaced by one of another kind since.
    extra = dict(head.extra) if head.extra.get("kind") == head.kind else {}
    part = KINDS[head.kind]
    names = {field.name for field in fields(part)}  # type: ignore[arg-type]
    settings = {name: value for name, value in extra.items() if name in names}
    settings |= {name: getattr(head, name) for name in _SAME_NAMES if name in names}
    if names.issuperset(_SUMMARY):
        settings |= dict(zip(_SUMMARY, head.summary, strict=True))
    if part.label_field is not None:
        settings[part.label_field] = head.labels
    if head.head == "beam":
        settings["impossible"] = head.impossible
    file = f"{place}/config.json"
    kind: TaskKind = build(part, settings, place=file, key=EXTRA_KEY)
    tuning = {**_DEFAULT_TUNING, "length": extra.get("length", length)}
    tuning |= {other: getattr(kind, name) for name, other in part.from_tuning.items()}
    return TunedTask(
        str(extra.get("task", IMPORTED)),
        kind,
        build(FinetuneConfig, tuning, place=file, key=EXTRA_KEY),
        special_tokens=head.special_tokens,
    )


def _vectors(tuning: FinetuneConfig) -> str:
    """The name of the vectors that the head reads."""
    if tuning.reader != "linear":
        return tuning.reader
    return "last" if tuning.features == "tuned" else tuning.features

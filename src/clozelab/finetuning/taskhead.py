"""A task as a class of transformers has it, and back: the head by its settings, labels by name.

What their configs have no word for (pairs, metrics, windows, the null threshold of SQuAD 2.0) goes
along under a key of ours; a model that comes without it gets what is usual.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from clozelab.config.tables import build, plain
from clozelab.finetuning.kinds import KINDS, TaskKind
from clozelab.finetuning.taskfile import IMPORTED, Assignment
from clozelab.finetuning.tuning import Tuning
from clozelab.models.interop.head_configs import EXTRA_KEY
from clozelab.models.interop.heads import Summary, TaskHead

# BERT's (A.3): how a model of another library was tuned is not known.
_TUNED: dict[str, Any] = {"rate": 2e-5, "sequences": 32, "epochs": 3.0}
_SUMMARY = ("summary", "drop_first", "bias")
_ALIKE = ("pool", "head", "beams", "dropout")  # settings that a head has under our names


def outward(task: Assignment, *, length: int) -> TaskHead:
    """The head, for blocks of at most `length` tokens."""
    settings, name = plain(task.kind), task.kind.name
    labels = settings.pop(task.kind.label_field or "", [])
    summed = [settings.pop(field) for field in _SUMMARY if field in settings]
    alike = {field: settings.pop(field) for field in _ALIKE if field in settings}
    return TaskHead(
        name,
        labels=tuple(labels),
        summary=Summary(*summed),
        impossible=settings.get("impossible", False),
        vectors=_vectors(task.tuning),
        extra={"task": task.name, "kind": name, "length": length, **settings},
        **alike,
    )


def inward(head: TaskHead, *, place: str, length: int) -> Assignment:
    """The task of a head that came from `place`, for blocks of at most `length` tokens."""
    # A head of another kind was put in the place of the one that was told of.
    told = dict(head.extra) if head.extra.get("kind") == head.kind else {}
    part = KINDS[head.kind]
    names = {field.name for field in fields(part)}  # type: ignore[arg-type]
    settings = {name: value for name, value in told.items() if name in names}
    settings |= {name: getattr(head, name) for name in _ALIKE if name in names}
    if names.issuperset(_SUMMARY):
        settings |= dict(zip(_SUMMARY, head.summary, strict=True))
    if part.label_field is not None:
        settings[part.label_field] = head.labels
    if head.head == "beam":
        settings["impossible"] = head.impossible
    file = f"{place}/config.json"
    kind: TaskKind = build(part, settings, place=file, key=EXTRA_KEY)
    tuning = {**_TUNED, "length": told.get("length", length)}
    tuning |= {other: getattr(kind, name) for name, other in part.from_tuning.items()}
    return Assignment(
        str(told.get("task", IMPORTED)),
        kind,
        build(Tuning, tuning, place=file, key=EXTRA_KEY),
    )


def _vectors(tuning: Tuning) -> str:
    """What the head stands on, by name."""
    if tuning.reader != "linear":
        return tuning.reader
    return "last" if tuning.features == "tuned" else tuning.features

"""A task as a class of transformers has it, and back: the head by its settings, labels by name.

What their configs have no word for (pairs, metrics, windows, the null threshold of SQuAD 2.0) goes
along under a key of ours; a model that comes without it gets what is usual.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from clozelab.config.tables import build, plain
from clozelab.finetuning.kinds import KINDS
from clozelab.finetuning.taskfile import Assignment
from clozelab.finetuning.tuning import Tuning
from clozelab.models.interop.heads import SUMMARISED, Summary, TaskHead
from clozelab.models.interop.labels import TOLD

# The name of a task that came without one; whether its texts are pairs is then not known.
IMPORTED = "imported"

_CHOICES = 4  # SWAG's and RACE's; it matters only to a student
# BERT's (A.3): how a model of another library was tuned is not known.
_TUNED: dict[str, Any] = {"rate": 2e-5, "sequences": 32, "epochs": 3.0}
_SUMMARY = ("summary", "drop_first", "bias")
_LABELS = {"classify": "labels", "tag": "tags"}
_ALIKE = ("pool", "head", "beams", "dropout")  # settings that a head has under our names


def outward(task: Assignment, *, length: int) -> TaskHead:
    """The head, for blocks of at most `length` tokens."""
    settings, name = plain(task.kind), task.kind.name
    labels = settings.pop(_LABELS.get(name, ""), [])
    summed = [settings.pop(each) for each in _SUMMARY if each in settings]
    alike = {each: settings.pop(each) for each in _ALIKE if each in settings}
    return TaskHead(
        name,
        labels=tuple(labels),
        summary=Summary(*summed),
        impossible=settings.get("impossible", False),
        vectors=_vectors(task.tuning),
        told={"task": task.name, "kind": name, "length": length, **settings},
        **alike,
    )


def inward(head: TaskHead, *, place: str, length: int) -> Assignment:
    """The task of a head that came from `place`, for blocks of at most `length` tokens."""
    # A head of another kind was put in the place of the one that was told of.
    told = dict(head.told) if head.told.get("kind") == head.kind else {}
    part = KINDS[head.kind]
    names = {field.name for field in fields(part)}
    settings = {name: value for name, value in told.items() if name in names}
    settings |= {name: getattr(head, name) for name in _ALIKE if name in names}
    if head.kind in SUMMARISED:
        settings |= dict(zip(_SUMMARY, head.summary, strict=True))
    if head.kind in _LABELS:
        settings[_LABELS[head.kind]] = head.labels
    if head.kind == "choose":
        settings.setdefault("choices", _CHOICES)
    if head.head == "beam":
        settings["impossible"] = head.impossible
    file = f"{place}/config.json"
    tuning = {**_TUNED, "length": told.get("length", length), "head_dropout": head.dropout}
    if head.kind == "answer":
        tuning["head"] = head.head
    return Assignment(
        str(told.get("task", IMPORTED)),
        build(part, settings, place=file, key=TOLD),
        build(Tuning, tuning, place=file, key=TOLD),
    )


def _vectors(tuning: Tuning) -> str:
    """What the head stands on, by name."""
    if tuning.reader != "linear":
        return tuning.reader
    return "last" if tuning.features == "tuned" else tuning.features

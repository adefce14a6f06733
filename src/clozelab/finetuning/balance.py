"""Notes on the labels of a task: how often each occurs, and what may be a mistake in a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clozelab.finetuning.kinds import TaskKind
from clozelab.nearest import listed

_FEW = 12  # labels that are listed with their counts; of more, the most frequent are
_MOST = 5


def label_notes(
    kind: TaskKind, train: Sequence[Any], dev: Mapping[str, Sequence[Any]]
) -> list[str]:
    """Notes for a kind with labels, on its training set and its dev sets by name."""
    if kind.label_field is None:
        return []
    what = "classes" if kind.label_field == "labels" else kind.label_field
    counts = Counter(dict.fromkeys(kind.label_names, 0))
    counts.update(_labels(kind, train))
    notes = [_balance(counts, what)]
    for group in _alike(counts)[:_MOST]:
        notes.append(
            f"the {what} {listed(group, conjunction='and')} differ only by case or spaces; write"
            " them in one way if they are the same"
        )
    for name, examples in dev.items():
        present = {*_labels(kind, examples)}
        absent = [label for label in counts if counts[label] and label not in present]
        if absent:
            more = [f"{len(absent) - _MOST} more"] if len(absent) > _MOST else []
            labels = listed([*absent[:_MOST], *more], conjunction="and")
            notes.append(f"{what} that never occur in {name}: {labels}")
    return notes


def _labels(kind: TaskKind, examples: Iterable[Any]) -> Iterable[str]:
    return (label for example in examples for label in kind.gold_labels(example))


def _balance(counts: Counter[str], what: str) -> str:
    """The labels with their counts, or of many the most frequent."""
    shown = counts.most_common(_MOST) if len(counts) > _FEW else counts.items()
    labels = ", ".join(f"{label} ({count:,})" for label, count in shown)
    frequent = "; the most frequent" if len(counts) > _FEW else ""
    return f"{len(counts)} {what} in the training set{frequent}: {labels}"


def _alike(labels: Iterable[str]) -> list[list[str]]:
    """The groups of labels that differ only by case or spaces."""
    groups: dict[str, list[str]] = {}
    for label in labels:
        groups.setdefault("".join(label.split()).casefold(), []).append(label)
    return [group for group in groups.values() if len(group) > 1]

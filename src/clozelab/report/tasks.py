"""The tasks that go by name: a table of them, and one in full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from rich.table import Table

from clozelab.contracts import UserError
from clozelab.recipe.tables import remedy
from clozelab.tasks import KINDS
from clozelab.tasks.files.named import NAMED, Named


def table(named: Mapping[str, Named]) -> Table:
    """Name, kind, metrics and what it asks."""
    found = Table(box=None, pad_edge=False)
    for column in ("task", "kind", "metrics", "what it asks"):
        found.add_column(column)
    for name, task in named.items():
        found.add_row(name, task.kind, _metrics(task), task.title)
    return found


def described(name: str) -> str:
    """One task: what it is, and where its files should lie."""
    if name not in NAMED:
        raise UserError(f"task {name}: there is no such; {remedy(name, NAMED)}")
    task = NAMED[name]
    lines = [f"{name}: {task.title}", f"kind: {task.kind}", f"metrics: {_metrics(task)}"]
    labels = task.settings.get("labels", task.settings.get("tags", ()))
    if isinstance(labels, tuple) and labels:
        lines.append(f"labels: {', '.join(labels)}")
    lines.append(f"files, under --task-data DIR or CLOZELAB_DATA: {' or '.join(task.folders)}/")
    for split, files in task.splits.items():
        lines.append(f"  {split}: {' or '.join(file.name for file in files)}")
    lines += [task.note] if task.note else []
    return "\n".join(lines)


def _metrics(task: Named) -> str:
    (usual,) = (one.default for one in fields(KINDS[task.kind]) if one.name == "metrics")
    metrics = task.settings.get("metrics", usual)
    return ", ".join(metrics) if isinstance(metrics, tuple) else ""

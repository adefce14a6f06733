"""The tasks that go by name: a table of them, and one in full."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group
from rich.table import Table
from rich.text import Text

from clozelab.errors import UserError
from clozelab.finetuning.files.named import NAMED, Named
from clozelab.finetuning.kinds import KINDS
from clozelab.nearest import remedy


def table(named: Mapping[str, Named]) -> Table:
    """Name, kind, metrics and what it asks."""
    found = Table(box=None, pad_edge=False)
    for column in ("task", "kind", "metrics", "what it asks"):
        found.add_column(column)
    for name, task in named.items():
        found.add_row(name, task.kind, _metrics(task), task.title)
    return found


def described(name: str) -> Group:
    """One task: what it is, and where its files should lie."""
    if name not in NAMED:
        raise UserError(f"task {name}: there is no such; {remedy(name, NAMED)}")
    task = NAMED[name]
    facts = Table.grid(padding=(0, 2))
    facts.add_row("kind", task.kind)
    facts.add_row("metrics", _metrics(task))
    labels = task.settings.get(KINDS[task.kind].label_field or "", ())
    if isinstance(labels, tuple) and labels:
        facts.add_row("labels", ", ".join(labels))
    facts.add_row("folder", " or ".join(f"DIR/{folder}/" for folder in task.folders))
    for split, files in task.splits.items():
        facts.add_row(split, " or ".join(file.name for file in files))
    notes = [task.note] if task.note else []
    where = "DIR is what --task-data or CLOZELAB_DATA says; files may be packed as .xz or .gz."
    return Group(Text(task.title, style="bold"), Text(""), facts, Text(""), *notes, where)


def _metrics(task: Named) -> str:
    metrics = task.settings.get("metrics", getattr(KINDS[task.kind], "metrics", ()))
    return ", ".join(metrics) if isinstance(metrics, tuple) else ""

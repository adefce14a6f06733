"""The scores of a task's fine-tunings as a table: a line for each cell of a grid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table


def table(result: Mapping[str, Any]) -> Table:
    """Mean with its interval over seeds; with several runs also the median and the best."""
    cells = result["cells"]
    many = max(int(cell["selected"]["runs"]) for cell in cells)
    found = Table(box=None, pad_edge=False)
    if len(cells) > 1:
        found.add_column("cell")
    for metric in cells[0]["scores"]:
        found.add_column(metric.replace("_", " "), justify="right")
    for column in ("median", "best") if many > 1 else ():
        found.add_column(column, justify="right")
    if many > 1:
        found.add_column("runs", justify="right")
    for cell in cells:
        row = [cell["name"]] if len(cells) > 1 else []
        row += [told(one) for one in cell["scores"].values()]
        if many > 1:
            row += [f"{cell['selected'][name]:.1f}" for name in ("median", "best")]
            row.append(str(int(cell["selected"]["runs"])))
        chosen = len(cells) > 1 and result["best"].startswith(f"{cell['name']}/")
        found.add_row(*row, style="bold" if chosen else None)
    return found


def scores(found: Mapping[str, Mapping[str, float]]) -> Table:
    """A line for each set of examples."""
    made = Table(box=None, pad_edge=False)
    made.add_column("")
    for metric in next(iter(found.values())):
        made.add_column(metric.replace("_", " "), justify="right")
    for name, one in found.items():
        made.add_row(name, *(f"{value:.2f}" for value in one.values()))
    return made


def told(spread: Mapping[str, float]) -> str:
    """A mean, with half the width of its interval where there is one."""
    mean = f"{spread['mean']:.1f}"
    return f"{mean} ± {spread['high'] - spread['mean']:>4.1f}" if "high" in spread else mean

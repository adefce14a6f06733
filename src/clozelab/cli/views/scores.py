"""The scores of fine-tunings in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from clozelab.reporting.page import mean_text


def table(result: Mapping[str, Any]) -> Table:
    """A row for each cell of a grid: means over seeds; with several runs also median and best."""
    cells = result["cells"]
    runs = max(int(cell["selected"]["runs"]) for cell in cells)
    lines = Table(box=None, pad_edge=False)
    if len(cells) > 1:
        lines.add_column("cell")
    for metric in cells[0]["scores"]:
        lines.add_column(metric.replace("_", " "), justify="right")
    for column in ("median", "best", "runs") if runs > 1 else ():
        lines.add_column(column, justify="right")
    for cell in cells:
        row = [cell["name"]] if len(cells) > 1 else []
        row += [mean_text(summary) for summary in cell["scores"].values()]
        if runs > 1:
            row += [f"{cell['selected'][name]:.1f}" for name in ("median", "best")]
            row.append(str(int(cell["selected"]["runs"])))
        chosen = len(cells) > 1 and result["best"].startswith(f"{cell['name']}/")
        lines.add_row(*row, style="bold" if chosen else None)
    return lines


def scores(sets: Mapping[str, Mapping[str, float]]) -> Table:
    """A row for each set of examples."""
    lines = Table(box=None, pad_edge=False)
    lines.add_column("")
    for metric in next(iter(sets.values())):
        lines.add_column(metric.replace("_", " "), justify="right")
    for name, values in sets.items():
        lines.add_row(name, *(f"{value:.2f}" for value in values.values()))
    return lines

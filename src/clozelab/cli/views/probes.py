"""Probes in a terminal: the score of each task by layer, the layer that counts in bold."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from clozelab.scoring.probe import Probes


def table(found: Probes) -> Table:
    """A row for each metric of each task; ± is the standard error over the scored examples."""
    lines = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("task", "metric"):
        lines.add_column(column)
    for column in ("score", "± s.e.", "examples", "layer"):
        lines.add_column(column, justify="right")
    layers = [one.layer for one in found.results[0].layers]
    for layer in layers if len(layers) > 1 else ():
        lines.add_column(str(layer), justify="right")
    for one in found.results:
        for number, metric in enumerate(one.metrics):
            error = one.errors.get(metric)
            row = [
                Text("" if number else one.task),
                Text(metric.replace("_", " ")),
                Text(f"{one.scores[metric]:.2f}", style="bold"),
                Text("–" if error is None else f"{error:.2f}"),
                Text(f"{one.scored:,}"),
                Text(str(one.layer)),
            ]
            for each in one.layers if len(layers) > 1 else ():
                style = "bold" if each.layer == one.layer else ""
                row.append(Text(f"{each.scores[metric]:.1f}", style=style))
            lines.add_row(*row)
    return lines

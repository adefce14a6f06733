"""Probes in a terminal: the score of each task by layer, the layer that counts in bold."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from clozelab.cli.views import Values, or_dash, table
from clozelab.scoring.probe import Probes


def probes(result: Probes, values: Values) -> Iterator[Table]:
    """A row for each metric of each task; ± is the standard error over the scored examples."""
    layers = [str(each.layer) for each in result.results[0].layers]
    by_layer = layers if len(layers) > 1 else []
    lines = table("task", "metric", right=("score", "± s.e.", "examples", "layer", *by_layer))
    for task in result.results:
        for number, metric in enumerate(task.metrics):
            row = [
                Text("" if number else task.task),
                Text(metric.replace("_", " ")),
                Text(f"{task.scores[metric]:.2f}", style="bold"),
                Text(or_dash(task.errors.get(metric), "{:.2f}")),
                Text(f"{task.scored:,}"),
                Text(str(task.layer)),
            ]
            for each in task.layers if by_layer else ():
                style = "bold" if each.layer == task.layer else ""
                row.append(Text(f"{each.scores[metric]:.1f}", style=style))
            lines.add_row(*row)
    yield lines

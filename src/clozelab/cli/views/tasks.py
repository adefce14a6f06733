"""Tasks that go by name, scores of fine-tunings, losses on held-out text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import exp
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from clozelab.api.watching import speaks
from clozelab.cli.views import Values, or_dash, table
from clozelab.finetuning.files.named import Named
from clozelab.finetuning.kinds import KINDS
from clozelab.reporting.page import mean_text
from clozelab.runs.directory import Run


def known(named: Mapping[str, Named], values: Values) -> Iterator[RenderableType]:
    """Name, kind, metrics and what it asks; of one also where its files should lie."""
    if "name" in values:
        yield from _described(named[values["name"]])
        return
    rows = ((name, task.kind, _metrics(task), task.title) for name, task in named.items())
    yield table("task", "kind", "metrics", "description", rows=rows)


def _described(task: Named) -> Iterator[RenderableType]:
    rows = {"kind": task.kind, "metrics": _metrics(task)}
    labels = task.settings.get(KINDS[task.kind].label_field or "", ())
    if isinstance(labels, tuple) and labels:
        rows["labels"] = ", ".join(labels)
    rows["folder"] = " or ".join(f"DIR/{folder}/" for folder in task.folders)
    for split, files in task.splits.items():
        rows[split] = " or ".join(file.name for file in files)
    lines = Table.grid(padding=(0, 2))
    for row in rows.items():
        lines.add_row(*row)
    yield from (Text(task.title, style="bold"), Text(), lines, Text())
    yield from (Text(note) for note in (task.note,) if note)
    yield Text(
        "DIR is the folder of --task-data or CLOZELAB_DATA; files may be compressed as .xz or .gz."
    )


def _metrics(task: Named) -> str:
    metrics = task.settings.get("metrics", getattr(KINDS[task.kind], "metrics", ()))
    return ", ".join(metrics) if isinstance(metrics, tuple) else ""


def tuned(run: Run, values: Values) -> Iterator[RenderableType]:
    """A row for each cell of a grid: means over seeds; with several runs also median and best."""
    result = run.result()
    if result is None or not speaks():
        return
    cells: list[dict[str, Any]] = result["cells"]
    runs = max(int(cell["selected"]["runs"]) for cell in cells)
    several = ("median", "best", "runs") if runs > 1 else ()
    metrics = [metric.replace("_", " ") for metric in cells[0]["scores"]]
    lines = table(*["cell"] * (len(cells) > 1), right=(*metrics, *several))
    for cell in cells:
        row = [cell["name"]] if len(cells) > 1 else []
        row += [mean_text(summary) for summary in cell["scores"].values()]
        if several:
            row += [f"{cell['selected'][name]:.1f}" for name in ("median", "best")]
            row.append(str(int(cell["selected"]["runs"])))
        chosen = len(cells) > 1 and result["best"].startswith(f"{cell['name']}/")
        lines.add_row(*row, style="bold" if chosen else None)
    yield lines
    if constant := result.get("constant"):
        scores = [f"{name.replace('_', ' ')} {score:.1f}" for name, score in constant.items()]
        yield Text(f"constant prediction: {', '.join(scores)}", style="dim")


def measured(results: Mapping[str, Mapping[str, float]], values: Values) -> Iterator[Table]:
    """A task's scores, a row for each set of examples; or losses, a row for each objective."""
    if "task" not in values:
        yield _losses(results)
        return
    metrics = [metric.replace("_", " ") for metric in next(iter(results.values()))]
    scores = {name: [f"{score:.2f}" for score in of.values()] for name, of in results.items()}
    yield table("", right=metrics, rows=([name, *cells] for name, cells in scores.items()))


def _losses(losses: Mapping[str, Mapping[str, float]]) -> Table:
    """Loss, perplexity and accuracy of each objective; accuracy also by what the encoder saw."""
    shares = {"accuracy": "", "at masks": "_mask", "at random": "_random", "at same": "_same"}
    lines = table("objective", right=("loss", "perplexity", *shares))
    for name, means in losses.items():
        accuracies = [or_dash(means.get(f"accuracy{of}"), "{:.1%}") for of in shares.values()]
        perplexity = exp(min(means["loss"], 50))
        lines.add_row(name, f"{means['loss']:.4f}", f"{perplexity:,.2f}", *accuracies)
    return lines

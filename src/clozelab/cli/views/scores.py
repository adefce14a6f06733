"""Scores in a terminal: a strip of surprisal for each text; tables of pairs, facts and probes,
and of losses under masks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from clozelab.cli.console import out
from clozelab.cli.views import Values, or_dash, table
from clozelab.nearest import counted
from clozelab.scoring.facts import FactScores, Precisions
from clozelab.scoring.pairs import Accuracy, PairScores
from clozelab.scoring.texts import LEVELS, ScoredText, TextScores, Unit

if TYPE_CHECKING:
    from clozelab.pretraining.matrix import MaskMatrix, MatrixCell
    from clozelab.scoring.probe import Probes

# Of the levels of surprisal.
_COLOURS = (
    "black on #ffffff",
    "black on #fff3d6",
    "black on #fed98e",
    "black on #fe9929",
    "white on #cc4c02",
    "white on #7f1d1d",
)


def scores(
    result: TextScores | PairScores | FactScores, values: Values
) -> Iterator[RenderableType | str]:
    """What was computed, for people, or of texts also for other programs."""
    if isinstance(result, TextScores):
        yield from _texts(result, values)
    else:
        yield _pairs(result) if isinstance(result, PairScores) else _facts(result)


def _texts(result: TextScores, values: Values) -> Iterator[RenderableType | str]:
    by, as_json = values.get("by", "word"), bool(values.get("json"))
    if "out" in values:
        return
    if as_json or not out.is_terminal:
        yield from result.lines(by=by, as_json=as_json)
        return
    coloured = out.color_system is not None and not out.no_color
    for text in (each for each in result if each.tokens):
        yield strip(text, by=by, coloured=coloured)
        yield Text(
            f"{text.log_likelihood:.2f} nats, perplexity {text.perplexity:,.2f},"
            f" {counted(len(text.tokens), 'token')}",
            style="dim",
        )
    if coloured:
        legend = Text("nats from ", style="dim")
        for nats, style in zip(LEVELS, _COLOURS, strict=True):
            legend.append(f" {nats:g} ", style=style)
        yield legend


def strip(text: ScoredText, *, by: Unit, coloured: bool) -> Text:
    """The text with a colour behind each piece, or without colours the nats behind it."""
    line = Text()
    for part, piece in text.strip(by):
        line.append(part, style=_COLOURS[piece.level] if coloured and piece else "")
        if not coloured and piece is not None and piece.log_likelihood is not None:
            line.append(f"({piece.surprisal:.1f})")
    return line


def _pairs(result: PairScores) -> Table:
    """A row for each phenomenon, or where there are none for each paradigm; then all."""
    first = "phenomenon" if result.phenomena else "paradigm"
    groups = result.phenomena or result.paradigms
    rows = (_cells(name, one) for name, one in groups.items())
    lines = table(first, right=("accuracy", "± s.e.", "pairs", "ties"), rows=rows)
    mean, error = result.over_paradigms
    if len(result.paradigms) > 1:
        count = f"{len(result.paradigms)} paradigms"
        lines.add_row("mean of paradigms", f"{mean:.2f}", or_dash(error, "{:.2f}"), count, "")
    lines.add_row(*_cells(Text("all pairs", style="bold"), result.all))
    return lines


def _cells(name: Text | str, one: Accuracy) -> tuple[Text | str, ...]:
    error = or_dash(one.standard_error, "{:.2f}")
    return name, f"{one.accuracy:.2f}", error, f"{one.items:,}", f"{one.ties:,}"


def _facts(result: FactScores) -> Table:
    """A row for each relation; then all."""

    def row(name: Text | str, one: Precisions, kind: str = "") -> tuple[Text | str, ...]:
        return name, f"{one.at_1:.2f}", f"{one.at_10:.2f}", f"{one.items:,}{kind}"

    rows = (row(name, one) for name, one in result.relations.items())
    lines = table("relation", right=("P@1", "P@10", "facts"), rows=rows)
    lines.add_row(*row("mean of relations", result.over_relations, " relations"))
    lines.add_row(*row(Text("all facts", style="bold"), result.all))
    return lines


def matrix(result: MaskMatrix, values: Values) -> Iterator[Table]:
    """Models down, strategies across: losses, the least of each column in bold; of pairs shares."""
    names = [*result.masks, *(f"{name} pairs" for name in result.pairs)]
    lines = table("loss under masks of", right=names)
    columns = zip(*result.cells, strict=True)
    least = [min((cell.loss for cell in column if cell), default=0.0) for column in columns]
    for number, model in enumerate(result.models):
        cells = zip(result.cells[number], least, strict=True)
        losses = [_loss(cell, best=best) for cell, best in cells]
        shares = [_share(cells[number]) for cells in result.pairs.values()]
        lines.add_row(model, *losses, *shares)
    yield lines


def _loss(cell: MatrixCell | None, *, best: float) -> Text:
    if cell is None:
        return Text("–")
    return Text(f"{cell.loss:.3f} ± {cell.error:.3f}", style="bold" if cell.loss == best else "")


def _share(cell: MatrixCell | None) -> str:
    return "–" if cell is None else f"{cell.accuracy:.1%} ± {cell.accuracy_error:.1%}"


def probes(result: Probes, values: Values) -> Iterator[Table]:
    """A row for each metric of each task, the layer that counts in bold; ± is the standard error
    over the scored examples.
    """
    layers = [str(each.layer) for each in result.results[0].layers]
    by_layer = layers if len(layers) > 1 else []
    lines = table("task", "metric", right=("score", "± s.e.", "examples", "layer", *by_layer))
    for task in result.results:
        for number, metric in enumerate(task.metrics):
            row: list[Text | str] = [
                *("" if number else task.task, metric.replace("_", " ")),
                Text(f"{task.scores[metric]:.2f}", style="bold"),
                or_dash(task.errors.get(metric), "{:.2f}"),
                *(f"{task.scored:,}", str(task.layer)),
            ]
            for each in task.layers if by_layer else ():
                style = "bold" if each.layer == task.layer else ""
                row.append(Text(f"{each.scores[metric]:.1f}", style=style))
            lines.add_row(*row)
    yield lines

"""Likelihoods in a terminal: a strip of surprisal for each text, tables of pairs and of facts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from clozelab.cli.console import out
from clozelab.cli.views import Values, or_dash, table
from clozelab.scoring.facts import FactScores
from clozelab.scoring.pairs import Accuracy, PairScores
from clozelab.scoring.texts import ScoredText, TextScores

# From expected to unexpected: nats from which a colour is taken, and the colour.
_COLOURS = (
    (0.0, "black on #ffffff"),
    (1.0, "black on #fff3d6"),
    (3.0, "black on #fed98e"),
    (5.0, "black on #fe9929"),
    (8.0, "white on #cc4c02"),
    (12.0, "white on #7f1d1d"),
)


def scores(
    result: TextScores | PairScores | FactScores, values: Values
) -> Iterator[RenderableType | str]:
    """What was computed, for people, or as JSON for other programs."""
    as_json = bool(values.get("json"))
    if isinstance(result, TextScores):
        yield from _texts(result, values, as_json=as_json)
    elif as_json:
        yield json.dumps(result.as_json(), indent=1, ensure_ascii=False)
    else:
        yield _pairs(result) if isinstance(result, PairScores) else _facts(result)


def _texts(result: TextScores, values: Values, *, as_json: bool) -> Iterator[RenderableType | str]:
    by = values.get("by", "word")
    if "out" in values:
        return
    if as_json or not out.is_terminal:
        yield from result.lines(by=by, as_json=as_json)
        return
    coloured = out.color_system is not None and not out.no_color
    for text in result:
        yield strip(text, by=by, coloured=coloured)
        yield Text(
            f"{text.log_likelihood:.2f} nats, perplexity {text.perplexity:,.2f},"
            f" {len(text.tokens)} tokens",
            style="dim",
        )
    if coloured:
        legend = Text("nats from ", style="dim")
        for nats, style in _COLOURS:
            legend.append(f" {nats:g} ", style=style)
        yield legend


def strip(text: ScoredText, *, by: str, coloured: bool) -> Text:
    """The text with a colour behind each piece, or without colours the nats behind it."""
    line, end = Text(), 0
    pieces = text.tokens if by == "token" else text.words
    for piece in () if by == "sentence" else pieces:
        line.append(text.text[end : max(end, piece.start)])
        shown = text.text[max(end, piece.start) : piece.stop]
        style = [colour for nats, colour in _COLOURS if piece.surprisal >= nats][-1:]
        line.append(shown, style=style[0] if coloured and style else "")
        if not coloured and piece.log_likelihood is not None:
            line.append(f"({piece.surprisal:.1f})")
        end = max(end, piece.stop)
    line.append(text.text[end:])
    return line


def _pairs(result: PairScores) -> Table:
    """A row for each phenomenon, or where there are none for each paradigm; then all."""
    groups: Mapping[str, Accuracy] = result.phenomena or result.paradigms
    first = "phenomenon" if result.phenomena else "paradigm"
    lines = table(first, right=("accuracy", "± s.e.", "pairs", "ties"))
    for name, one in groups.items():
        lines.add_row(Text(name), *_cells(one))
    lines.add_section()
    mean, error = result.over_paradigms
    if len(result.paradigms) > 1:
        count = f"{len(result.paradigms)} paradigms"
        lines.add_row(Text("mean of paradigms"), f"{mean:.2f}", or_dash(error, "{:.2f}"), count, "")
    lines.add_row(Text("all pairs", style="bold"), *_cells(result.all))
    return lines


def _cells(one: Accuracy) -> tuple[str, ...]:
    error = or_dash(one.standard_error, "{:.2f}")
    return f"{one.accuracy:.2f}", error, f"{one.items:,}", f"{one.ties:,}"


def _facts(result: FactScores) -> Table:
    """A row for each relation; then all."""
    lines = table("relation", right=("P@1", "P@10", "facts"))
    for name, one in result.relations.items():
        lines.add_row(Text(name), f"{one.at_1:.2f}", f"{one.at_10:.2f}", f"{one.items:,}")
    lines.add_section()
    mean, whole = result.over_relations, result.all
    count = f"{mean.items} relations"
    lines.add_row(Text("mean of relations"), f"{mean.at_1:.2f}", f"{mean.at_10:.2f}", count)
    row = f"{whole.at_1:.2f}", f"{whole.at_10:.2f}", f"{whole.items:,}"
    lines.add_row(Text("all facts", style="bold"), *row)
    return lines

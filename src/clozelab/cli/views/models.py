"""What a model says, as something to look at: guesses, generated texts, predictions, answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from clozelab.cli.console import out
from clozelab.cli.views import Values

if TYPE_CHECKING:
    from clozelab.api.predicting import PassageAnswer, Predictions
    from clozelab.models.embed import Neighbours, Vectors
    from clozelab.models.fill import Filled
    from clozelab.models.generate import Generated

_NUMBER = re.compile(r"-?\d+\.\d+")
_MASKED = "_"  # as the steps of a generation show it
_AROUND = 300  # characters of a passage on either side of its answer


def filled(result: Filled, values: Values) -> Iterator[RenderableType]:
    """The guesses for every blank, and the text with the best put in: every second part."""
    lines = Table(box=None, pad_edge=False)
    for name in ("blank", "token", "probability"):
        lines.add_column(name, justify="left" if name == "token" else "right")
    for number, guesses in enumerate(result.blanks, start=1):
        for rank, guess in enumerate(guesses):
            name = "" if rank else str(number)
            lines.add_row(name, guess.token, f"{guess.probability:.2%}")
    text = Text()
    for number, part in enumerate(result.parts):
        text.append(part, style="bold green" if number % 2 else "")
    yield Group(lines, Text(), text)


def generated(result: Generated, values: Values) -> Iterator[RenderableType]:
    """A line for each step, what is new in it in colour, and the text; elsewhere the text alone."""
    if out.is_terminal:
        lines = Table.grid(padding=(0, 2))
        for step in range(len(result.steps)):
            number = Text(str(step + 1), style="dim", justify="right")
            lines.add_row(number, _line(result, step))
        yield Group(lines, Text())
    yield Text(result.text)


def _line(result: Generated, step: int) -> Text:
    """All tokens as they are after a step."""
    seen = {each.position for before in result.steps[:step] for each in before}
    new = {each.position for each in result.steps[step]}
    line = Text()
    for token in result.tokens:
        if token.position in seen | new:
            line.append("" if token.joins or not line else " ")
            style = "bold green" if token.position in new else ""
            line.append(token.token.removeprefix("##"), style=style)
        else:
            line.append(f" {_MASKED}" if line else _MASKED, style="dim")
    return line


def embedded(result: Vectors | Neighbours, values: Values) -> Iterator[RenderableType]:
    """The nearest texts: as a table for people, as fields for other programs."""
    if not hasattr(result, "neighbours"):
        return
    rows = [(f"{each.cosine:.4f}", str(each.line), each.text) for each in result.neighbours]
    if not out.is_terminal:
        yield from ("\t".join(row) for row in rows)
        return
    lines = Table(box=None, pad_edge=False)
    for name in ("cosine", "line", "text"):
        lines.add_column(name, justify="left" if name == "text" else "right")
    for row in rows:
        lines.add_row(*row)
    yield lines


def predictions(result: Predictions, values: Values) -> Iterator[RenderableType]:
    """Predictions as a table for people, as lines for other programs."""
    if "out" in values:
        return
    if out.is_terminal and not values.get("json"):
        yield for_people(result)
    else:
        yield from result.lines(as_json=bool(values.get("json")))


def for_people(result: Predictions) -> Table:
    """A row a prediction, numbers below one another."""
    lines = Table.grid(padding=(0, 2))
    for example, prediction in zip(result.examples, result, strict=True):
        if (styled := result.kind.styled(example, prediction)) is not None:
            lines.add_row(Text.assemble(*styled))
            continue
        head, *others = result.kind.fields(example, prediction) or [""]
        numeric = _NUMBER.fullmatch(head) is not None
        first = Text(head, style="bold", justify="right" if numeric else "left")
        lines.add_row(first, *others)
    return lines


def answer(result: PassageAnswer, values: Values) -> Iterator[RenderableType]:
    """The answer, its place in the passage, and its rivals."""
    span, passage = result.span, result.passage
    first = Text(span.text, style="bold green")
    if not span.text:
        first = Text("the passage has no answer", style="yellow")
    begin = span.best[0].start if span.best else 0
    end = begin + len(span.text)
    left, right = max(0, begin - _AROUND), min(len(passage), end + _AROUND)
    around = Text("… " if left else "", style="dim")
    around.append(passage[left:begin])
    around.append(passage[begin:end], style="bold green not dim")
    around.append(passage[end:right])
    around.append(" …" if right < len(passage) else "")
    rivals = Table.grid(padding=(0, 2))
    for rival in span.best[: result.top]:
        rivals.add_row(f"{rival.probability:6.1%}", rival.text)
    yield Group(first, Text(), around, Text(), rivals)

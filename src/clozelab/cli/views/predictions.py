"""What a fine-tuned model said: lines that other programs read, tables and answers for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from clozelab.finetuning.examples import Span
from clozelab.finetuning.kinds import TaskKind

_ENDS = re.compile("[\t\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")  # of a field or of a line
_NUMBER = re.compile(r"-?\d+\.\d+")
_AROUND = 300  # characters of a passage on either side of its answer


def lines(
    kind: type[TaskKind], examples: Sequence[Any], predictions: Sequence[Any], *, as_json: bool
) -> Iterator[str]:
    """A line a prediction: fields with tabs between them, or JSON with text and probabilities."""
    for example, prediction in zip(examples, predictions, strict=True):
        if as_json:
            record = {**_read(kind, example), **_named(prediction)}
            yield json.dumps(record, ensure_ascii=False)
        else:
            fields = kind.fields(example, prediction)
            yield "\t".join(_ENDS.sub(" ", field) for field in fields)


def shown(kind: type[TaskKind], examples: Sequence[Any], predictions: Sequence[Any]) -> Table:
    """The same for people: a row a prediction, numbers below one another."""
    table = Table.grid(padding=(0, 2))
    for example, prediction in zip(examples, predictions, strict=True):
        if (styled := kind.styled(example, prediction)) is not None:
            table.add_row(Text.assemble(*styled))
            continue
        head, *rest = kind.fields(example, prediction) or [""]
        numeric = _NUMBER.fullmatch(head) is not None
        first = Text(head, style="bold", justify="right" if numeric else "left")
        table.add_row(first, *map(Text, rest))
    return table


def answered(said: Span, passage: str, *, top: int) -> Group:
    """The answer, its place in the passage, and its rivals."""
    first = Text(said.text, style="bold green")
    if not said.text:
        first = Text("the passage does not say", style="yellow")
    begin = said.best[0].start if said.best else 0
    end = begin + len(said.text)
    left, right = max(0, begin - _AROUND), min(len(passage), end + _AROUND)
    around = Text("… " if left else "", style="dim")
    around.append(passage[left:begin])
    around.append(passage[begin:end], style="bold green not dim")
    around.append(passage[end:right])
    around.append(" …" if right < len(passage) else "")
    rivals = Table.grid(padding=(0, 2))
    for one in said.best[:top]:
        rivals.add_row(Text(f"{one.probability:6.1%}"), Text(one.text))
    return Group(first, Text(""), around, Text(""), rivals)


def _read(kind: type[TaskKind], example: Any) -> dict[str, Any]:
    """What the model was given: the example without its label, a text alone by that word."""
    fields = {name: part for name, part in example._asdict().items() if name not in kind.gold}
    if "second" in fields and fields["second"] is None:
        return {"id": fields["id"], "text": fields["first"]}
    return fields


def _named(value: Any) -> Any:
    """A prediction with the names of its fields, as JSON has it."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _named(part) for name, part in value._asdict().items()}
    return [_named(part) for part in value] if isinstance(value, tuple) else value

"""What a fine-tuned model said: tables and answers for people."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from clozelab.finetuning.examples import Span
from clozelab.finetuning.kinds import TaskKind

_NUMBER = re.compile(r"-?\d+\.\d+")
_AROUND = 300  # characters of a passage on either side of its answer


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

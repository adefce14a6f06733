"""What commands print: a view yields what is printed of a function's result and its options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

Values = Mapping[str, Any]


def table(
    *names: str, right: Iterable[str] = (), rows: Iterable[Iterable[str | Text]] = ()
) -> Table:
    """A plain table: columns of words, then columns of numbers, which stand to the right."""
    lines = Table(box=None, pad_edge=False)
    for name in names:
        lines.add_column(name, overflow="fold")
    for name in right:
        lines.add_column(name, justify="right")
    for row in rows:
        lines.add_row(*row)
    return lines


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Facts, a row each, their names in bold."""
    lines = Table(box=None, pad_edge=False, show_header=False)
    lines.add_column(style="bold", overflow="fold")
    lines.add_column(overflow="fold")
    for name, value in rows:
        lines.add_row(name, value)
    return lines


def or_dash(value: float | None, form: str) -> str:
    """A number in a form as of `str.format`; a dash where there is none."""
    return "–" if value is None else form.format(value)

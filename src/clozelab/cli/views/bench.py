"""What was measured as a table: a line for each contender, and how far ours is ahead of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

# Names and widths: 79 columns in all, the gaps included.
_COLUMNS = {
    "": 21,
    "tokens/s": 9,
    "of peak": 7,
    "GiB": 5,
    "first step": 10,
    "feed": 5,
    "faster": 7,
    "memory": 7,
}


def table(record: Mapping[str, Any]) -> RenderableType:
    """Every row of a record, and where it was measured."""
    parts: list[RenderableType] = []
    for number, row in enumerate(record["rows"]):
        parts += [Text(), *_lines(row, first=not number)]
    return Group(*parts[1:], Text(), Text(_where(record["machine"]), style="dim"))


def _lines(row: Mapping[str, Any], *, first: bool) -> Iterator[RenderableType]:
    what = row["what"]
    yield Text(
        f"{what['recipe']} {what['size']}, {what['sequences']:,} × {what['length']} tokens,"
        f" dropout {what['dropout']:g}, {what['precision']}, {what['parameters'] / 1e6:.1f} M"
        " parameters",
        style="bold",
    )
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for name, width in _COLUMNS.items():
        made.add_column(name, justify="right" if name else "left", min_width=width, no_wrap=True)
    for name, one in {"clozelab": row["clozelab"], **row["peers"]}.items():
        ratio = one.get("ratio", {})
        made.add_row(
            name,
            f"{one['tokens_a_second']:,.0f}",
            f"{one['useful_share']:.0%}",
            _told(one["peak_memory_gib"], "{:.1f}"),
            f"{one['first_step_seconds']:.1f} s",
            _told(one.get("feed_share"), "{:.0%}"),
            _told(ratio.get("speed"), "{:.2f} ×"),
            _told(ratio.get("memory"), "{:.2f} ×"),
        )
    made.show_header = first
    yield made
    for note in row["notes"]:
        yield Text(note, style="yellow")


def _told(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def _where(machine: Mapping[str, Any]) -> str:
    """The machine, what it ran, and which state of the code."""
    device = machine.get("gpu") or f"CPU, {machine.get('threads')} threads"
    told = [str(device), f"torch {machine['torch']}"]
    if "transformers" in machine:
        told.append(f"transformers {machine['transformers']}")
    whole = str(machine.get("commit", ""))
    if whole:
        told.append(f"commit {whole[:7]}" + (", changed since" if "dirty" in whole else ""))
    return " · ".join([*told, f"clozelab {machine['clozelab']}"])

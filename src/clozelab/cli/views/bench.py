"""What was measured as a table: a line for each contender, and how far ours is ahead of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from clozelab.cli.views import Values, or_dash

# Names and widths: 79 columns in all, the gaps included.
_COLUMNS = {
    **{"": 21, "tokens/s": 9, "of peak": 7, "GiB": 5},
    **{"first step": 10, "feed": 5, "faster": 7, "memory": 7},
}


def measured(record: Values, values: Values) -> Iterator[RenderableType]:
    """Every row of a record, and where it was measured."""
    for number, row in enumerate(record["rows"]):
        if number:
            yield Text()
        what = row["what"]
        yield Text(
            f"{what['recipe']} {what['size']}, {what['sequences']:,} × {what['length']} tokens,"
            f" dropout {what['dropout']:g}, {what['precision']}, {what['parameters'] / 1e6:.1f} M"
            " parameters",
            style="bold",
        )
        yield _contenders(row, header=not number)
        yield from (Text(note, style="yellow") for note in row["notes"])
    yield Text()
    yield Text(_machine(record["machine"]), style="dim")


def _contenders(row: Values, *, header: bool) -> Table:
    lines = Table(
        box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim", show_header=header
    )
    for name, width in _COLUMNS.items():
        lines.add_column(name, justify="right" if name else "left", min_width=width, no_wrap=True)
    for name, result in {"clozelab": row["clozelab"], **row["peers"]}.items():
        ratio = result.get("ratio", {})
        lines.add_row(
            name,
            f"{result['tokens_a_second']:,.0f}",
            f"{result['useful_share']:.0%}",
            or_dash(result["peak_memory_gib"], "{:.1f}"),
            f"{result['first_step_seconds']:.1f} s",
            or_dash(result.get("feed_share"), "{:.0%}"),
            or_dash(ratio.get("speed"), "{:.2f} ×"),
            or_dash(ratio.get("memory"), "{:.2f} ×"),
        )
    return lines


def _machine(machine: Values) -> str:
    """The machine, what it ran, and which state of the code."""
    words: list[Any] = [machine.get("gpu") or f"CPU, {machine.get('threads')} threads"]
    words += [f"{name} {machine[name]}" for name in ("torch", "transformers") if name in machine]
    if commit := str(machine.get("commit", "")):
        words.append(f"commit {commit[:7]}" + (", changed since" if "dirty" in commit else ""))
    return " · ".join([*words, f"clozelab {machine['clozelab']}"])

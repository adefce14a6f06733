"""Losses as a table: what each objective came to, and how often it was right."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from clozelab.pretraining.matrix import MaskMatrix, MatrixCell


def table(losses: Mapping[str, Mapping[str, float]]) -> Table:
    """Loss, perplexity and accuracy of each objective; accuracy also by what the encoder saw."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column("objective")
    for column in ("loss", "perplexity", "accuracy", "at masks", "at random", "at same"):
        made.add_column(column, justify="right")
    for name, one in losses.items():
        shares = [one.get(f"accuracy{what}") for what in ("", "_mask", "_random", "_same")]
        made.add_row(
            name,
            f"{one['loss']:.4f}",
            f"{exp(min(one['loss'], 50)):,.2f}",
            *("–" if share is None else f"{share:.1%}" for share in shares),
        )
    return made


def matrix(found: MaskMatrix) -> Table:
    """Models down, strategies across: losses, the least of each column in bold; of pairs shares."""
    lines = Table(box=None, pad_edge=False, header_style="bold")
    lines.add_column("loss under masks of")
    for name in (*found.masks, *(f"{name} pairs" for name in found.pairs)):
        lines.add_column(Text(name), justify="right")
    least = [
        min((cell.loss for cell in column if cell), default=0.0)
        for column in zip(*found.cells, strict=True)
    ]
    for number, model in enumerate(found.models):
        row = [Text(model)]
        for cell, best in zip(found.cells[number], least, strict=True):
            row.append(_cell(cell, best=best))
        for cells in found.pairs.values():
            row.append(_share(cells[number]))
        lines.add_row(*row)
    return lines


def _cell(cell: MatrixCell | None, *, best: float) -> Text:
    if cell is None:
        return Text("–")
    return Text(f"{cell.loss:.3f} ± {cell.error:.3f}", style="bold" if cell.loss == best else "")


def _share(cell: MatrixCell | None) -> Text:
    return Text("–" if cell is None else f"{cell.accuracy:.1%} ± {cell.accuracy_error:.1%}")

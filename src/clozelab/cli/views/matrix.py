"""Held-out losses of models under the masks of all, as a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from clozelab.cli.views import Values, table

if TYPE_CHECKING:
    from clozelab.pretraining.matrix import MaskMatrix, MatrixCell


def matrix(result: MaskMatrix, values: Values) -> Iterator[Table]:
    """Models down, strategies across: losses, the least of each column in bold; of pairs shares."""
    names = [*result.masks, *(f"{name} pairs" for name in result.pairs)]
    lines = table("loss under masks of", right=names)
    least = [
        min((cell.loss for cell in column if cell), default=0.0)
        for column in zip(*result.cells, strict=True)
    ]
    for number, model in enumerate(result.models):
        cells = zip(result.cells[number], least, strict=True)
        losses = [_loss(cell, best=best) for cell, best in cells]
        shares = [_share(cells[number]) for cells in result.pairs.values()]
        lines.add_row(Text(model), *losses, *shares)
    yield lines


def _loss(cell: MatrixCell | None, *, best: float) -> Text:
    if cell is None:
        return Text("–")
    return Text(f"{cell.loss:.3f} ± {cell.error:.3f}", style="bold" if cell.loss == best else "")


def _share(cell: MatrixCell | None) -> Text:
    return Text("–" if cell is None else f"{cell.accuracy:.1%} ± {cell.accuracy_error:.1%}")

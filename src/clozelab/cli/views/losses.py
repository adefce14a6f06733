"""Losses as a table: what each objective came to, and how often it was right."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp

from rich.table import Table


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

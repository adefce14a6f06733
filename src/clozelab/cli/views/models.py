"""What a trained model says, as something to look at: guesses for blanks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


class Guess(Protocol):
    """A token and its chance."""

    @property
    def token(self) -> str:
        """As a reader would write it."""
        ...

    @property
    def probability(self) -> float:
        """From 0 to 1."""
        ...


def filled(blanks: Sequence[Sequence[Guess]], parts: Sequence[str]) -> RenderableType:
    """The guesses for every blank, and the text with the best put in: every second part."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("blank", justify="right")
    table.add_column("token")
    table.add_column("probability", justify="right")
    for number, guesses in enumerate(blanks, start=1):
        for rank, guess in enumerate(guesses):
            name = "" if rank else str(number)
            table.add_row(name, Text(guess.token), f"{guess.probability:.2%}")
        table.add_section()
    line = Text()
    for number, part in enumerate(parts):
        line.append(part, style="bold green" if number % 2 else "")
    return Group(table, Text(), line)

"""A table of text whose cells are separated by another sign than its suffix says."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clozelab.errors import UserError

_LONGEST = 40  # characters of a column's name in an error


def check_separators(place: str, columns: Sequence[str], *, field: str | None = None) -> None:
    """Refuse a single column that seems to hold several.

    If the name of a `field` is known, that name is among its words; otherwise it has a sign that
    often separates cells, and no space after the sign, as prose has.
    """
    if len(columns) != 1:
        return
    (name,) = columns
    several = re.search("[;|\t,](?! )", name) if field is None else field in re.split(r"\W", name)
    if several and name != field:
        raise UserError(
            f"{place} has one column, {short(name)}: separate the cells of a .csv by commas,"
            " those of a .tsv by tabs"
        )


def short(name: str) -> str:
    """A column's name for an error, shortened: without a header line, it may be long text."""
    line = " ".join(name.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"

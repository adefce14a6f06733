"""Which column of a table is what: as the user says, or by the names such columns usually have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.finetuning.files.lines import located
from clozelab.finetuning.files.tables import Row, Table, table
from clozelab.nearest import nearest

ID = ("id", "idx", "index", "guid", "uid", "ind", "qid", "pairID", "doc_key", "ID")
LABEL = (
    *("label", "gold_label", "labels", "class", "is_duplicate", "quality", "category"),
    *("sentiment", "target", "score", "similarity", "stars"),
)
NUMBER = ("score", "label", "similarity", "relatedness_score", "rating", "value", "labels")

Source = Path | Table  # where examples are read from


@dataclass(frozen=True)
class Asked:
    """How a file is to be read."""

    columns: Mapping[str, str] = field(default_factory=dict)  # what → its name, or its number
    labels: tuple[str, ...] = ()  # those there are; empty: any
    labelled: bool = True  # whether labels must be there
    undecided: tuple[str, ...] = ()  # labels that mean the annotators did not agree: skipped
    skips: bool = False  # whether rows cut short are skipped, as GLUE's own reader does
    training: bool = False  # whether examples that cannot be learned from are skipped
    level: str = ""  # of RACE: "middle" or "high"; empty: both


def opened(source: Path | Table, asked: Asked, counts: Counts, *, roles: Sequence[str]) -> Table:
    """The table of a file; columns given by number mean that it has no header line."""
    for role in asked.columns:
        if role not in roles:
            raise UserError(f"--columns knows no {role!r}: say {', '.join(roles)}")
    if isinstance(source, Table):
        return source
    numbered = any(name.isdecimal() for name in asked.columns.values())
    skips = counts if asked.skips else None
    return table(located(source), header=not numbered, skips=skips)


def sought(among: Table, role: str, usual: Sequence[str], *, asked: Asked) -> str | None:
    """The column that plays a role, where there is one; one that the user named must be there."""
    given = asked.columns.get(role)
    small = {name.lower(): name for name in reversed(among.columns)}
    for name in usual if given is None else (given,):
        if name in among.columns:
            return name
        if name.lower() in small:
            return small[name.lower()]
    if given is not None and (asked.labelled or role != "label"):
        raise missing(among, role, (given,))
    return None


def find(among: Table, role: str, usual: Sequence[str], *, asked: Asked) -> str:
    """The column that plays a role; refused where there is none."""
    column = sought(among, role, usual, asked=asked)
    if column is None:
        raise missing(among, role, usual)
    return column


def missing(among: Table, role: str, sought: Sequence[str]) -> UserError:
    """What is said where no column plays a role."""
    meant = nearest(sought[0], among.columns) or "NAME"
    numbered = "" if among.columns[:1] == ("0",) else " (by number where there is no header line)"
    return UserError(
        f"{among.name} has no column for the {role}: looked for {', '.join(sought)}, found"
        f" {', '.join(among.columns)}; say --columns {role}={meant}{numbered}"
    )


def words(row: Row, column: str) -> str:
    """The text of a cell, without the spaces around it."""
    value = row.values.get(column)
    if isinstance(value, str):
        return value.strip()
    if value is None or isinstance(value, (list, dict)):
        raise UserError(f"{row.place} has no text in the column {column!r}: write one there")
    return _plain(value)


def name(row: Row, column: str | None, *, number: int) -> str:
    """What the row calls itself, or its number, counted from 0."""
    value = None if column is None else row.values.get(column)
    return str(number) if value is None or value == "" else _plain(value)


def label(row: Row, column: str | None, *, asked: Asked) -> str | None:
    """The class of a row, one of those there are; None where it is not known."""
    value = None if column is None else row.values.get(column)
    spelled = "" if value is None else _plain(value)
    if not spelled:
        if asked.labelled:
            raise UserError(f"{row.place} has no label: write one, or leave the row out")
        return None
    return spelled if spelled in asked.undecided else known(spelled, row.place, asked.labels)


def known(spelled: str, place: str, labels: Sequence[str], *, what: str = "label") -> str:
    """The label itself; refused where it is none of `labels`."""
    if labels and spelled not in labels:
        shown = ", ".join(labels[:20]) + (", …" if len(labels) > 20 else "")
        raise UserError(
            f"{place} has the {what} {spelled!r}, which is none of {shown}: fix it, or train on"
            " examples that have it"
        )
    return spelled


def number(row: Row, column: str | None, *, asked: Asked) -> float | None:
    """The number of a row; None where it is not known."""
    value = None if column is None else row.values.get(column)
    if value is None or value == "":
        if asked.labelled:
            raise UserError(f"{row.place} has no number to predict: write one, or leave it out")
        return None
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise UserError(f"{row.place} has {value!r} where a number should stand: fix it")
    return found


def _plain(value: Any) -> str:
    """A cell as it would be written: true, 3 (also for 3.0), or the text itself."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()

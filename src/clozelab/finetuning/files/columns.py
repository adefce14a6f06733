"""The roles of a table's columns: given by the user, or by their usual names."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.finetuning.examples import Id
from clozelab.finetuning.files.tables import Record, Table, located, table
from clozelab.nearest import nearest, remedy

_ID = ("id", "idx", "index", "guid", "uid", "ind", "qid", "pairID", "doc_key", "ID")

_ROLE_NAMES = {  # in messages
    **{"first": "first text", "second": "second text"},
    **{"good": "good sentence", "bad": "bad sentence"},
}

Source = Path | Table  # where examples are read from


@dataclass(frozen=True)
class ReadOptions:
    """How a file is to be read."""

    columns: Mapping[str, str] = field(default_factory=dict)  # role → name or number
    labels: tuple[str, ...] = ()  # the allowed labels; empty: any
    labelled: bool = True  # whether labels must be there
    undecided: tuple[str, ...] = ()  # labels that mean the annotators did not agree: skipped
    skips: bool = False  # whether rows cut short are skipped, as GLUE's own reader does
    training: bool = False  # whether examples that cannot be learned from are skipped
    level: str = ""  # of RACE: "middle" or "high"; empty: both


DEFAULTS = ReadOptions()


class Columns:
    """The columns of a table by the roles they play."""

    def __init__(
        self, source: Source, options: ReadOptions, counts: Counts, *, roles: Sequence[str]
    ) -> None:
        """Open a file; columns given by number mean that it has no header line."""
        check_roles(options, roles)
        if isinstance(source, Path):
            numbered = any(name.isdecimal() for name in options.columns.values())
            skips = counts if options.skips else None
            source = table(located(source), header=not numbered, skips=skips)
        self.options, self.table = options, source
        self.names, self.rows = source.columns, source.rows
        self._id = self.sought("id", _ID)

    def sought(self, role: str, usual: Sequence[str]) -> str | None:
        """The column of a role, or None; one that the user named must exist."""
        named = self.options.columns.get(role)
        lower = {name.lower(): name for name in reversed(self.names)}
        for name in usual if named is None else (named,):
            column = name if name in self.names else lower.get(name.lower())
            if column is None:
                continue
            if self.names.count(column) > 1:
                raise UserError(
                    f"{self.table.name} has two columns {column!r}; give each a name of its own"
                )
            return column
        if named is not None and (self.options.labelled or role != "label"):
            raise self.missing(role, (named,))
        return None

    def find(self, role: str, usual: Sequence[str]) -> str:
        """The column of a role; refused if there is none."""
        column = self.sought(role, usual)
        if column is None:
            raise self.missing(role, usual)
        return column

    def labels(self, role: str, usual: Sequence[str]) -> str | None:
        """The column of the labels, which must exist if labels are required."""
        return self.find(role, usual) if self.options.labelled else self.sought(role, usual)

    def missing(self, role: str, sought: Sequence[str]) -> UserError:
        """The error that no column has a role."""
        meant = nearest(sought[0], self.names) or "NAME"
        numbered = "" if self.names[:1] == ("0",) else " (by number where there is no header line)"
        return UserError(
            f"{self.table.name} has no column for the {_ROLE_NAMES.get(role, role)}: looked for"
            f" {', '.join(sought)}, found {', '.join(self.names)}; give"
            f" --columns {role}={meant}{numbered}"
        )

    def id(self, row: Record, number: int) -> str:
        """The id of a row, or its number from 0."""
        value = None if self._id is None else row.values.get(self._id)
        return Id(str(number) if value is None or value == "" else cell_text(value), row.place)

    def label(self, row: Record, column: str | None) -> str | None:
        """The class of a row, checked; None if it is not known."""
        value = None if column is None else row.values.get(column)
        if isinstance(value, list | dict):
            raise UserError(
                f"{row.place} has {json.dumps(value, default=str):.60} as its label; write one"
                " class as a text or a number"
            )
        label = "" if value is None else cell_text(value)
        if label:
            known = label in self.options.undecided
            return label if known else checked_label(label, row.place, self.options.labels)
        if self.options.labelled:
            blank = sum(each.values.get(str(column)) in (None, "") for each in self.rows)
            raise UserError(
                f"{row.place} has no label, as {blank:,} of {len(self.rows):,} rows; add the"
                " labels, or remove these rows"
            )
        return None

    def number(self, row: Record, column: str | None) -> float | None:
        """The number of a row; None if it is not known."""
        value = None if column is None else row.values.get(column)
        if value is None or value == "":
            if self.options.labelled:
                raise UserError(
                    f"{row.place} has no number to predict; write one, or remove the row"
                )
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise UserError(f"{row.place} has {value!r} instead of a number; fix it")
        return number


def check_roles(options: ReadOptions, roles: Sequence[str]) -> None:
    """Refuse columns for roles that a kind of task does not have."""
    for role in options.columns:
        if role not in roles:
            raise UserError(f"--columns has no role {role!r}; {remedy(role, roles)}")


def text_of(row: Record, column: str) -> str:
    """The text of a cell, without the spaces around it."""
    value = row.values.get(column)
    if value is None or isinstance(value, (list, dict)):
        raise UserError(f"{row.place} has no text in the column {column!r}; write one there")
    return cell_text(value)


def checked_label(label: str, place: str, labels: Sequence[str], *, what: str = "label") -> str:
    """The label itself; refused if it is not one of `labels`."""
    if labels and label not in labels:
        shown = ", ".join(labels[:20]) + (", …" if len(labels) > 20 else "")
        raise UserError(
            f"{place} has the {what} {label!r}, which is none of {shown}; fix it, or train"
            " on examples that have it"
        )
    return label


def cell_text(value: Any) -> str:
    """A cell as text: true, 3 (also for 3.0), or the text itself."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()

"""The settings of a kind of task that are the user's to choose, such as `stride` and `scheme`.

A protocol has them in tables called task; `Tuning.task` keeps them as lines of TOML, which have an
order, can be compared and hashed, and are checked against the fields of the kind.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from clozelab.config.tables import build, plain
from clozelab.config.toml import Table, written
from clozelab.errors import UserError
from clozelab.finetuning.kinds import KINDS, Kind

_ELSEWHERE = {"dropout": "head_dropout", "head": "head", "segment": "length"}
_FOUND = ("labels", "tags", "choices", "pair", "threshold")  # by the examples
_EXAMPLE = "[kinds.answer.task] and [grids.answer.task]"


def lines(table: Table, kind: str | None, *, place: str, key: str) -> tuple[str, ...]:
    """A table's settings as lines of TOML, each tried upon the kind that it is for."""
    if not table:
        return ()
    if kind is None:
        raise UserError(f"{place}: {key} is for no kind of task; name one, as in {_EXAMPLE}")
    names = [field.name for field in fields(KINDS[kind])]
    for name in (name for name in table if name in names):
        if name in _ELSEWHERE:
            raise UserError(f"{place}: {key}.{name} is not set here; set {_ELSEWHERE[name]}")
        if name in _FOUND:
            raise UserError(f"{place}: {key}.{name} is what the examples say; leave it out")
    made = build(KINDS[kind], _least(kind, table) | table, place=place, key=key)
    kept = {name: value for name, value in plain(made).items() if name in table}
    return tuple(f"{name} = {written(kept[name])}" for name in sorted(kept))


def over(settings: Mapping[str, Any], task: tuple[str, ...], kind: str, *, place: str) -> Kind:
    """The kind with what is known of its examples, and the lines of a `Tuning.task` over that."""
    table = {**settings, **tomllib.loads("\n".join(task))}
    made: Kind = build(KINDS[kind], table, place=place, key="task")
    return made


def _least(kind: str, table: Table) -> Table:
    """What a kind cannot be without, to try a setting upon."""
    positive = str(table.get("positive", "1"))
    least: dict[str, Table] = {
        "classify": {"labels": [positive, f"not {positive}"], "positive": positive},
        "tag": {"tags": ["O", "B-LOC"]},
        "choose": {"choices": 2},
    }
    return least.get(kind, {})

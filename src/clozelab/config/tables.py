"""TOML tables ↔ frozen dataclasses: every key checked against the fields' types when read.

A part is described once, by its fields; nothing here knows any part by name. Errors are one
sentence: the place as a dotted key, what is wrong, and the nearest right word.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from clozelab.config.renamed import renamed
from clozelab.config.toml import Table, written
from clozelab.errors import UserError
from clozelab.nearest import listed, remedy
from clozelab.ranges import without_none

_hints = cache(get_type_hints)
_TYPES: dict[Any, str] = {
    **{int: "a whole number", float: "a number", bool: "true or false", str: "a word in quotes"},
    **{tuple: "a list", dict: "a table of numbers"},
}


def build(part: type, table: Mapping[str, Any], *, place: str, key: str) -> Any:
    """The part that `table` describes; `key` is the table's dotted name."""
    known = {field.name: field for field in fields(part)}
    table = renamed(dict(table), known, place=place, key=key)
    for name in table:
        if name not in known:
            raise UserError(f"{place}: {key}.{name} is not a key of {key}; {remedy(name, known)}")
    values: Table = {}
    for name, field in known.items():
        hint = _hints(part)[name]
        if name in table:
            values[name] = _convert(table[name], hint, place=place, key=f"{key}.{name}")
        elif field.default is field.default_factory is MISSING and NoneType not in get_args(hint):
            raise UserError(f"{place}: {key}.{name} is missing; give it {_described(hint)}")
    try:
        return part(**values)
    except UserError as error:
        joint = "." if str(error).split()[0].rstrip(":,").split(".")[0] in known else ": "
        raise UserError(f"{place}: {key}{joint}{error}") from None


def plain(part: Any) -> Table:
    """A part's fields as TOML values, without None and without defaults of `later` fields."""
    values = {
        field.name: getattr(part, field.name)
        for field in fields(part)
        if not ("later" in field.metadata and getattr(part, field.name) == field.default)
    }
    return {name: _toml_value(value) for name, value in values.items() if value is not None}


def flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Values by dotted key; tables in a list are numbered, any other list is a value."""
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        items = [(str(number), table) for number, table in enumerate(value)]
    else:
        yield key, value
        return
    for name, item in items:
        yield from flat(item, f"{key}.{name}" if key else name)


def _toml_value(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_toml_value(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _convert(value: Any, hint: Any, *, place: str, key: str) -> Any:
    """`value` converted to the type `hint`, or an error."""
    if NoneType in get_args(hint):
        # TOML has no null: on the command line, none leaves the key out.
        inner = without_none(hint)
        return None if value == "none" else _convert(value, inner, place=place, key=key)
    origin, choices = get_origin(hint), get_args(hint)
    if origin is Literal and isinstance(value, str):
        if value not in choices:
            raise UserError(f'{place}: {key} = "{value}" is unknown; {remedy(value, choices)}')
        return value
    if origin is tuple and isinstance(value, list | tuple):
        endless = len(choices) == 2 and choices[1] is Ellipsis
        types = choices[:1] * len(value) if endless else choices
        if len(types) != len(value):
            raise UserError(f"{place}: {key} = {written(value)} must have {len(types)} items")
        items = enumerate(zip(value, types, strict=True))
        return tuple(_convert(v, kind, place=place, key=f"{key}.{n}") for n, (v, kind) in items)
    if origin is dict and isinstance(value, Mapping):
        return {
            name: _convert(item, choices[1], place=place, key=f"{key}.{name}")
            for name, item in value.items()
        }
    if hint is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if origin is None and type(value) is hint and hint is not float:
        return value
    raise UserError(f"{place}: {key} = {written(value)} must be {_described(hint)}")


def _described(hint: Any) -> str:
    """A type as errors call it, such as "a whole number"."""
    hint = without_none(hint)
    if get_origin(hint) is Literal:
        return listed(f'"{choice}"' for choice in get_args(hint))
    return _TYPES[get_origin(hint) or hint]

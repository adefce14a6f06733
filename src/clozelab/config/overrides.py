"""One change from the command line: a dotted key of a recipe, and its value."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from typing import Any

from clozelab.config.slots import SLOTS, TABLES
from clozelab.config.tables import Table
from clozelab.errors import UserError
from clozelab.nearest import remedy

_WORDS = ("name", "title")


def override(tables: Table, change: str, *, place: str) -> None:
    """Set one dotted key of `tables` to a TOML value; a word need not be quoted."""
    key, sign, text = change.partition("=")
    if not sign or not key.strip():
        raise UserError(
            f"{place}: {change!r} sets nothing; write key=value, as in masking.rate=0.3"
        )
    first = key.strip().split(".")[0]
    if first not in (*TABLES, *_WORDS):
        raise UserError(f"{place}: {key} is no key of a recipe; {remedy(first, TABLES)}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    *path, last = key.strip().split(".")
    at: Any = tables
    for word in path:
        at = _step(at, word, place=place, key=key)
    if not isinstance(at, dict):
        raise UserError(f"{place}: {key} cannot be set; name a key of a table, as in masking.rate")
    at[last] = value
    if last == "use" and path and isinstance(value, str) and value in SLOTS.get(path[0], {}):
        known = {field.name for field in fields(SLOTS[path[0]][value])} | {"use"}
        for name in [name for name in at if name not in known]:
            del at[name]


def _step(at: Any, word: str, *, place: str, key: str) -> Any:
    if isinstance(at, list):
        if not word.isdigit() or int(word) >= len(at):
            last = len(at) - 1
            raise UserError(f"{place}: {key} names no objective; count from 0 to {last}")
        return at[int(word)]
    return at.setdefault(word, {}) if isinstance(at, dict) else at

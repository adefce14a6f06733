"""Changes from the command line: key=value, the value as in TOML; a word need not be quoted."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from clozelab import registry
from clozelab.config.renamed import current, recorded
from clozelab.config.slots import TABLES
from clozelab.config.toml import Table
from clozelab.errors import UserError
from clozelab.nearest import remedy

_WORDS = ("name", "title")


def split(change: str, *, example: str, place: str) -> tuple[str, str]:
    """Split key=value into both texts; an error names `place` and shows the example."""
    key, sign, text = (part.strip() for part in change.partition("="))
    if not sign or not key or not text:
        raise UserError(f"{place}: {change!r} sets nothing; write key=value, as in {example}")
    return key, text


def value(text: str) -> Any:
    """The TOML value that a text writes; a text that is not TOML is itself the value."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def values(text: str) -> list[Any]:
    """The comma-separated values of a text; a value that is itself a list is in brackets."""
    try:
        return list(tomllib.loads(f"values = [{text}]")["values"])
    except tomllib.TOMLDecodeError:
        return [value(item) for item in text.split(",")]


def override(tables: Table, change: str, *, place: str) -> None:
    """Set one dotted key of a recipe's `tables` in place; another part drops the old one's keys."""
    key, text = split(change, example="masking.mask_rate=0.3", place=place)
    *path, last = names = key.split(".")
    if names[0] not in (*TABLES, *_WORDS):
        raise UserError(f"{place}: {key} is not a key of a recipe; {remedy(names[0], TABLES)}")
    table: Any = tables
    for word in path:
        table = _enter(table, word, place=place, key=key)
    if not isinstance(table, dict):
        raise UserError(
            f"{place}: {key} cannot be set; name a key of a table, as in masking.mask_rate"
        )
    last = current(key, table).rpartition(".")[2]
    table[last] = use = value(text)
    if last == "use" and path and isinstance(use, str):
        part = registry.find(path[0], use)
        known = set(table) if part is None else {"use", *(field.name for field in fields(part))}
        for name in table.keys() - known:
            del table[name]


def keys_set(changes: Iterable[str], table: str, part: Any) -> list[str]:
    """The keys of a table that `changes` set, by their current names; `part` fills the table."""
    keys = (change.partition("=")[0].strip() for change in changes)
    known = [field.name for field in fields(part)]
    with recorded():  # reading the changes already warns of old names
        renamed_keys = [current(key, known) for key in keys]
    return [key.removeprefix(f"{table}.") for key in renamed_keys if key.startswith(f"{table}.")]


def _enter(table: Any, word: str, *, place: str, key: str) -> Any:
    if isinstance(table, list):
        if not word.isdigit() or int(word) >= len(table):
            last = len(table) - 1
            raise UserError(f"{place}: {key} is not an objective; number them from 0 to {last}")
        return table[int(word)]
    return table.setdefault(word, {}) if isinstance(table, dict) else table

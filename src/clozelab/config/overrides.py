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
    """The key and the text of its value; `place` and an example for where there are none."""
    key, sign, text = (part.strip() for part in change.partition("="))
    if not sign or not key or not text:
        raise UserError(f"{place}: {change!r} sets nothing; write key=value, as in {example}")
    return key, text


def value(text: str) -> Any:
    """The value that a text is."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def values(text: str) -> list[Any]:
    """The values between commas; a pair is in brackets."""
    try:
        return list(tomllib.loads(f"values = [{text}]")["values"])
    except tomllib.TOMLDecodeError:
        return [value(item) for item in text.split(",")]


def override(tables: Table, change: str, *, place: str) -> None:
    """Set one dotted key of a recipe's `tables`."""
    key, text = split(change, example="masking.mask_rate=0.3", place=place)
    *path, last = names = key.split(".")
    if names[0] not in (*TABLES, *_WORDS):
        raise UserError(f"{place}: {key} is no key of a recipe; {remedy(names[0], TABLES)}")
    at: Any = tables
    for word in path:
        at = _step(at, word, place=place, key=key)
    if not isinstance(at, dict):
        raise UserError(
            f"{place}: {key} cannot be set; name a key of a table, as in masking.mask_rate"
        )
    last = current(key, at).rpartition(".")[2]
    at[last] = use = value(text)
    if last == "use" and path and isinstance(use, str):
        part = registry.find(path[0], use)
        known = set(at) if part is None else {"use", *(field.name for field in fields(part))}
        for name in at.keys() - known:
            del at[name]


def keys_set(changes: Iterable[str], table: str, part: Any) -> list[str]:
    """The keys of a table that changes set, by today's names; `part` is what the table holds."""
    keys = (change.partition("=")[0].strip() for change in changes)
    known = [field.name for field in fields(part)]
    with recorded():  # who reads the changes warns
        today = [current(key, known) for key in keys]
    return [key.removeprefix(f"{table}.") for key in today if key.startswith(f"{table}.")]


def _step(at: Any, word: str, *, place: str, key: str) -> Any:
    if isinstance(at, list):
        if not word.isdigit() or int(word) >= len(at):
            last = len(at) - 1
            raise UserError(f"{place}: {key} names no objective; count from 0 to {last}")
        return at[int(word)]
    return at.setdefault(word, {}) if isinstance(at, dict) else at

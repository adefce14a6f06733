"""A config of another library, read by types: a value of the wrong kind is refused by its key."""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as short
from typing import Any

from clozelab.errors import UserError

Table = Mapping[str, Any]

LARGEST = 1 << 24  # of a size: no product of three overflows, and no model comes near it


def whole(config: Table, key: str, default: int | None = None, *, least: int = 1) -> int | None:
    """A whole number; the default where the config leaves it out or says null."""
    must = f"be a whole number from {least} to {LARGEST:,}"
    value: int | None = _of(int, config, key, must=must)
    if value is not None and (isinstance(value, bool) or not least <= value <= LARGEST):
        raise wrong(key, value, f"must {must}")
    return default if value is None else value


def number(config: Table, key: str, default: float | None = None) -> float | None:
    """A finite number."""
    value: float | None = _of(int | float, config, key, must="be a number")
    if value is not None and (isinstance(value, bool) or not abs(value) <= LARGEST):
        raise wrong(key, value, "must be a number")
    return default if value is None else float(value)


def _of(kind: Any, config: Table, key: str, *, must: str) -> Any:
    """A value of one kind; None where the config leaves it out or says null."""
    value = config.get(key)
    if value is not None and not isinstance(value, kind):
        raise wrong(key, value, f"must {must}")
    return value


def flag(config: Table, key: str, default: bool = False) -> bool:
    """True or false."""
    value: bool | None = _of(bool, config, key, must="be true or false")
    return default if value is None else value


def word(config: Table, key: str, default: str | None = None) -> str | None:
    """A text."""
    value: str | None = _of(str, config, key, must="be a word in quotes")
    return default if value is None else value


def table(config: Table, key: str) -> Table:
    """An object of JSON; empty where there is none."""
    value: Table | None = _of(dict, config, key, must="be a table of names and values")
    return {} if value is None else value


def words(config: Table, key: str) -> tuple[str, ...]:
    """A list of texts; empty where there is none."""
    value = config.get(key)
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise wrong(key, value, "must be a list of words")
    return tuple(value)


def wrong(key: str, value: object, problem: str) -> UserError:
    """The refusal of a value."""
    return UserError(f"config.json: {key} = {short(value)} {problem}; fix it there")

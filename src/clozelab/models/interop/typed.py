"""Read the values of another library's config by type; a wrong type is refused."""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as short
from typing import Any, TypeVar

from clozelab.errors import UserError

Table = Mapping[str, Any]
T = TypeVar("T")

LARGEST = 1 << 24  # of a size: products of three do not overflow, and no model comes near it


def whole(config: Table, key: str, default: int | None = None, *, least: int = 1) -> int | None:
    """A whole number; the default if the config leaves it out or has null."""
    must = f"be a whole number from {least} to {LARGEST:,}"
    value: int | None = _value_of_type(int, config, key, None, must=must)
    if value is not None and (isinstance(value, bool) or not least <= value <= LARGEST):
        raise wrong(key, value, f"must {must}")
    return default if value is None else value


def number(config: Table, key: str, default: float | None = None) -> float | None:
    """A finite number."""
    value: float | None = _value_of_type(int | float, config, key, None, must="be a number")
    if value is not None and (isinstance(value, bool) or not abs(value) <= LARGEST):
        raise wrong(key, value, "must be a number")
    return default if value is None else float(value)


def flag(config: Table, key: str, default: bool = False) -> bool:
    """True or false."""
    return _value_of_type(bool, config, key, default, must="be true or false")


def word(config: Table, key: str, default: str | None = None) -> str | None:
    """A text."""
    return _value_of_type(str, config, key, default, must="be a word in quotes")


def choice(config: Table, key: str, meanings: Mapping[str, T], *, default: str) -> T:
    """What one of a few words means."""
    chosen = str(word(config, key, default))
    if chosen not in meanings:
        raise wrong(key, chosen, f"must be one of {', '.join(meanings)}")
    return meanings[chosen]


def table(config: Table, key: str) -> Table:
    """An object of JSON; empty where there is none."""
    return _value_of_type(dict, config, key, {}, must="be a table of names and values")


def words(config: Table, key: str) -> tuple[str, ...]:
    """A list of texts; empty where there is none."""
    must = "be a list of words"
    value: tuple[str, ...] = _value_of_type(list | tuple, config, key, (), must=must)
    if not all(isinstance(item, str) for item in value):
        raise wrong(key, value, f"must {must}")
    return tuple(value)


def _value_of_type(kind: Any, config: Table, key: str, default: T, *, must: str) -> T:
    """A value of one type; the default if the config leaves it out or has null."""
    value = config.get(key)
    if value is not None and not isinstance(value, kind):
        raise wrong(key, value, f"must {must}")
    result: T = default if value is None else value
    return result


def wrong(key: str, value: object, problem: str) -> UserError:
    """The refusal of a value."""
    return UserError(f"config.json: {key} = {short(value)} {problem}; fix it there")

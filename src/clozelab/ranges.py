"""The ranges of fields: stated in a field's type, checked when a part is made.

    rate: Share = 0.15
    length: Annotated[int, at_least(3, "a block holds at least 3 tokens")] = 128

A `Checked` part refuses values that are out of range or not among a Literal's choices, whether it
is made from a recipe or in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from clozelab.errors import UserError


@dataclass(frozen=True)
class Range:
    """A test of a field's value, and the message for values that fail it."""

    holds: Callable[[Any], bool]
    says: str


def at_least(least: float, says: str | None = None) -> Range:
    """The range from `least` up."""
    return Range(lambda value: value >= least, says or f"must be at least {least}")


def above(bound: float, says: str | None = None) -> Range:
    """The range above `bound`."""
    return Range(lambda value: value > bound, says or f"must be above {bound}")


def between(least: float, most: float, says: str | None = None) -> Range:
    """The closed range from `least` to `most`."""
    words = says or f"must be between {least} and {most}"
    return Range(lambda value: least <= value <= most, words)


def inside(low: float, high: float, says: str | None = None) -> Range:
    """The open range from `low` to `high`."""
    words = says or f"must be above {low} and below {high}"
    return Range(lambda value: low < value < high, words)


PositiveInt = Annotated[int, at_least(1)]
NonNegativeInt = Annotated[int, at_least(0)]
PositiveFloat = Annotated[float, above(0)]
NonNegativeFloat = Annotated[float, at_least(0)]
Share = Annotated[float, between(0, 1, "must be a share, between 0 and 1")]
# Dropout, momentum and the like.
BelowOne = Annotated[float, Range(lambda value: 0 <= value < 1, "must be at least 0 and below 1")]


class Checked:
    """A dataclass whose fields are checked by the ranges of their types when it is made.

    Checks of several fields belong into `__post_init__`, after `super().__post_init__()`.
    """

    def __post_init__(self) -> None:
        check(self)


class Part(Checked):
    """A checked part of a recipe, with what it provides to other parts and needs from them."""

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()


class CheckedOptions:
    """The same for options of a command: errors name the flag of a field."""

    def __post_init__(self) -> None:
        check(self, flags=True)


def check(part: object, *, flags: bool = False) -> None:
    """Refuse the first field that is out of its range; None is always allowed."""
    kind: type = type(part)
    for name, ranges, of_items in _ranges(kind):
        value = getattr(part, name)
        items = [] if value is None else value if of_items else [value]
        for range_ in ranges:
            if not all(_holds(range_, item) for item in items):
                says = range_.says.replace("must be", "must each be") if of_items else range_.says
                value = list(value) if of_items else value
                place = f"--{name.replace('_', '-')}" if flags else f"{name} ="
                raise UserError(f"{place} {value}: {says}")


def _holds(range_: Range, value: Any) -> bool:
    try:
        return range_.holds(value)
    except TypeError:  # not a number
        return False


@cache
def _ranges(part: type) -> list[tuple[str, list[Range], bool]]:
    """The fields with ranges: name, ranges, and whether these apply to the field's items."""
    ranged = []
    for name, hint in get_type_hints(part, include_extras=True).items():
        hint = without_none(hint)
        of_items = get_origin(hint) is tuple
        hint = get_args(hint)[0] if of_items else hint
        ranges = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Range)]
        if get_origin(hint) is Literal:
            choices = get_args(hint)
            ranges = [Range(choices.__contains__, f"must be one of {', '.join(map(str, choices))}")]
        if ranges:
            ranged.append((name, ranges, of_items))
    return ranged


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor of a number that is at most `most`, or 1: what a message proposes."""
    return max(n for n in range(1, max(most, 1) + 1) if number % n == 0)


def without_none(hint: Any) -> Any:
    """The type without None, if it allows None."""
    others = [choice for choice in get_args(hint) if choice is not NoneType]
    return others[0] if others and NoneType in get_args(hint) else hint

"""Keys that were renamed: recipes, settings and records with the old names can still be read.

Users are warned for two minor versions; after that only records may have the old names.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from clozelab.config.toml import Table
from clozelab.errors import UserError

# Old name → the names that replaced it in one part or another. A part may still have the old one.
RENAMED = {
    "rate": ("learning_rate", "mask_rate"),
    "head_rate": ("head_learning_rate",),
    "matrix_rate": ("matrix_learning_rate",),
    "decay": ("weight_decay",),
    "sequences": ("batch_size",),
    "width": ("hidden_size",),
    "inner": ("intermediate_size", "cell_size"),
    "embedding": ("embedding_size",),
}
_FIRST = {name: old for old, names in RENAMED.items() for name in names}


class OldNameWarning(FutureWarning):
    """A key was renamed, and the old name was given."""


def current(key: str, known: Collection[str]) -> str:
    """A dotted key under its current name; `known` are the names that its part has."""
    path, dot, name = key.rpartition(".")
    new = next((new for new in RENAMED.get(name, ()) if new in known), None)
    if name in known or new is None:
        return key
    today = f"{path}{dot}{new}"
    warnings.warn(f"{key} is now called {today}; use that name", OldNameWarning, stacklevel=2)
    return today


def renamed(table: Table, known: Collection[str], *, place: str, key: str) -> Table:
    """A table with its keys under their current names."""
    today: Table = {}
    for name, value in table.items():
        new = current(f"{key}.{name}", known).removeprefix(f"{key}.")
        if new in today:
            raise UserError(
                f"{place}: {key} has {new} under its old and its new name; keep only {new}"
            )
        today[new] = value
    return today


@contextmanager
def recorded() -> Iterator[None]:
    """Do not warn of old names while a record is read: it keeps those it was written with."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OldNameWarning)
        yield


def first_names(text: str) -> str:
    """The `repr` of tables with keys under their first names, so that its digest never changes."""
    pattern = rf"(\\*')({'|'.join(_FIRST)})\1:"  # in a nested string, quotes are escaped
    return re.sub(pattern, lambda match: f"{match[1]}{_FIRST[match[2]]}{match[1]}:", text)


def first_keys(changes: Iterable[str]) -> tuple[str, ...]:
    """key=value changes with keys under their first names, so that they can be compared."""
    split = (change.partition("=") for change in changes)
    keys = ((*key.strip().rpartition("."), sign + value) for key, sign, value in split)
    return tuple(f"{path}{dot}{_FIRST.get(name, name)}{rest}" for path, dot, name, rest in keys)

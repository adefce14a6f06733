"""Keys that have another name today: recipes, settings and records that have the old one are read.

A user is warned for two minor versions, and then only records are read so.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from clozelab.config.toml import Table
from clozelab.errors import UserError

# By the old name, what a part may call it today. A part that has the old name itself keeps it.
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
    """A key has another name today."""


def current(key: str, known: Collection[str]) -> str:
    """A dotted key by today's name, where `known` are the names that there are."""
    path, dot, name = key.rpartition(".")
    new = next((new for new in RENAMED.get(name, ()) if new in known), None)
    if name in known or new is None:
        return key
    today = f"{path}{dot}{new}"
    warnings.warn(f"{key} is called {today} today; write that", OldNameWarning, stacklevel=2)
    return today


def renamed(table: Table, known: Collection[str], *, place: str, key: str) -> Table:
    """A table with its keys by today's names."""
    today: Table = {}
    for name, value in table.items():
        new = current(f"{key}.{name}", known).removeprefix(f"{key}.")
        if new in today:
            raise UserError(f"{place}: {key} has {new} under two names; keep {new} alone")
        today[new] = value
    return today


@contextmanager
def recorded() -> Iterator[None]:
    """Read a record: it keeps the names it was written with, and nobody is warned."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OldNameWarning)
        yield


def first_names(text: str) -> str:
    """Tables written by `repr`, by their first names, so that a digest stays what it was."""
    pattern = rf"(\\*')({'|'.join(_FIRST)})\1:"  # a text inside a text has its quotes escaped
    return re.sub(pattern, lambda match: f"{match[1]}{_FIRST[match[2]]}{match[1]}:", text)


def first_keys(changes: Iterable[str]) -> tuple[str, ...]:
    """Changes, key=value, by the first names of their keys, to be compared."""
    split = (change.partition("=") for change in changes)
    keys = ((*key.strip().rpartition("."), sign + value) for key, sign, value in split)
    return tuple(f"{path}{dot}{_FIRST.get(name, name)}{rest}" for path, dot, name, rest in keys)

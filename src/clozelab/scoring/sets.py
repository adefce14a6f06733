"""Sets to score models on, by name in the folder of tasks or as a user's own file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from clozelab.contracts import Ints
from clozelab.errors import UserError
from clozelab.finetuning.files.named import Named
from clozelab.finetuning.files.splits import found_in
from clozelab.finetuning.files.tables import located
from clozelab.nearest import remedy
from clozelab.remote.cache import local_file


def find(
    word: str,
    known: Mapping[str, Named],
    *,
    option: str,
    root: str | None,
    columns: Mapping[str, str],
) -> tuple[str, Path, Mapping[str, str]]:
    """The name of a set, its file or folder, and the columns that are named."""
    if word not in known:
        path = local_file(word)
        if not path.exists() and not path.suffix:
            raise UserError(
                f"{option} {word}: is neither a file nor a known set; {remedy(word, known)}"
            )
        return str(path), located(path), columns
    if columns:
        raise UserError(f"--columns is for your own files, but {word} is a known set; leave it out")
    split = found_in(known[word], root).splits["test"]
    assert isinstance(split.source, Path)
    return word, split.source, split.options.columns


def groups(names: Iterable[str]) -> dict[str, Ints]:
    """The numbers of the items of each name, in the order of the names' first items."""
    numbers: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        numbers.setdefault(name, []).append(number)
    return {name: np.array(each) for name, each in numbers.items()}

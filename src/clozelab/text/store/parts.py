"""Grouping any number of rows by key: in parts, of which each fits into memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from clozelab.contracts import Ints, Keys
from clozelab.text.batches import batches

PART = 1 << 22  # rows in memory at a time


def in_parts(tables: Iterable[Keys], *, total: int, folder: Path) -> Iterator[tuple[Ints, Keys]]:
    """Yield parts of the rows of all tables: row numbers, ascending, and rows; equal rows together.

    Rows that are too many for one part are distributed over files in `folder` by their key.
    """
    count = -(-total // PART)
    if count <= 1:
        rows = np.concatenate(list(tables))
        yield np.arange(len(rows)), rows
        return
    shutil.rmtree(folder, ignore_errors=True)  # left by a build that was killed
    folder.mkdir()
    width, first = 0, 0
    # Small tables together, since every file is opened once for each.
    for batch in batches(tables, size=len, least=PART):
        table = np.concatenate(batch)
        numbers = np.arange(first, first + len(table), dtype=np.uint64)
        part_of = table[:, 0] % np.uint64(count)
        rows = np.column_stack([numbers, table])
        for part in range(count):
            with (folder / str(part)).open("ab") as file:
                file.write(rows[part_of == part].tobytes())
        width, first = rows.shape[1], first + len(rows)
    for part in range(count):
        rows = np.fromfile(folder / str(part), dtype=np.uint64).reshape(-1, width)
        yield rows[:, 0].astype(np.int64), rows[:, 1:]
    shutil.rmtree(folder)

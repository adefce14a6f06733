"""The best way to pair rows with columns: the Hungarian method with potentials."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def assign(scores: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and their columns, each at most once and as many as can be, of the highest total."""
    if scores.shape[0] > scores.shape[1]:
        columns, rows = assign(scores.T)
        order = np.argsort(rows)
        return rows[order], columns[order]
    costs = scores.max(initial=0.0) - scores
    height, width = costs.shape
    # A column more than there are: the one that the row now to be placed comes from.
    owner = np.full(width + 1, -1, dtype=np.int64)
    rows_pay, columns_pay = np.zeros(height), np.zeros(width + 1)
    for row in range(height):
        owner[width] = row
        _place(costs, owner, rows_pay=rows_pay, columns_pay=columns_pay)
    taken = np.flatnonzero(owner[:width] >= 0)
    order = np.argsort(owner[taken])
    return owner[taken][order], taken[order]


def _place(
    costs: NDArray[np.float64],
    owner: NDArray[np.int64],
    *,
    rows_pay: NDArray[np.float64],
    columns_pay: NDArray[np.float64],
) -> None:
    """Make room for the row at the last place of `owner`, by the cheapest chain of moves."""
    width = costs.shape[1]
    nearest = np.full(width, np.inf)  # what is missing to reach a column, and from which
    origin = np.zeros(width, dtype=np.int64)
    seen = np.zeros(width + 1, dtype=np.bool_)
    column = width
    while owner[column] >= 0:
        seen[column] = True
        row = owner[column]
        slack = costs[row] - rows_pay[row] - columns_pay[:width]
        closer = ~seen[:width] & (slack < nearest)
        nearest[closer], origin[closer] = slack[closer], column
        following = int(np.where(seen[:width], np.inf, nearest).argmin())
        step = nearest[following]
        rows_pay[owner[seen]] += step
        columns_pay[seen] -= step
        nearest[~seen[:width]] -= step
        column = following
    while column != width:
        owner[column] = owner[origin[column]]
        column = int(origin[column])

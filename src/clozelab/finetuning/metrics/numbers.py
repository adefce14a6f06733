"""Scores of predicted numbers: Pearson's and Spearman's correlation, as STS-B is scored in GLUE.

What tells nothing scores 0: a constant, fewer than two numbers, or any that is not finite.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Numbers = Sequence[float] | NDArray[np.floating]


def pearson(gold: Numbers, predicted: Numbers) -> float:
    """The linear correlation, from -100 to 100."""
    first, second = _floats(gold), _floats(predicted)
    if len(first) != len(second):
        raise ValueError(f"{len(first)} gold numbers and {len(second)} predicted")
    if not (_tells(first) and _tells(second)):
        return 0.0
    cosine = float(_direction(first) @ _direction(second))
    return 100 * min(1.0, max(-1.0, cosine))


def spearman(gold: Numbers, predicted: Numbers) -> float:
    """The correlation of the ranks, from -100 to 100; equals share the mean of their ranks."""
    first, second = _floats(gold), _floats(predicted)
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return 0.0
    return pearson(_ranks(first), _ranks(second))


def _floats(values: Numbers) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)


def _tells(values: NDArray[np.float64]) -> bool:
    # Compared with the first, not by variance: the mean of equal numbers need not equal them.
    return bool(np.isfinite(values).all() and (values != values[:1]).any())


def _direction(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values about their mean, as a vector of length 1."""
    centred = values - values.mean()
    centred = centred / np.abs(centred).max()  # squares of huge or tiny numbers leave the range
    unit: NDArray[np.float64] = centred / np.linalg.norm(centred)
    return unit


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: NDArray[np.float64] = (last - (counts - 1) / 2)[which]
    return ranks

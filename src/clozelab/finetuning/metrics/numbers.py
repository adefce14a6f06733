"""Scores of predicted numbers: Pearson's and Spearman's correlation, as STS-B is scored in GLUE.

A constant, fewer than two numbers, or any that is not finite scores 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Numbers = Sequence[float] | NDArray[np.floating]


def pearson(gold: Numbers, predicted: Numbers) -> float:
    """The linear correlation, from -100 to 100."""
    from scipy.stats import pearsonr

    first, second = _floats(gold), _floats(predicted)
    if len(first) != len(second):
        raise ValueError(f"{len(first)} gold numbers and {len(second)} predicted")
    if not (_varies(first) and _varies(second)):
        return 0.0
    return 100 * float(pearsonr(_scaled(first), _scaled(second)).statistic)


def spearman(gold: Numbers, predicted: Numbers) -> float:
    """The correlation of ranks, from -100 to 100; ties have their mean rank."""
    from scipy.stats import rankdata

    first, second = _floats(gold), _floats(predicted)
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return 0.0
    return pearson(rankdata(first), rankdata(second))


def _floats(values: Numbers) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)


def _varies(values: NDArray[np.float64]) -> bool:
    # Compared with the first number, since rounding may give equal numbers a variance.
    return bool(np.isfinite(values).all() and (values != values[:1]).any())


def _scaled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values centred and scaled to 1, so that their squares do not over- or underflow."""
    centred = values - values.mean()
    scaled: NDArray[np.float64] = centred / np.abs(centred).max()
    return scaled

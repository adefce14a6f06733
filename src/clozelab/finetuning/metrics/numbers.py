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
    from scipy.stats import pearsonr

    first, second = _floats(gold), _floats(predicted)
    if len(first) != len(second):
        raise ValueError(f"{len(first)} gold numbers and {len(second)} predicted")
    if not (_tells(first) and _tells(second)):
        return 0.0
    return 100 * float(pearsonr(_scaled(first), _scaled(second)).statistic)


def spearman(gold: Numbers, predicted: Numbers) -> float:
    """The correlation of the ranks, from -100 to 100; equals share the mean of their ranks."""
    from scipy.stats import rankdata

    first, second = _floats(gold), _floats(predicted)
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return 0.0
    return pearson(rankdata(first), rankdata(second))


def _floats(values: Numbers) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)


def _tells(values: NDArray[np.float64]) -> bool:
    # Compared with the first, not by variance: the mean of equal numbers need not equal them.
    return bool(np.isfinite(values).all() and (values != values[:1]).any())


def _scaled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """About their mean and of size 1: squares of huge or tiny numbers leave the range."""
    centred = values - values.mean()
    scaled: NDArray[np.float64] = centred / np.abs(centred).max()
    return scaled

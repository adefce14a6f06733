"""A factor that changes over a run: pairs (share of the run, factor), linear in between."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from clozelab.errors import UserError

Course = tuple[tuple[float, float], ...]


def check_course(course: Course) -> None:
    """Refuse shares that do not rise from 0 to 1, and factors below 0."""
    shares = [share for share, _ in course]
    if any(not 0 <= share <= 1 for share in shares) or any(a >= b for a, b in pairwise(shares)):
        raise UserError(
            "course: give pairs (share of the run, factor), with rising shares from 0 to 1"
        )
    if any(factor < 0 for _, factor in course):
        raise UserError("course: the factors must be at least 0")


def factor_at(course: Course, progress: float) -> float:
    """The factor at a point of the run; 1 without a course."""
    if not course:
        return 1.0
    shares, factors = zip(*course, strict=True)
    return float(np.interp(progress, shares, factors))

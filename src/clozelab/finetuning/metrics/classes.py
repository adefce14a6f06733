"""Scores of predicted classes: accuracy, F1 and Matthews' correlation, as scikit-learn.

These are GLUE's (arXiv:1804.07461 §3): Matthews for CoLA, F1 beside accuracy for MRPC and QQP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import astuple, dataclass
from math import sqrt
from operator import add


@dataclass(frozen=True)
class Tally:
    """What recall and precision are made of; nothing to find, or nothing found, gives 0."""

    recalled: float = 0.0  # of `gold`
    gold: float = 0.0
    precise: float = 0.0  # of `predicted`; in most metrics the same number as `recalled`
    predicted: float = 0.0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*map(add, astuple(self), astuple(other)))

    @property
    def recall(self) -> float:
        """How much of the gold was found, of 100."""
        return percent(self.recalled, self.gold)

    @property
    def precision(self) -> float:
        """How much of what was found is right, of 100."""
        return percent(self.precise, self.predicted)

    @property
    def f1(self) -> float:
        """Their harmonic mean."""
        both = self.recall + self.precision
        return 2 * self.recall * self.precision / both if both else 0.0


def percent(part: float, whole: float) -> float:
    """A part of a whole, of 100; a part of nothing is 0."""
    return 100 * part / whole if whole else 0.0


def accuracy(gold: Sequence[Hashable], predicted: Sequence[Hashable]) -> float:
    """How many are right, of 100."""
    return percent(_right(gold, predicted), len(gold))


def f1(gold: Sequence[str], predicted: Sequence[str], *, positive: str) -> float:
    """F1 of one class; 0 where it is nowhere, in gold or prediction."""
    right = sum(a == b == positive for a, b in zip(gold, predicted, strict=True))
    return Tally(right, [*gold].count(positive), right, [*predicted].count(positive)).f1


def macro_f1(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """The mean F1 of the classes that occur, in gold or prediction."""
    labels = sorted(set(gold) | set(predicted))
    total = sum(f1(gold, predicted, positive=label) for label in labels)
    return total / len(labels) if labels else 0.0


def matthews(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """Matthews' correlation, for any number of classes (R_K); one that is constant gives 0."""
    count = len(gold)
    right = _right(gold, predicted)
    golds, guesses = Counter(gold), Counter(predicted)
    # Whole numbers until the root: a constant then gives 0, not a rounding error over another.
    together = right * count - sum(golds[label] * guesses[label] for label in golds)
    spread = [count**2 - sum(n**2 for n in counts.values()) for counts in (golds, guesses)]
    return percent(together, sqrt(spread[0]) * sqrt(spread[1]))


def _right(gold: Sequence[Hashable], predicted: Sequence[Hashable]) -> int:
    return sum(label == guess for label, guess in zip(gold, predicted, strict=True))

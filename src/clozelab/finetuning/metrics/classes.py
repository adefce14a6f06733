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
    """The counts of recall and precision, which are 0 if there is nothing to divide by."""

    recalled: float = 0.0  # of `gold`
    gold: float = 0.0
    precise: float = 0.0  # of `predicted`; in most metrics the same number as `recalled`
    predicted: float = 0.0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*map(add, astuple(self), astuple(other)))

    @property
    def recall(self) -> float:
        """The share of the gold that was found, in per cent."""
        return percent(self.recalled, self.gold)

    @property
    def precision(self) -> float:
        """The share of the predictions that are right, in per cent."""
        return percent(self.precise, self.predicted)

    @property
    def f1(self) -> float:
        """The harmonic mean of recall and precision."""
        both = self.recall + self.precision
        return 2 * self.recall * self.precision / both if both else 0.0


def percent(part: float, whole: float) -> float:
    """A part of a whole in per cent; 0 if the whole is 0."""
    return 100 * part / whole if whole else 0.0


def accuracy(gold: Sequence[Hashable], predicted: Sequence[Hashable]) -> float:
    """The share of right predictions, in per cent."""
    return percent(_right(gold, predicted), len(gold))


def f1(gold: Sequence[str], predicted: Sequence[str], *, positive: str) -> float:
    """F1 of one class; 0 if it occurs neither in gold nor in predictions."""
    right = sum(a == b == positive for a, b in zip(gold, predicted, strict=True))
    return Tally(right, [*gold].count(positive), right, [*predicted].count(positive)).f1


def macro_f1(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """The mean F1 of the classes that occur, in gold or prediction."""
    labels = sorted(set(gold) | set(predicted))
    total = sum(f1(gold, predicted, positive=label) for label in labels)
    return total / len(labels) if labels else 0.0


def matthews(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """Matthews' correlation for any number of classes (R_K); 0 if either side is constant."""
    count = len(gold)
    right = _right(gold, predicted)
    golds, guesses = Counter(gold), Counter(predicted)
    # Whole numbers until the root, so that a constant gives exactly 0.
    covariance = right * count - sum(golds[label] * guesses[label] for label in golds)
    variances = [count**2 - sum(n**2 for n in counts.values()) for counts in (golds, guesses)]
    return percent(covariance, sqrt(variances[0]) * sqrt(variances[1]))


def _right(gold: Sequence[Hashable], predicted: Sequence[Hashable]) -> int:
    return sum(label == guess for label, guess in zip(gold, predicted, strict=True))

"""Scores of predicted classes, by name: accuracy, F1 and Matthews' correlation, as scikit-learn.

These are GLUE's (arXiv:1804.07461 §3): Matthews for CoLA, F1 beside accuracy for MRPC and QQP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import sqrt

from clozelab.finetuning.metrics.tally import Tally, percent


def accuracy(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """How many are right, of 100."""
    return percent(sum(one == other for one, other in _pairs(gold, predicted)), len(gold))


def f1(gold: Sequence[str], predicted: Sequence[str], *, positive: str) -> float:
    """F1 of one class; 0 where it is nowhere, in gold or prediction."""
    right = sum(one == other == positive for one, other in _pairs(gold, predicted))
    return Tally(
        recalled=right,
        gold=sum(label == positive for label in gold),
        precise=right,
        predicted=sum(label == positive for label in predicted),
    ).f1


def macro_f1(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """The mean F1 of the classes that occur, in gold or prediction."""
    labels = sorted(set(gold) | set(predicted))
    total = sum(f1(gold, predicted, positive=label) for label in labels)
    return total / len(labels) if labels else 0.0


def matthews(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """Matthews' correlation, for any number of classes (R_K); one that is constant gives 0."""
    count = len(gold)
    right = sum(one == other for one, other in _pairs(gold, predicted))
    golds, guesses = Counter(gold), Counter(predicted)
    # Whole numbers until the root: a constant then gives 0, not a rounding error over another.
    together = right * count - sum(golds[label] * guesses[label] for label in golds)
    apart = [count**2 - sum(number**2 for number in found.values()) for found in (golds, guesses)]
    return percent(together, sqrt(apart[0]) * sqrt(apart[1]))


def _pairs(gold: Sequence[str], predicted: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(gold, predicted, strict=True))

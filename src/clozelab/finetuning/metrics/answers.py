"""Scores of answers in English: SQuAD 1.1 (arXiv:1606.05250 §6.1) and 2.0 (arXiv:1806.03822).

They agree with the official scripts, and have the same names.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clozelab.finetuning.metrics.classes import percent

_PUNCTUATION = str.maketrans("", "", string.punctuation)  # ASCII alone
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")

Floats = NDArray[np.float64]
Compare = Callable[[str, str], float]


class Rules(NamedTuple):
    """How two answers are compared in one language."""

    normalise: Callable[[str], str]
    overlap: Compare  # from 0 to 1

    def exact(self, gold: str, predicted: str) -> float:
        """1 if two answers are the same once normalised, else 0."""
        return float(self.normalise(gold) == self.normalise(predicted))

    def overlap_or_none(self, gold: str, predicted: str) -> float:
        """`overlap` as in SQuAD 2.0, where two answers without words agree."""
        by = self.overlap if self.normalise(gold) else self.exact
        return by(gold, predicted)


def normalise(text: str) -> str:
    """Lower case without punctuation and articles, words separated by one space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def overlap(gold: str, predicted: str) -> float:
    """F1 of two answers as bags of words, from 0 to 1; 0 if either has none."""
    golds, guesses = normalise(gold).split(), normalise(predicted).split()
    shared = (Counter(golds) & Counter(guesses)).total()
    # Divided as the official scripts do it, to agree in the last digit.
    if not shared:
        return 0.0
    precision, recall = shared / len(guesses), shared / len(golds)
    return 2 * precision * recall / (precision + recall)


ENGLISH = Rules(normalise, overlap)


def best(golds: Sequence[str], predicted: str, *, by: Compare) -> float:
    """The score of a prediction against the gold answer that it agrees with most."""
    return max((by(gold, predicted) for gold in golds), default=0.0)


def squad1(
    gold: Sequence[Sequence[str]], predicted: Sequence[str], rules: Rules = ENGLISH
) -> dict[str, float]:
    """`exact` and `f1` over questions, each with the texts of its gold answers."""
    pairs = list(zip(gold, predicted, strict=True))
    return {
        name: percent(sum(best(*pair, by=by) for pair in pairs), len(pairs))
        for name, by in (("exact", rules.exact), ("f1", rules.overlap))
    }


def squad2(
    gold: Sequence[Sequence[str]], predicted: Sequence[str], rules: Rules = ENGLISH
) -> dict[str, float]:
    """`exact` and `f1` over questions, and over those with answers (HasAns) and without (NoAns).

    A question with none has no gold answers; the answer to it is the empty text. Kinds of
    questions that there are none of are left out.
    """
    answered = np.array([bool(golds) for golds in gold], dtype=np.bool_)
    exacts, overlaps = _question_scores(gold, predicted, rules)
    kinds = {"": np.ones_like(answered), "HasAns_": answered, "NoAns_": ~answered}
    return {
        f"{kind}{name}": percent(float(values[which].sum()), int(which.sum()))
        for kind, which in kinds.items()
        if which.any() or not kind
        for name, values in (("exact", exacts), ("f1", overlaps))
    }


def best_threshold(
    gold: Sequence[Sequence[str]],
    predicted: Sequence[str],
    nulls: Sequence[float] | Floats,
    rules: Rules = ENGLISH,
) -> float:
    """The threshold of the null score, above which an answer is withdrawn, with the best F1.

    `predicted` is the best answer to each question, none withdrawn. Of equal thresholds, the
    lowest.
    """
    # Differs from the SQuAD 2.0 script: it also looks between equal null scores, where no threshold
    # lies; says 0 for withdrawing everything, though null scores may be below 0; and takes texts of
    # articles alone for answers, which its score does not.
    _, kept = _question_scores(gold, predicted, rules)
    _, withdrawn = _question_scores(gold, [""] * len(gold), rules)
    order = np.argsort(nulls, kind="stable")
    ascending = np.asarray(nulls, dtype=np.float64)[order]
    # From all answers withdrawn to all kept.
    totals = np.cumsum(np.concatenate([[withdrawn.sum()], (kept - withdrawn)[order]]))
    totals[1:-1][ascending[:-1] == ascending[1:]] = -1.0
    best = int(totals.argmax())
    if best:
        return float(ascending[best - 1])
    return min(0.0, float(np.nextafter(ascending[0], -np.inf))) if len(ascending) else 0.0


def _question_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[str], rules: Rules
) -> tuple[Floats, Floats]:
    """Exact match and F1 of every question by the rules of SQuAD 2.0."""
    exacts, overlaps = np.zeros(len(gold)), np.zeros(len(gold))
    for number, (golds, guess) in enumerate(zip(gold, predicted, strict=True)):
        # An answer of articles and punctuation alone is none, unless there is no other.
        texts = [text for text in golds if rules.normalise(text)] or [""]
        exacts[number] = best(texts, guess, by=rules.exact)
        overlaps[number] = best(texts, guess, by=rules.overlap_or_none)
    return exacts, overlaps

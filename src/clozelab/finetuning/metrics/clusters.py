"""Scores of coreference clusters: MUC, B³ and CEAF-φ4 and their mean (ACL P14-2006 §3).

They follow version 8 of the CoNLL reference scorer: nothing is added or dropped, so a singleton
counts in B³ and CEAF wherever it is given (MUC counts links, of which it has none); predictions for
data without singletons must leave them out. As there, a mention in two clusters stays in the
first. And the scores of GAP (arXiv:1810.05201): F1 of names found for
pronouns, by gender, and bias.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from statistics import mean
from typing import NamedTuple

import numpy as np

from clozelab.errors import UserError
from clozelab.finetuning.metrics.classes import Tally

Clusters = Sequence[Sequence[Hashable]]  # of one document; a mention is any value that has a hash
Metric = Callable[[Clusters, Clusters], Tally]


def scored(gold: Sequence[Clusters], predicted: Sequence[Clusters]) -> dict[str, float]:
    """Scores over documents: the F1 of each metric and of mentions, recalls, precisions, `conll`.

    `conll` is the mean F1 of MUC, B³ and CEAF-φ4, the number that papers compare.
    """
    pairs = [(distinct(key), distinct(guess)) for key, guess in zip(gold, predicted, strict=True)]
    tallies = {
        name: sum((metric(*pair) for pair in pairs), Tally()) for name, metric in METRICS.items()
    }
    scores = {"conll": mean(tallies[name].f1 for name in ("muc", "b_cubed", "ceaf"))}
    for name, tally in tallies.items():
        scores |= {f"{name}_{part}": getattr(tally, part) for part in ("f1", "recall", "precision")}
    return scores


def distinct(clusters: Clusters) -> list[list[Hashable]]:
    """The clusters with every mention only in the first that has it, without empty ones."""
    first: dict[Hashable, int] = {}
    for number, cluster in enumerate(clusters):
        for mention in cluster:
            first.setdefault(mention, number)
    return [
        mentions
        for number, cluster in enumerate(clusters)
        if (mentions := [m for m in dict.fromkeys(cluster) if first[m] == number])
    ]


def mentions(gold: Clusters, predicted: Clusters) -> Tally:
    """Count the mentions found, whatever their clusters."""
    golds, guesses = set(_cluster_of(gold)), set(_cluster_of(predicted))
    right = len(golds & guesses)
    return Tally(right, len(golds), right, len(guesses))


def muc(gold: Clusters, predicted: Clusters) -> Tally:
    """Count links: a cluster of n mentions has n - 1, less one for each split by the other side.

    A mention that the other side lacks is a part by itself: MUC-6, ACL M95-1005.
    """
    return Tally(*_count_links(gold, predicted), *_count_links(predicted, gold))


def b_cubed(gold: Clusters, predicted: Clusters) -> Tally:
    """Sum, over mentions, the share of its cluster that its cluster on the other side has."""
    return Tally(*_sum_shares(gold, predicted), *_sum_shares(predicted, gold))


def ceaf(gold: Clusters, predicted: Clusters) -> Tally:
    """The similarity φ4 = 2·shared / (sum of sizes) of clusters, in the best one-to-one pairing."""
    from scipy.optimize import linear_sum_assignment  # type: ignore[attr-defined]

    likeness = np.zeros((len(gold), len(predicted)))
    for row, shares in enumerate(_overlaps(gold, predicted)):
        for column, shared in shares.items():
            likeness[row, column] = 2 * shared / (len(gold[row]) + len(predicted[column]))
    total = float(likeness[linear_sum_assignment(likeness, maximize=True)].sum())
    return Tally(total, len(gold), total, len(predicted))


METRICS: dict[str, Metric] = {"muc": muc, "b_cubed": b_cubed, "ceaf": ceaf, "mentions": mentions}


def _cluster_of(clusters: Clusters) -> dict[Hashable, int]:
    return {mention: number for number, cluster in enumerate(clusters) for mention in cluster}


def _overlaps(clusters: Clusters, others: Clusters) -> list[Counter[int]]:
    """How many mentions each cluster shares with each of the others."""
    owners = _cluster_of(others)
    return [
        Counter(owners[mention] for mention in cluster if mention in owners) for cluster in clusters
    ]


def _count_links(clusters: Clusters, others: Clusters) -> tuple[int, int]:
    shared = _overlaps(clusters, others)
    # n mentions less the parts: one per cluster met, and one per mention met nowhere.
    unbroken = sum(shares.total() - len(shares) for shares in shared)
    return unbroken, sum(len(cluster) - 1 for cluster in clusters)


def _sum_shares(clusters: Clusters, others: Clusters) -> tuple[float, int]:
    shared = _overlaps(clusters, others)
    total = sum(
        sum(number**2 for number in shares.values()) / len(cluster)
        for cluster, shares in zip(clusters, shared, strict=True)
    )
    return total, sum(map(len, clusters))


_GENDERS = {
    **dict.fromkeys(("he", "him", "his"), "masculine"),
    **dict.fromkeys(("she", "her", "hers"), "feminine"),
}


class PronounAnswer(NamedTuple):
    """A pronoun, and whether it stands for name A and for name B."""

    pronoun: str
    gold: tuple[bool, bool]
    predicted: tuple[bool, bool] | None  # None: no prediction, which counts as two names missed


def gap(answers: Sequence[PronounAnswer]) -> dict[str, float]:
    """`f1`, `masculine_f1` and `feminine_f1` with recalls and precisions, and `bias`.

    The bias is the ratio of the F1s, feminine to masculine: not in per cent, 1 if both are equal,
    and 0 if either is 0, so that every run has it.
    """
    tallies = {"": Tally(), "masculine_": Tally(), "feminine_": Tally()}
    for pronoun, gold, predicted in answers:
        if pronoun.lower() not in _GENDERS:
            pronouns = ", ".join(_GENDERS)
            raise UserError(
                f"pronoun {pronoun!r} is not one that GAP asks about: give one of {pronouns}"
            )
        guesses = predicted or (False, False)
        right = sum(a and b for a, b in zip(gold, guesses, strict=True))
        for group in ("", f"{_GENDERS[pronoun.lower()]}_"):
            tallies[group] += Tally(right, sum(gold) if predicted else 2, right, sum(guesses))
    scores = {
        f"{gender}{name}": getattr(tally, name)
        for gender, tally in tallies.items()
        for name in ("f1", "recall", "precision")
    }
    feminine, masculine = scores["feminine_f1"], scores["masculine_f1"]
    return {**scores, "bias": feminine / masculine if masculine else 0.0}

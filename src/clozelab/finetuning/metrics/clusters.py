"""Scores of coreference clusters: MUC, B³ and CEAF-φ4 and their mean (ACL P14-2006 §3).

They follow version 8 of the CoNLL reference scorer: nothing is added or dropped, so a cluster of
one mention counts in B³ and CEAF wherever it is given (MUC counts links, of which it has none).
Whoever predicts for data without such clusters leaves them out. As there, a mention given twice
stays in the first of its clusters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from statistics import mean

import numpy as np

from clozelab.finetuning.metrics.tally import Tally

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
        scores |= {
            f"{name}_f1": tally.f1,
            f"{name}_recall": tally.recall,
            f"{name}_precision": tally.precision,
        }
    return scores


def distinct(clusters: Clusters) -> list[list[Hashable]]:
    """The clusters with every mention once, in the first that has it; empty ones left out."""
    seen: set[Hashable] = set()
    kept = []
    for cluster in clusters:
        mentions = [mention for mention in dict.fromkeys(cluster) if mention not in seen]
        seen.update(mentions)
        kept.append(mentions)
    return [mentions for mentions in kept if mentions]


def mentions(gold: Clusters, predicted: Clusters) -> Tally:
    """Mentions found, whatever their clusters."""
    there, found = set(_owners(gold)), set(_owners(predicted))
    right = len(there & found)
    return Tally(right, len(there), right, len(found))


def muc(gold: Clusters, predicted: Clusters) -> Tally:
    """Links: a cluster of n has n - 1, and loses one for each part but one it is broken into.

    A mention that the other side has not is a part by itself: MUC-6, ACL M95-1005.
    """
    recalled, links = _links(gold, predicted)
    precise, guessed = _links(predicted, gold)
    return Tally(recalled, links, precise, guessed)


def b_cubed(gold: Clusters, predicted: Clusters) -> Tally:
    """Of each mention's cluster, the part that its cluster on the other side shares."""
    recalled, there = _shares(gold, predicted)
    precise, found = _shares(predicted, gold)
    return Tally(recalled, there, precise, found)


def ceaf(gold: Clusters, predicted: Clusters) -> Tally:
    """The likeness φ4 = 2·shared / (both sizes) of clusters, paired so that its sum is highest."""
    from scipy.optimize import linear_sum_assignment  # type: ignore[attr-defined]

    likeness = np.zeros((len(gold), len(predicted)))
    for row, shares in enumerate(_shared(gold, predicted)):
        for column, shared in shares.items():
            likeness[row, column] = 2 * shared / (len(gold[row]) + len(predicted[column]))
    total = float(likeness[linear_sum_assignment(likeness, maximize=True)].sum())
    return Tally(total, len(gold), total, len(predicted))


METRICS: dict[str, Metric] = {
    "muc": muc,
    "b_cubed": b_cubed,
    "ceaf": ceaf,
    "mentions": mentions,
}


def _owners(clusters: Clusters) -> dict[Hashable, int]:
    return {mention: number for number, cluster in enumerate(clusters) for mention in cluster}


def _shared(clusters: Clusters, others: Clusters) -> list[Counter[int]]:
    """How many mentions each cluster shares with each of the others."""
    owners = _owners(others)
    return [
        Counter(owners[mention] for mention in cluster if mention in owners) for cluster in clusters
    ]


def _links(clusters: Clusters, others: Clusters) -> tuple[int, int]:
    shared = _shared(clusters, others)
    # n mentions, less the parts: one for each cluster met and one for each mention met nowhere.
    kept = sum(shares.total() - len(shares) for shares in shared)
    return kept, sum(len(cluster) - 1 for cluster in clusters)


def _shares(clusters: Clusters, others: Clusters) -> tuple[float, int]:
    shared = _shared(clusters, others)
    kept = sum(
        sum(number**2 for number in shares.values()) / len(cluster)
        for cluster, shares in zip(clusters, shared, strict=True)
    )
    return kept, sum(map(len, clusters))

"""Verdicts: what a paper claims, tested on the cells of a study.

The 95 % interval of the claimed advantage decides. A claim is confirmed if the interval lies above
minus the margin, refuted if it lies below, and undecided otherwise, as with a single seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, get_args

from clozelab.nearest import listed
from clozelab.statistics import Estimate, difference, holm
from clozelab.studies.records import StudyRecord
from clozelab.studies.scores import is_loss, label, unit
from clozelab.studies.spec import Claim

Verdict = Literal["confirmed", "refuted", "undecided"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True)
class Finding:
    """The claimed advantage on one measure, or on the mean of several."""

    name: str
    unit: str
    advantage: Estimate | None  # None: there is nothing to compare, as `why` says
    verdict: Verdict
    why: str = ""


@dataclass(frozen=True)
class Judgement:
    """A claim and its findings: on each measure, and on the mean of those of a unit."""

    claim: Claim
    measures: tuple[Finding, ...]
    decisive: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """The verdict of the decisive findings, if they agree."""
        verdicts = {finding.verdict for finding in self.decisive}
        return verdicts.pop() if len(verdicts) == 1 else "undecided"

    @property
    def p_values(self) -> list[float | None]:
        """The p-value of each measure, corrected for their number by Holm's method."""
        null = -self.claim.margin
        known = [one.advantage.p(null) for one in self.measures if one.advantage is not None]
        corrected = iter(holm(known))
        return [None if one.advantage is None else next(corrected) for one in self.measures]


def judge(claim: Claim, record: StudyRecord) -> Judgement:
    """The verdict on one claim."""
    measures = tuple(_finding(claim, label(name), [name], record) for name in claim.on)
    decisive = []
    for kind in dict.fromkeys(unit(name) for name in claim.on):
        names = [name for name in claim.on if unit(name) == kind]
        decisive.append(_finding(claim, _mean_label(names), names, record))
    return Judgement(claim, measures, tuple(decisive))


def decide(advantage: Estimate | None, margin: float = 0.0) -> Verdict:
    """The verdict by where the interval lies."""
    if advantage is not None and advantage.low > -margin:
        return "confirmed"
    if advantage is not None and advantage.high < -margin:
        return "refuted"
    return "undecided"


def _finding(claim: Claim, name: str, measures: Sequence[str], record: StudyRecord) -> Finding:
    better = _mean_by_seed(record, claim.better, measures)
    than = _mean_by_seed(record, claim.than, measures)
    advantage, kind = difference(better, than), unit(measures[0])
    if advantage is None:
        why = _why_not({claim.better: better, claim.than: than})
    elif advantage.paired and advantage.value == advantage.error == 0:
        # A margin would confirm this, but nothing was tested: short runs can be one and the same.
        why, advantage = "every seed has the same result, as if they were one run", None
    else:
        return Finding(name, kind, advantage, decide(advantage, claim.margin))
    return Finding(name, kind, None, "undecided", why)


def _mean_by_seed(record: StudyRecord, variant: str, measures: Sequence[str]) -> dict[int, float]:
    """The mean over measures (losses negated, so that higher is better), by seed.

    A seed that lacks one of the measures is left out: its mean would be of other measures.
    """
    scores = [record.scores(variant, measure) for measure in measures]
    complete = set.intersection(*(set(values) for values in scores))
    signs = [-1 if is_loss(measure) else 1 for measure in measures]
    return {
        seed: fmean(sign * values[seed] for sign, values in zip(signs, scores, strict=True))
        for seed in sorted(complete)
    }


def _mean_label(names: Sequence[str]) -> str:
    if len(names) == 1:
        return label(names[0])
    few = listed(map(label, names), conjunction="and")
    return f"the mean of {few if len(names) == 2 else f'these {len(names)}'}"


def _why_not(sides: Mapping[str, Mapping[int, float]]) -> str:
    """Why two sides cannot be compared."""
    empty = [name for name, values in sides.items() if not values]
    if empty:
        have = "has" if len(empty) == 1 else "have"
        return f"{listed(empty, conjunction='and')} {have} no result yet"
    return "one seed cannot separate an effect from chance"

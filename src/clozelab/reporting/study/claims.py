"""What a paper claims against what the cells of a study came to: a verdict, and how sure it is.

The 95 % interval of the claimed advantage decides: wholly above minus the margin confirms, wholly
below refutes, and anything else, one seed above all, leaves the claim undecided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, get_args

from clozelab.reporting.document import listed
from clozelab.reporting.study.cells import Evidence, is_loss, label, unit
from clozelab.statistics import Estimate, difference, holm
from clozelab.studies.spec import Claim

Verdict = Literal["confirmed", "refuted", "undecided"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True)
class Finding:
    """A claim's advantage on one measure, or on the mean of several; None where none is known."""

    name: str
    unit: str
    advantage: Estimate | None
    verdict: Verdict
    why: str = ""  # there is no advantage to tell of


@dataclass(frozen=True)
class Judged:
    """A claim with what was found: on each measure alone, and on those of a unit together."""

    claim: Claim
    alone: tuple[Finding, ...]
    decisive: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """What all that decides agrees on."""
        found = {one.verdict for one in self.decisive}
        return found.pop() if len(found) == 1 else "undecided"

    @property
    def chances(self) -> list[float | None]:
        """Of each measure alone, raised by Holm's method: several were looked at."""
        against = -self.claim.margin
        plain = [one.advantage.p(against) for one in self.alone if one.advantage is not None]
        raised = iter(holm(plain))
        return [None if one.advantage is None else next(raised) for one in self.alone]


def judge(claim: Claim, evidence: Evidence) -> Judged:
    """The verdict on one claim."""
    alone = tuple(_finding(claim, label(name), [name], evidence) for name in claim.on)
    decisive = []
    for what in dict.fromkeys(unit(name) for name in claim.on):
        names = [name for name in claim.on if unit(name) == what]
        decisive.append(_finding(claim, _together(names), names, evidence))
    return Judged(claim, alone, tuple(decisive))


def _together(names: Sequence[str]) -> str:
    """What one, two or many measures are called as one."""
    if len(names) == 1:
        return label(names[0])
    few = listed(map(label, names)) if len(names) == 2 else f"these {len(names)}"
    return f"the mean of {few}"


def decide(advantage: Estimate | None, margin: float = 0.0) -> Verdict:
    """Where the interval lies."""
    if advantage is not None and advantage.low > -margin:
        return "confirmed"
    if advantage is not None and advantage.high < -margin:
        return "refuted"
    return "undecided"


def _finding(claim: Claim, name: str, measures: Sequence[str], evidence: Evidence) -> Finding:
    ours = _by_seed(evidence, claim.better, measures)
    theirs = _by_seed(evidence, claim.than, measures)
    advantage, what = difference(ours, theirs), unit(measures[0])
    if advantage is None:
        why = _lack({claim.better: ours, claim.than: theirs})
    elif advantage.paired and advantage.value == advantage.error == 0:
        # A margin would confirm this, though nothing was tried: short runs can be the same run.
        why, advantage = "every seed came out the same, as of one and the same run", None
    else:
        return Finding(name, what, advantage, decide(advantage, claim.margin))
    return Finding(name, what, None, "undecided", why)


def _by_seed(evidence: Evidence, variant: str, measures: Sequence[str]) -> dict[int, float]:
    """The mean over measures, more being better, of the seeds that have them all.

    A seed without one of them would move the mean by what that measure is, not by the variant.
    """
    found = [evidence.of(variant, measure) for measure in measures]
    whole = set.intersection(*(set(values) for values in found))
    signs = [-1 if is_loss(measure) else 1 for measure in measures]
    return {
        seed: fmean(sign * values[seed] for sign, values in zip(signs, found, strict=True))
        for seed in sorted(whole)
    }


def _lack(sides: Mapping[str, Mapping[int, float]]) -> str:
    """Why two sides cannot be compared."""
    empty = [name for name, values in sides.items() if not values]
    if empty:
        return f"{listed(empty)} {'has' if len(empty) == 1 else 'have'} no result yet"
    return "one seed does not tell chance from effect"


def told(judged: Judged, *, where: str) -> str:
    """A verdict in one sentence: what, by how much, how sure."""
    # Where nothing is known, the reason is that of all measures.
    parts = dict.fromkeys(_told(judged.claim, one) for one in judged.decisive)
    return f"{judged.verdict.capitalize()} {where}: {'; '.join(parts)}."


def _told(claim: Claim, one: Finding) -> str:
    if one.advantage is None:
        return f"{claim.better} against {claim.than}, {one.why}"
    way = "above" if one.advantage.value >= 0 else "below"
    if one.unit == "nats":
        way = "better than" if way == "above" else "worse than"
    margin = f", where {form(claim.margin, one.unit)} may be lost" if claim.margin else ""
    return (
        f"{claim.better} is {way} {claim.than} by {form(abs(one.advantage.value), one.unit)}"
        f" {one.unit} on {one.name} ({interval(one)}, {seeds(one.advantage)}{margin})"
    )


def interval(one: Finding) -> str:
    """Where an advantage lies, in words."""
    assert one.advantage is not None
    low, high = (form(end, one.unit) for end in (one.advantage.low, one.advantage.high))
    return f"95 % interval {low} to {high}"


def seeds(one: Estimate) -> str:
    """Of how many runs something is the mean."""
    return f"{one.seeds} pairs of seeds" if one.paired else f"{one.seeds} runs, not paired"


def power(findings: Iterable[Finding]) -> str:
    """What such a comparison could have seen."""
    parts = [
        f"{form(one.advantage.visible, one.unit)} {one.unit} on {one.name}"
        for one in findings
        if one.advantage is not None
    ]
    if not parts:
        return ""
    return (
        "With as many seeds that vary as these do, a true difference of about"
        f" {listed(parts)} is seen four times in five."
    )


def form(value: float, what: str, *, sign: bool = False) -> str:
    """A difference in its unit, with a true minus sign; what rounds to nothing has none."""
    text = f"{value:+.{3 if what == 'nats' else 2}f}"
    if float(text) == 0:
        return text[1:]
    return text.replace("-", "−") if sign or value < 0 else text[1:]

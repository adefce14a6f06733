"""Verdicts: what a paper claims, tested on the cells of a study.

Each claim is tested for a difference, and for equality where it says which differences count as
none. Both p-values are corrected over the claims of the study (Benjamini and Hochberg), and only
the corrected ones decide:

- confirmed: the advantage is above minus the margin (or, of a claim of equality, within delta);
- refuted: it is below (or beyond delta);
- equal: neither is shown, and two one-sided tests place the advantage within delta;
- undecided: none of these, as with a single seed;
- not tested: runs of a side diverged, or ended on the unigram plateau, where only frequencies are
  known and there is nothing to compare, or with detectors that find no replaced token; or both
  sides were one and the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal, NamedTuple, get_args

from clozelab.nearest import listed
from clozelab.runs.diagnostics import FOUND
from clozelab.statistics import (
    LEVEL,
    NO_ITEMS,
    Estimate,
    ItemError,
    Values,
    benjamini_hochberg,
    contrast,
    holm,
    item_error,
    level,
    sum_of_items,
)
from clozelab.studies.records import StudyRecord
from clozelab.studies.scores import is_loss, kind_of, label, sampling_variance, unit
from clozelab.studies.spec import Claim

Verdict = Literal["confirmed", "refuted", "equal", "undecided", "not tested"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
_MOST_STUCK = 0.2  # the share of a side's runs that may diverge or stay on the plateau


@dataclass(frozen=True)
class Finding:
    """The claimed advantage on one measure, or on the mean of several."""

    name: str
    unit: str
    lower: bool  # whether lower values are better; the advantage is positive then, too
    advantage: Estimate | None  # None: nothing to compare, for the reason `why`
    p: float | None = None  # of a difference, corrected
    verdict: Verdict = "undecided"
    why: str = ""


@dataclass(frozen=True)
class Judgement:
    """A claim and its findings: on each measure, and on the mean of those of a unit."""

    claim: Claim
    measures: tuple[Finding, ...]
    decisive: tuple[Finding, ...]
    verdict: Verdict
    p: float | None = None  # of a difference, corrected over the claims
    p_equal: float | None = None  # of equality within delta, likewise


def judge(record: StudyRecord) -> list[Judgement]:
    """The verdicts on all claims; exploratory claims are corrected separately."""
    claims = record.study.claims
    families = {
        late: iter(judge_claims([one for one in claims if one.exploratory == late], record))
        for late in (False, True)
    }
    return [next(families[claim.exploratory]) for claim in claims]


def repeats(record: StudyRecord) -> list[Judgement]:
    """The verdicts on each A/A pair and measure: differences here are chance."""
    claims = [
        Claim(variant.name, (measure,), "The same variant twice.", than=variant.again)
        for variant in record.variants
        if variant.again
        for measure in record.measures()
    ]
    return judge_claims(claims, record)


def advantage(record: StudyRecord, one: str, other: str, measure: str) -> Estimate | None:
    """How much better one variant is than another on a measure, with all of their runs."""
    claim = Claim(one, (measure,), "", than=other)
    scores = {each.name: _mean_by_seed(record, each.name, [measure]) for each in record.variants}
    return _estimate(claim, [measure], record, scores)


def judge_claims(claims: Sequence[Claim], record: StudyRecord) -> list[Judgement]:
    """The verdicts on one family of claims, corrected together."""
    findings = [_findings(claim, record) for claim in claims]
    joint = [
        _joint_p_values([_p_values(claim, one) for one in decisive])
        for claim, (_, decisive) in zip(claims, findings, strict=True)
    ]
    decided = _decide(claims, joint, benjamini_hochberg)
    judgements = []
    for claim, (measures, decisive), decision in zip(claims, findings, decided, strict=True):
        if any(one.verdict == "not tested" for one in decisive):
            decision = decision._replace(verdict="not tested")
        if len(decisive) == 1:
            decisive = (replace(decisive[0], p=decision.p, verdict=decision.verdict),)
            measures = decisive if len(measures) == 1 else measures
        judgements.append(
            Judgement(claim, measures, decisive, decision.verdict, decision.p, decision.p_equal)
        )
    return judgements


def _findings(claim: Claim, record: StudyRecord) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """The findings on each measure, and on the mean of the measures of each unit."""
    singles = [[name] for name in claim.on]
    units = dict.fromkeys(unit(name) for name in claim.on)
    means = [[name for name in claim.on if unit(name) == kind] for kind in units]
    single = _corrected(claim, [_finding(claim, label(*one), one, record) for one in singles])
    if means == singles:
        return single, single
    return single, _corrected(claim, [_finding(claim, _mean_label(m), m, record) for m in means])


def _corrected(claim: Claim, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings with p-values corrected for their number, and verdicts."""
    chances = [_p_values(claim, one) for one in findings]
    decided = _decide([claim] * len(chances), chances, holm)
    return tuple(
        one if one.advantage is None else replace(one, p=decision.p, verdict=decision.verdict)
        for one, decision in zip(findings, decided, strict=True)
    )


class Chances(NamedTuple):
    """The p-values of an advantage above the claim's bound, below it, and within delta."""

    above: float
    below: float
    equal: float | None

    @property
    def different(self) -> float:
        """The two-sided p-value."""
        return min(1.0, 2 * min(self.above, self.below))


def _p_values(claim: Claim, finding: Finding) -> Chances | None:
    estimate, delta = finding.advantage, claim.delta
    if estimate is None:
        return None
    equal = None if delta is None else estimate.p_within(delta)
    high, low = (delta or 0.0, -(delta or 0.0)) if claim.kind == "equal" else [-claim.margin] * 2
    return Chances(estimate.p_above(high), estimate.p_below(low), equal)


def _joint_p_values(chances: Sequence[Chances | None]) -> Chances | None:
    """The p-values of a claim on several means, all of which must hold."""
    known = [one for one in chances if one is not None]
    if len(known) < len(chances):
        return None
    equal = [one.equal for one in known if one.equal is not None]
    return Chances(
        max(one.above for one in known), max(one.below for one in known), max(equal, default=None)
    )


class _Decision(NamedTuple):
    verdict: Verdict = "undecided"
    p: float | None = None
    p_equal: float | None = None


def _decide(
    claims: Sequence[Claim],
    chances: Sequence[Chances | None],
    method: Callable[[Sequence[float]], list[float]],
) -> list[_Decision]:
    """The verdicts from p-values corrected together."""
    differs = iter(method([one.different for one in chances if one is not None]))
    equals = iter(method([one.equal for one in chances if one and one.equal is not None]))
    alpha, decisions = 1 - LEVEL, list[_Decision]()
    for claim, one in zip(claims, chances, strict=True):
        if one is None:
            decisions.append(_Decision())
            continue
        p, p_equal = next(differs), None if one.equal is None else next(equals)
        verdict: Verdict = "undecided"
        if p <= alpha:
            verdict = "confirmed" if one.above < one.below and claim.kind == "better" else "refuted"
        elif p_equal is not None and p_equal <= alpha:
            verdict = "confirmed" if claim.kind == "equal" else "equal"
        decisions.append(_Decision(verdict, p, p_equal))
    return decisions


def _finding(claim: Claim, name: str, measures: Sequence[str], record: StudyRecord) -> Finding:
    """The advantage on the mean of some measures, or why there is none."""
    finding = Finding(name, unit(measures[0]), is_loss(measures[0]), None)
    sides = [side for side in (claim.better, claim.than) if side]
    scores = {one.name: _mean_by_seed(record, one.name, measures) for one in record.variants}
    if record.ended and record.done and not any(scores.values()):
        missing = "it was not measured: its data is missing, or it does not apply to these models"
        return replace(finding, verdict="not tested", why=missing)
    if any(kind_of(measure).gated for measure in measures):
        for side in sides:
            if (why := stuck(record, side)) is not None:
                return replace(finding, verdict="not tested", why=why)
        scores = {one: _left_plateau(record, one, values) for one, values in scores.items()}
    if claim.than:
        ours = scores.get(claim.better, {})
        theirs = {seed: claim.ratio * one for seed, one in scores.get(claim.than, {}).items()}
        if len(ours) > 1 and ours == theirs:
            # A margin would confirm this, but the runs may be one and the same.
            why = "every seed has the same result, as if they were one run"
            return replace(finding, verdict="not tested", why=why)
        scores = {**scores, claim.than: theirs}
    estimate = _estimate(claim, measures, record, scores)
    if estimate is None:
        return replace(finding, why=_reason({side: scores.get(side, {}) for side in sides}))
    if not estimate.error:
        why = "the seeds of each variant have the same result, which shows no error to judge by"
        return replace(finding, why=why)
    return replace(finding, advantage=estimate)


def _estimate(
    claim: Claim, measures: Sequence[str], record: StudyRecord, scores: Mapping[str, Values]
) -> Estimate | None:
    """How much better one side of a claim is than the other, or than a level, by their scores."""
    items = _item_error(claim, measures, record, scores)
    if claim.than:
        related = _related(record, claim.better, claim.than)
        own = _by_own_seed(record, scores)
        return contrast(own, claim.better, claim.than, related=related, items=items)
    assert claim.level is not None
    mean = level(scores, claim.better, items=items)
    sign = -1 if is_loss(measures[0]) else 1
    return mean and replace(mean, value=mean.value - sign * claim.level)


def stuck(record: StudyRecord, variant: str) -> str | None:
    """Why a variant cannot be compared, if many of its runs diverged or stayed on the plateau."""
    failed = [cell for cell in record.failed if cell.variant == variant and cell.diverged]
    runs = len([cell for cell in record.cells if cell.variant == variant])
    on_plateau = record.on_plateau(variant)
    if runs and len(failed) > _MOST_STUCK * runs:
        return f"{len(failed)} of {runs} runs of {variant} diverged"
    if runs and len(on_plateau) > _MOST_STUCK * runs:
        losses = [*on_plateau.values()]
        return (
            f"{len(on_plateau)} of {runs} runs of {variant} ended on the unigram plateau, at"
            f" {fmean(losses):.2f} nats, where frequencies and copying alone give"
            f" {record.plateau(variant):.2f}"
        )
    blind = record.blind(variant)
    if runs and len(blind) > _MOST_STUCK * runs:
        return (
            f"the detectors of {len(blind)} of {runs} runs of {variant} find less than {FOUND:.0%}"
            " of the replaced tokens, as if they only knew how many there are"
        )
    return None


def _left_plateau(record: StudyRecord, variant: str, values: Values) -> dict[int, float]:
    """The values of runs that left the plateau; none if too many of a variant's did not."""
    on_plateau = [*record.on_plateau(variant), *record.blind(variant)]
    is_stuck = stuck(record, variant) is not None
    return {} if is_stuck else {seed: x for seed, x in values.items() if seed not in on_plateau}


def _item_error(
    claim: Claim, measures: Sequence[str], record: StudyRecord, scores: Mapping[str, Values]
) -> ItemError:
    """The sampling error of an advantage on the mean of measures, from their items."""
    errors = [error for one in measures for error in _item_errors(claim, one, record, scores)]
    return sum_of_items(errors or [NO_ITEMS]).scaled(1 / len(measures))


def _item_errors(
    claim: Claim, measure: str, record: StudyRecord, scores: Mapping[str, Values]
) -> Iterator[ItemError]:
    """Yield item errors from the recorded scores of items, else from their number."""
    sides = [side for side in (claim.better, claim.than) if side]
    items = [record.items(side, measure, scores.get(side, {})) for side in sides]
    if all(items):
        ours, theirs = items[0], {k: claim.ratio * x for k, x in items[-1].items()}
        if len(sides) == 1:
            yield item_error(ours)
        elif len({len(row) for side in items for row in side.values()}) == 1:
            yield item_error(ours, theirs)
        else:  # models with other tokenizers may have other items
            yield from (item_error(ours), item_error(theirs))
        return
    for side, ratio in zip(sides, (1.0, claim.ratio), strict=False):
        values = [*record.scores(side, measure).values()]
        if values:
            sizes = {**record.sizes_of(side), "run": len(values)}
            compared = len(sides) > 1
            variance = sampling_variance(measure, fmean(values), sizes, compared=compared)
            yield ItemError(variance).scaled(ratio)


def _by_own_seed(record: StudyRecord, scores: Mapping[str, Values]) -> dict[str, Values]:
    """The scores by the seeds of the runs: those of an A/A pair differ, and are not paired."""
    return {
        name: {record.study.variant(name).seed_offset + seed: one for seed, one in values.items()}
        for name, values in scores.items()
    }


def _related(record: StudyRecord, one: str, other: str) -> bool:
    """Whether one variant is the teacher of the other, or both have the same teacher."""
    teachers = [record.study.variant(name).teacher for name in (one, other)]
    return teachers[0] == other or teachers[1] == one or (teachers[0] or "") == teachers[1]


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


def _reason(sides: Mapping[str, Mapping[int, float]]) -> str:
    """Why two sides cannot be compared."""
    empty = [name for name, values in sides.items() if not values]
    if empty:
        have = "has" if len(empty) == 1 else "have"
        return f"{listed(empty, conjunction='and')} {have} no result yet"
    return "one seed cannot separate an effect from chance"

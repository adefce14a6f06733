"""The claims of a study and their verdicts: each in words, in a table and in a figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clozelab.nearest import listed
from clozelab.reporting import figures
from clozelab.reporting.document import GAP, NumberCell, PageTable, Part, TableCell
from clozelab.reporting.figures import DotRow
from clozelab.statistics import Estimate
from clozelab.studies.spec import Claim
from clozelab.studies.verdicts import Finding, Judgement

COLOURS = {"confirmed": 0, "refuted": 1, "undecided": 7}  # blue, orange, grey: safe for all eyes
SIGNS = {"confirmed": "✓", "refuted": "✗", "undecided": "?"}


def parts(judgements: Sequence[Judgement], *, scope: str) -> Iterator[Part]:
    """Each claim with its verdict, its numbers and a figure of them."""
    if len(judgements) > 1:
        rows = [[one.claim.says, _signed(one.verdict)] for one in judgements]
        note = (
            "Each claim is judged by itself: of twenty claims without any effect, about one is"
            " decided by chance."
        )
        yield PageTable(["claim", "verdict"], rows, note)
    for judgement in judgements:
        claim = judgement.claim
        yield ("heading", f"{_signed(judgement.verdict)}: {claim.better} against {claim.than}")
        yield f"“{claim.says}”"
        yield sentence(judgement, scope=scope)
        yield _findings(judgement)
        yield from _forest(judgement)


def sentence(judgement: Judgement, *, scope: str) -> str:
    """A verdict in one sentence: the difference, its size and its interval."""
    # Where nothing is known, the reason is the same for all measures.
    clauses = dict.fromkeys(_clause(judgement.claim, one) for one in judgement.decisive)
    return f"{judgement.verdict.capitalize()} {scope}: {'; '.join(clauses)}."


def _clause(claim: Claim, finding: Finding) -> str:
    advantage, unit = finding.advantage, finding.unit
    if advantage is None:
        return f"{claim.better} against {claim.than} ({finding.why})"
    above, below = ("better than", "worse than") if unit == "nats" else ("above", "below")
    side = above if advantage.value >= 0 else below
    low, high = (difference_text(end, unit) for end in (advantage.low, advantage.high))
    margin = f", with a margin of {difference_text(claim.margin, unit)}" if claim.margin else ""
    return (
        f"{claim.better} is {side} {claim.than} by {difference_text(abs(advantage.value), unit)}"
        f" {unit} on {finding.name}"
        f" (95 % interval {low} to {high}, {_seeds(advantage)}{margin})"
    )


def _seeds(advantage: Estimate) -> str:
    pairs = f"{advantage.seeds} pairs of seeds"
    return pairs if advantage.paired else f"{advantage.seeds} runs, not paired"


def difference_text(value: float, unit: str, *, sign: bool = False) -> str:
    """A difference in its unit, with a true minus sign; zero has no sign."""
    text = f"{value:+.{3 if unit == 'nats' else 2}f}"
    if float(text) == 0:
        return text[1:]
    return text.replace("-", "−") if sign or value < 0 else text[1:]


def _findings(judgement: Judgement) -> PageTable:
    """A row for each measure, and for their mean."""
    means = [one for one in judgement.decisive if one not in judgement.measures]
    p_values = [*judgement.p_values, *(None for _ in means)]
    findings = [*judgement.measures, *means]
    rows = [_row(finding, p) for finding, p in zip(findings, p_values, strict=True)]
    notes = []
    if any(finding.unit == "nats" for finding in judgement.measures):
        notes.append("For a loss, lower is an advantage.")
    if len(judgement.measures) > 1:
        verdict = "of their mean" if len(judgement.decisive) == 1 else "on which all means agree"
        notes.append(
            f"p is corrected by Holm's method for {len(judgement.measures)} measures; the verdict"
            f" is the one {verdict}."
        )
    columns = ["on", "advantage", "95 % from", "to", "unit", "seeds", "p, Holm", "verdict"]
    return PageTable(columns, rows, " ".join([*notes, _power(judgement.decisive)]).strip())


def _row(finding: Finding, p: float | None) -> list[TableCell]:
    name, unit, advantage = finding.name, finding.unit, finding.advantage
    verdict = _signed(finding.verdict)
    if advantage is None:
        return [name, GAP, GAP, GAP, unit, GAP, GAP, verdict]
    seeds = f"{advantage.seeds} pairs" if advantage.paired else f"{advantage.seeds}, by Welch"
    return [
        name,
        NumberCell(difference_text(advantage.value, unit, sign=True), advantage.value),
        NumberCell(difference_text(advantage.low, unit), advantage.low),
        NumberCell(difference_text(advantage.high, unit), advantage.high),
        unit,
        seeds,
        GAP if p is None else NumberCell("<0.001" if p < 0.001 else f"{p:.3f}", p),
        verdict,
    ]


def _power(findings: Sequence[Finding]) -> str:
    """The minimum detectable effect of each finding."""
    effects = [
        f"{difference_text(one.advantage.detectable, one.unit)} {one.unit} on {one.name}"
        for one in findings
        if one.advantage is not None
    ]
    if not effects:
        return ""
    return (
        "With this number of seeds and this variance, a true difference of about"
        f" {listed(effects, conjunction='and')} would be detected with 80 % power."
    )


def _forest(judgement: Judgement) -> Iterator[Part]:
    """Advantages with their intervals about zero, a figure for each unit."""
    claim = judgement.claim
    means = [one for one in judgement.decisive if one not in judgement.measures]
    for unit in dict.fromkeys(finding.unit for finding in judgement.measures):
        rows = [
            DotRow(one.name, [found.value], found.low, found.high, COLOURS[one.verdict])
            for one in (*judgement.measures, *means)
            if one.unit == unit and (found := one.advantage) is not None
        ]
        if rows:
            margin = f"; the margin is −{difference_text(claim.margin, unit)}"
            across = f"advantage of {claim.better} over {claim.than}, in {unit}"
            across += margin if claim.margin else ""
            marks = [0.0, *([-claim.margin] if claim.margin else [])]
            yield ("figure", figures.dots(rows, across=across, marks=marks))


def _signed(verdict: str) -> str:
    return f"{SIGNS[verdict]} {verdict}"

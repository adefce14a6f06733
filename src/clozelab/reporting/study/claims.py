"""The claims of a study and their verdicts: each in words, in a table and in a figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clozelab.nearest import counted, listed
from clozelab.reporting import figures
from clozelab.reporting.document import GAP, NumberCell, PageTable, Part, TableCell, number
from clozelab.reporting.figures import DotRow
from clozelab.statistics import POWER
from clozelab.studies.records import StudyRecord
from clozelab.studies.spec import Claim
from clozelab.studies.verdicts import Finding, Judgement

COLOURS = {"confirmed": 0, "refuted": 1, "equal": 3, "undecided": 7}  # also for colour-blind
SIGNS = {"confirmed": "✓", "refuted": "✗", "equal": "=", "undecided": "?", "not tested": "–"}


def parts(
    judgements: Sequence[Judgement], pairs: Sequence[Judgement], record: StudyRecord
) -> Iterator[Part]:
    """Each claim with its verdict, its numbers and a figure of them; then the A/A pairs."""
    rows: list[list[TableCell]]
    if len(judgements) > 1:
        powers = record.plan.get("power", {})  # as stated before it was run
        rows = [
            [
                *(one.claim.judged, signed(one), _p_cell(one.p), _p_cell(one.p_equal)),
                _power_cell(powers.get(one.claim.comparison)),
            ]
            for one in judgements
        ]
        note = (
            f"{_correction(judgements)}Power: the chance, by what was known before the study was"
            " run, that a claim is confirmed where the true effect is the one named."
        )
        yield PageTable(["claim", "verdict", "p", "p, equal", "power before"], rows, note)
    for judgement in judgements:
        claim = judgement.claim
        yield ("heading", f"{signed(judgement)}: {claim.better} against {claim.against}")
        after = " (Exploratory: stated after results were seen.)" if claim.exploratory else ""
        yield f"“{claim.judged}”{after}"
        yield sentence(judgement, record)
        yield _findings_table(judgement)
        yield from _forest_plots(judgement)
    if pairs:
        yield ("heading", "The same variant twice (A/A)")
        compared = [(one.claim, one.measures[0]) for one in pairs]
        rows = [[f"{claim.better} − {claim.against}", *_row(one)] for claim, one in compared]
        note = "These differ by chance alone: a verdict here would be a false one."
        yield PageTable(["pair", *_COLUMNS], rows, note)


def _correction(judgements: Sequence[Judgement]) -> str:
    """For how many claims the p-values are corrected: those that were tested."""
    late = [one.claim.exploratory for one in judgements if one.p is not None]
    numbers = {"claim": late.count(False), "exploratory claim": late.count(True)}
    counts = [counted(number, noun) for noun, number in numbers.items() if number]
    if not counts:
        return ""
    both = f"{counts[0]}, and separately for {counts[-1]}," if counts[1:] else counts[0]
    return (
        f"p of a difference and of equality, corrected for {both} by the method of Benjamini and"
        " Hochberg; these decide. "
    )


def sentence(judgement: Judgement, record: StudyRecord) -> str:
    """A verdict in one sentence: the difference, its size and its interval."""
    # Without results the reason is the same for all measures.
    clauses = dict.fromkeys(_clause(judgement.claim, one) for one in judgement.decisive)
    word = words(judgement).capitalize()
    return f"{word} {scope(record)}: {'; '.join(clauses)}."


def scope(record: StudyRecord) -> str:
    """How far a verdict holds."""
    return "at this scale" if record.ended else "so far"


def words(judgement: Judgement) -> str:
    """The verdict in words, with the delta of equality."""
    if judgement.verdict != "equal":
        return judgement.verdict
    unit = judgement.decisive[0].unit
    return f"equal within {difference_text(judgement.claim.delta or 0.0, unit)} {unit}"


def _clause(claim: Claim, finding: Finding) -> str:
    advantage, unit = finding.advantage, finding.unit
    if advantage is None:
        return f"{claim.better} against {claim.against} ({finding.why})"
    plain = unit == "points" and not finding.lower
    above, below = ("above", "below") if plain else ("better than", "worse than")
    side = above if advantage.value >= 0 else below
    low, high = (difference_text(end, unit) for end in (advantage.low, advantage.high))
    more = f", with a margin of {difference_text(claim.margin, unit)}" if claim.margin else ""
    if claim.delta is not None:
        more += f", where less than {difference_text(claim.delta, unit)} counts as none"
    runs = "pairs of seeds" if advantage.paired else "runs"
    other = f"{claim.ratio:g} × {claim.against}" if claim.ratio != 1 else claim.against
    return (
        f"{claim.better} is {side} {other} by {difference_text(abs(advantage.value), unit)}"
        f" {unit} on {finding.name}"
        f" (95 % interval {low} to {high}, {advantage.seeds} {runs}{more})"
    )


def difference_text(value: float, unit: str, *, sign: bool = False) -> str:
    """A difference in its unit, with a true minus sign; zero has no sign."""
    text = f"{value:+.{3 if unit == 'nats' else 2}f}"
    if float(text) == 0:
        return text[1:]
    return text.replace("-", "−") if sign or value < 0 else text[1:]


def interval_text(value: float, half: float, unit: str) -> str:
    """A difference with half the width of its interval."""
    return f"{difference_text(value, unit, sign=True)} ± {difference_text(half, unit)}"


def p_text(p: float | None) -> str:
    """A p-value in three digits; a gap where there is none."""
    return GAP if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


_COLUMNS = ("on", "advantage", "95 % from", "to", "unit", "seeds", "error", "p", "verdict")


def _findings_table(judgement: Judgement) -> PageTable:
    """A row for each measure, and for their mean."""
    means = [one for one in judgement.decisive if one not in judgement.measures]
    rows = [_row(finding) for finding in (*judgement.measures, *means)]
    notes = []
    if lower := [finding.name for finding in judgement.measures if finding.lower]:
        notes.append(f"Lower is an advantage on {listed(lower, conjunction='and')}.")
    if len(judgement.measures) > 1:
        verdict = "of their mean" if len(judgement.decisive) == 1 else "on which all means agree"
        notes.append(
            f"p of a single measure is corrected for {len(judgement.measures)} of them (Holm); the"
            f" verdict is the one {verdict}, by the p that is corrected over all claims."
        )
    return PageTable([*_COLUMNS], rows, " ".join([*notes, _power(judgement.decisive)]).strip())


def _row(finding: Finding) -> list[TableCell]:
    name, unit, advantage = finding.name, finding.unit, finding.advantage
    verdict = f"{SIGNS[finding.verdict]} {finding.verdict}"
    if advantage is None:
        return [name, GAP, GAP, GAP, unit, GAP, GAP, GAP, verdict]
    return [
        name,
        NumberCell(difference_text(advantage.value, unit, sign=True), advantage.value),
        NumberCell(difference_text(advantage.low, unit), advantage.low),
        NumberCell(difference_text(advantage.high, unit), advantage.high),
        unit,
        f"{advantage.seeds} pairs" if advantage.paired else number(advantage.seeds, "d"),
        advantage.method,
        _p_cell(finding.p),
        verdict,
    ]


def _p_cell(p: float | None) -> TableCell:
    return GAP if p is None else NumberCell(p_text(p), p)


def _power_cell(power: Mapping[str, Any] | None) -> TableCell:
    """A claim's power before the study was run, at the paper's effect or at a detectable one."""
    if power is None or power["detectable"] is None:
        return GAP
    share, effect = power["power"], power["effect"]
    if share is None:
        share, effect = POWER, max(power["detectable"], 0.0)
    size = difference_text(effect, power["unit"], sign=True)
    return f"{100 * share:.0f} % at {size} {power['unit']}"


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
        "With these seeds and this error, a true difference of about"
        f" {listed(effects, conjunction='and')} would be detected with 80 % power."
    )


def _forest_plots(judgement: Judgement) -> Iterator[Part]:
    """Yield a forest plot of the advantages for each unit."""
    claim = judgement.claim
    means = [one for one in judgement.decisive if one not in judgement.measures]
    for unit in dict.fromkeys(finding.unit for finding in judgement.measures):
        rows = [
            DotRow(one.name, [advantage.value], advantage.low, advantage.high, COLOURS[one.verdict])
            for one in (*judgement.measures, *means)
            if one.unit == unit and (advantage := one.advantage) is not None
        ]
        if rows:
            across, marks = f"advantage of {claim.better} over {claim.against}, in {unit}", [0.0]
            if claim.margin:
                across += f"; the margin is −{difference_text(claim.margin, unit)}"
                marks.append(-claim.margin)
            if claim.delta is not None:
                across += f"; within ± {difference_text(claim.delta, unit)} they count as equal"
                marks += [-claim.delta, claim.delta]
            yield ("figure", figures.dots(rows, across=across, marks=marks))


def signed(judgement: Judgement) -> str:
    """The verdict in words, after its sign."""
    return f"{SIGNS[judgement.verdict]} {words(judgement)}"

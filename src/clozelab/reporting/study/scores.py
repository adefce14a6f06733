"""Our table beside the paper's. A cell that is missing leaves a gap, never a wrong number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from clozelab.reporting.document import GAP, Cell, Part, Table, listed
from clozelab.reporting.study.cells import Evidence, is_loss, label, unit
from clozelab.reporting.study.claims import form
from clozelab.statistics import difference, mean
from clozelab.studies.spec import Variant

# Ours and the paper's, of a variant and a measure; the most seeds that any measure has.
Cells = Callable[[Evidence, Variant, str, int], tuple[Cell, Cell]]


def tables(evidence: Evidence) -> Iterator[Part]:
    """Means with their intervals, and differences to the first variant, the paper's beside ours."""
    measures, first = evidence.measures(), evidence.variants[0]
    known = {name for one in evidence.variants for name in one.paper}
    yield _table(evidence, measures, _means, _beside(evidence, known - {*measures}))
    # What the first has not, such as a head for pairs, none differs in from it.
    measures = [measure for measure in measures if evidence.of(first.name, measure)]
    if len(evidence.variants) > 1 and measures:
        yield ("heading", f"Differences to {first.name}")
        beside = "Seed by seed where both have two seeds or more in common, else by Welch's method."
        yield _table(evidence, measures, _differences, beside)


def _table(evidence: Evidence, measures: Sequence[str], cells: Cells, note: str) -> Table:
    """A row for each variant, and for each measure a column of ours and, if it has one, theirs."""
    known = {name for one in evidence.variants for name in one.paper}
    columns: list[str] = ["variant", "seeds"]
    soft: list[int] = []
    for measure in measures:
        columns.append(label(measure))
        if measure in known:
            soft.append(len(columns))
            columns.append("paper")
    rows = []
    for one in evidence.variants:
        most = max((len(evidence.of(one.name, name)) for name in evidence.measures()), default=0)
        row = [Cell(one.name), Cell(f"{most} of {evidence.study.seeds}", float(most))]
        for measure in measures:
            ours, theirs = cells(evidence, one, measure, most)
            row += [ours, theirs] if measure in known else [ours]
        rows.append(row)
    return Table(columns, rows, note, frozenset(soft))


def _means(evidence: Evidence, one: Variant, measure: str, most: int) -> tuple[Cell, Cell]:
    values = [*evidence.of(one.name, measure).values()]
    return _mean(values, measure, most), _paper(one.paper.get(measure), measure)


def _differences(evidence: Evidence, one: Variant, measure: str, most: int) -> tuple[Cell, Cell]:
    first = evidence.variants[0]
    if one is first:
        return GAP, GAP
    ours, theirs = evidence.of(one.name, measure), evidence.of(first.name, measure)
    between = _minus(one.paper.get(measure), first.paper.get(measure))
    return _difference(ours, theirs, measure), _paper(between, measure, sign="+")


def _beside(evidence: Evidence, lacking: set[str]) -> str:
    """What a reader of the table should know."""
    notes = []
    if lacking:
        names = listed(map(label, sorted(lacking)))
        notes.append(f"{evidence.study.paper.name} also has {names}, not run here.")
    if evidence.base_masks:
        notes.append("The loss on masked tokens is under the same masks for all: the base's.")
    cut = any(key.startswith("tokenizer.") for key in evidence.changed())
    if any(map(is_loss, evidence.measures())) and (cut or any(v.data for v in evidence.variants)):
        notes.append("Losses are of a token: those of other tokenizers or texts do not compare.")
    return " ".join(notes)


def _mean(values: Sequence[float], measure: str, most: int) -> Cell:
    if not values:
        return GAP
    digits = 3 if is_loss(measure) else 1
    sure = mean(values)
    text = f"{fmean(values):.{digits}f}" + (f" ± {sure.half:.{digits}f}" if sure else "")
    fewer = f" ({len(values)} of {most})" if len(values) < most else ""
    return Cell(text + fewer, fmean(values))


def _difference(ours: dict[int, float], theirs: dict[int, float], measure: str) -> Cell:
    found, what = difference(ours, theirs), unit(measure)
    if found is not None:
        text = f"{form(found.value, what, sign=True)} ± {form(found.half, what)}"
        return Cell(text, found.value)
    both = [*(ours.keys() & theirs.keys())]
    if not both:
        return GAP
    value = fmean(ours[seed] - theirs[seed] for seed in both)
    return Cell(form(value, what, sign=True), value)


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _paper(value: float | None, measure: str, *, sign: str = "") -> Cell:
    if value is None:
        return GAP
    digits = 3 if is_loss(measure) else 1
    return Cell(f"{value:{sign}.{digits}f}".replace("-", "−"), value)

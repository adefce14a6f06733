"""Our table beside the paper's; what was not measured is a dash."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from clozelab.nearest import listed
from clozelab.reporting.document import GAP, NumberCell, PageTable, Part, TableCell
from clozelab.reporting.study.claims import difference_text, interval_text
from clozelab.statistics import mean
from clozelab.studies.records import StudyRecord
from clozelab.studies.scores import decimals, is_loss, label, unit
from clozelab.studies.spec import Variant
from clozelab.studies.verdicts import advantage

# Our cell and the paper's for a variant and a measure, given the largest number of seeds.
Columns = Callable[[StudyRecord, Variant, str, int], tuple[TableCell, TableCell]]


def parts(record: StudyRecord) -> Iterator[Part]:
    """Means with their intervals, and differences from the first variant."""
    measures, first = record.measures(), record.variants[0]
    table = _table(record, measures, _mean_cells, _note(record, _in_paper(record) - {*measures}))
    if record.constant.keys() & {*measures}:
        table = replace(table, rows=[*table.rows, _constant_row(record, measures)])
    yield table
    # Measures that the first variant lacks, such as a pair head's, have no difference.
    measures = [measure for measure in measures if record.scores(first.name, measure)]
    if len(record.variants) > 1 and measures:
        yield ("heading", f"Differences from {first.name}")
        yield _table(record, measures, _differences, "± as in the claims below, not corrected.")


def _table(record: StudyRecord, measures: Sequence[str], cells: Columns, note: str) -> PageTable:
    """A row for each variant; for each measure a column of ours and, if known, of the paper."""
    in_paper = _in_paper(record)
    columns = ["variant", "seeds"]
    for measure in measures:
        columns += [label(measure), "paper"] if measure in in_paper else [label(measure)]
    rows = []
    for variant in record.variants:
        counts = [len(record.scores(variant.name, name)) for name in record.measures()]
        seeds = max(counts, default=0)
        row: list[TableCell] = [variant.name]
        row.append(NumberCell(f"{seeds} of {record.study.seeds}", float(seeds)))
        for measure in measures:
            ours, paper = cells(record, variant, measure, seeds)
            row += [ours, paper] if measure in in_paper else [ours]
        rows.append(row)
    soft = frozenset(at for at, column in enumerate(columns) if column == "paper")
    return PageTable(columns, rows, note, soft)


def _in_paper(record: StudyRecord) -> set[str]:
    """The scores that the paper has of some variant."""
    return {name for variant in record.variants for name in variant.paper}


def _constant_row(record: StudyRecord, measures: Sequence[str]) -> list[TableCell]:
    """The row of a constant answer."""
    in_paper = _in_paper(record)
    row: list[TableCell] = ["a constant answer", GAP]
    for measure in measures:
        score = record.constant.get(measure)
        row.append(GAP if score is None else NumberCell(f"{score:.{decimals(measure)}f}", score))
        row += [GAP] if measure in in_paper else []
    return row


def _mean_cells(
    record: StudyRecord, variant: Variant, measure: str, seeds: int
) -> tuple[TableCell, TableCell]:
    paper = _paper_cell(variant.paper.get(measure), measure)
    values = [*record.scores(variant.name, measure).values()]
    if not values or _untrained(record, variant, measure):
        return GAP, paper
    digits = decimals(measure)
    estimate = mean(values)
    interval = f" ± {estimate.half:.{digits}f}" if estimate else ""
    fewer = f" ({len(values)} of {seeds})" if len(values) < seeds else ""
    ours = NumberCell(f"{fmean(values):.{digits}f}{interval}{fewer}", fmean(values))
    return ours, paper


def _untrained(record: StudyRecord, variant: Variant, measure: str) -> bool:
    """Whether a measure is of a head that the variant does not train, and so meaningless."""
    kind, _, name = measure.partition(".")
    runs = (run for (named, _), run in record.runs.items() if named == variant.name)
    return kind in ("held_out", "pair") and any(name in run.untrained for run in runs)


def _differences(
    record: StudyRecord, variant: Variant, measure: str, seeds: int
) -> tuple[TableCell, TableCell]:
    first = record.variants[0]
    if variant is first or any(_untrained(record, one, measure) for one in (variant, first)):
        return GAP, GAP
    a, b = variant.paper.get(measure), first.paper.get(measure)
    in_paper = None if a is None or b is None else a - b
    return _difference_cell(record, variant.name, measure), _paper_cell(in_paper, measure, sign="+")


def _note(record: StudyRecord, missing: set[str]) -> str:
    """The notes below the table."""
    notes = []
    if missing:
        names = listed(map(label, sorted(missing)), conjunction="and")
        name = record.study.paper.name if record.study.paper else "The paper"
        notes.append(f"{name} also has {names}, not run here.")
    if any(_untrained(record, v, m) for v in record.variants for m in record.measures()):
        notes.append("A head that a variant does not train is not shown.")
    if record.base_masks:
        notes.append("The masked-LM loss of all variants is under the same masks, the base's.")
    tokenizers = any(key.startswith("tokenizer.") for key in record.changed())
    corpora = any(variant.data for variant in record.variants)
    if any(map(is_loss, record.measures())) and (tokenizers or corpora):
        notes.append(
            "A loss is per token: losses under different tokenizers or on different text cannot be"
            " compared."
        )
    return " ".join(notes)


def _difference_cell(record: StudyRecord, variant: str, measure: str) -> TableCell:
    """The mean of a variant minus that of the first; of a loss, negative is better."""
    first, kind = record.variants[0].name, unit(measure)
    estimate, theirs = advantage(record, variant, first, measure), record.scores(first, measure)
    sign = -1 if is_loss(measure) else 1
    if estimate is not None:
        value = sign * estimate.value
        return NumberCell(interval_text(value, estimate.half, kind), value)
    ours = record.scores(variant, measure)
    common = ours.keys() & theirs.keys()
    if not common:
        return GAP
    value = fmean(ours[seed] - theirs[seed] for seed in common)
    return NumberCell(difference_text(value, kind, sign=True), value)


def _paper_cell(value: float | None, measure: str, *, sign: str = "") -> TableCell:
    if value is None:
        return GAP
    digits = decimals(measure)
    return NumberCell(f"{value:{sign}.{digits}f}".replace("-", "−"), value)

"""The page of an adaptation: gain and forgetting in one figure, and all measures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from clozelab.reporting import page as pages
from clozelab.reporting.charts import Chart
from clozelab.reporting.document import NumberCell, Page, PageTable, Part, Section, TableCell
from clozelab.reporting.figures import Line
from clozelab.runs.adaptation import AdaptationRecord
from clozelab.runs.record import Moment, RunRecord

_NAMES = {"held_out": "new text", "general": "general text"}


def page(adapted: AdaptationRecord, run: RunRecord) -> Page:
    """The page: the results of the adaptation, then those of its run."""
    opening = "Losses are in nats, on held-out text with the same masks every time."
    sections = [Section("Before and after", [*_parts(adapted, run)]), *pages.sections([run], [])]
    title = f"{run.name}: {Path(adapted.texts['held_out']).name}"
    return Page(title, opening, sections, lead=adapted.verdict)


def chart(adapted: AdaptationRecord, clock: Sequence[Moment] = ()) -> Chart:
    """The held-out losses of both texts over the steps."""
    lines = [
        Line(f"{_NAMES[of]}: {Path(adapted.texts[of]).name}", points, colour, clock=clock)
        for colour, (of, points) in enumerate(adapted.losses.items())
    ]
    base = "steps" if clock else ""
    return Chart(
        "Loss on new and on general text", lines, "step", "held-out loss, nats", True, base
    )


def _parts(adapted: AdaptationRecord, run: RunRecord) -> Iterator[Part]:
    yield chart(adapted, run.clock)
    rows: list[list[TableCell]] = []
    for row in adapted.rows():
        name, *texts = row.written()
        values = (row.before, row.after, row.after - row.before)
        rows.append([name, *(NumberCell(t, v) for t, v in zip(texts, values, strict=True))])
    yield PageTable(["measure", "before", "after", "change"], rows)
    if adapted.changes:
        yield ("heading", "What it changed in the model's recipe")
        yield ("code", "\n".join(adapted.changes))

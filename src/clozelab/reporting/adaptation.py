"""The page of an adaptation: gain and forgetting on one picture, and all that was measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clozelab.reporting import figures
from clozelab.reporting import page as pages
from clozelab.reporting.document import NumberCell, Page, PageTable, Part, Section, TableCell
from clozelab.reporting.figures import Line
from clozelab.runs.adaptation import AdaptationRecord
from clozelab.runs.record import RunRecord

_NAMES = {"held_out": "new text", "general": "general text"}


def page(adapted: AdaptationRecord, run: RunRecord) -> Page:
    """What came out, and below it the run as any other."""
    opening = "Losses are in nats, on held-out text with the same masks every time."
    sections = [Section("Before and after", [*_parts(adapted)]), *pages.sections([run], [])]
    title = f"{run.name}: {Path(adapted.texts['held_out']).name}"
    return Page(title, opening, sections, lead=adapted.verdict)


def picture(adapted: AdaptationRecord) -> str:
    """The held-out losses of both texts over the steps."""
    lines = [
        Line(f"{_NAMES[of]}: {Path(adapted.texts[of]).name}", points, colour)
        for colour, (of, points) in enumerate(adapted.losses.items())
    ]
    return figures.curves(lines, across="step", up="held-out loss, nats", whole=True)


def _parts(adapted: AdaptationRecord) -> Iterator[Part]:
    yield ("figure", picture(adapted))
    rows: list[list[TableCell]] = []
    for row in adapted.rows():
        name, *texts = row.written()
        values = (row.before, row.after, row.after - row.before)
        rows.append([name, *(NumberCell(t, v) for t, v in zip(texts, values, strict=True))])
    yield PageTable(["measure", "before", "after", "change"], rows)
    if adapted.changes:
        yield ("heading", "What it changed in the model's recipe")
        yield ("code", "\n".join(adapted.changes))

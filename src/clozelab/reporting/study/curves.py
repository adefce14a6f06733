"""Loss over tokens for each variant: the mean over its seeds, with a band from min to max."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from clozelab.reporting.charts import Chart
from clozelab.reporting.document import Part
from clozelab.reporting.figures import Line, smooth
from clozelab.reporting.run_curves import NUMBERS, comparable, group_titles, words
from clozelab.runs.record import Points, RunRecord
from clozelab.studies.records import StudyRecord


def parts(record: StudyRecord) -> Iterator[Part]:
    """A figure for each objective and tokenizer; each run under way is a faint line."""
    runs = record.runs.values()
    names = dict.fromkeys(name for run in runs for name in (*run.held_out, *run.train))
    for name in names:
        trained = [run for run in runs if name not in run.untrained]
        held_out = any(len(run.held_out.get(name, ())) > 1 for run in trained)
        where = "on held-out text" if held_out else "in training"
        groups = comparable(run for run in trained if name in run.held_out or name in run.train)
        for title, group in zip(group_titles(groups), groups, strict=True):
            if lines := [*_lines(record, name, group, held_out=held_out)]:
                heading = f"{words(name)}: loss {where}, in nats"
                yield Chart(heading, lines, "tokens seen", "loss", base="tokens", note=title)
    yield from _number_curves(record)
    if names:
        yield ("note", _note(record))


def _lines(
    record: StudyRecord, name: str, runs: Sequence[RunRecord], *, held_out: bool
) -> Iterator[Line]:
    done = {(cell.variant, cell.seed) for cell in record.done}
    for colour, variant in enumerate(record.variants):
        complete: list[RunRecord] = []
        for cell, run in record.runs.items():
            if cell[0] != variant.name or not any(run is one for one in runs):
                continue
            if not (points := _points(run, name, held_out=held_out)):
                continue
            if cell in done:
                complete.append(run)
            else:
                yield Line(variant.name, points, colour, faint=True, clock=run.clock)
        if complete:
            mean, band = mean_and_band([_points(run, name, held_out=held_out) for run in complete])
            shown = band if len(complete) > 1 else ()
            yield Line(variant.name, mean, colour, band=shown, clock=complete[0].clock)


def _points(run: RunRecord, name: str, *, held_out: bool) -> Points:
    return run.held_out.get(name, []) if held_out else smooth(run.train.get(name, []))


def _number_curves(record: StudyRecord) -> Iterator[Chart]:
    """Learning rate and gradient norm of each variant's first seed."""
    for name, (title, up, noisy) in NUMBERS.items():
        lines = []
        for colour, variant in enumerate(record.variants):
            runs = [run for (named, _), run in record.runs.items() if named == variant.name]
            if runs and runs[0].numbers.get(name):
                points, clock = runs[0].numbers[name], runs[0].clock
                lines.append(Line(variant.name, points, colour, clock=clock, noisy=noisy))
        if lines and name != "tokens_a_second":
            whole, note = name == "learning_rate", "of each variant's first seed"
            yield Chart(title, lines, "tokens seen", up, whole=whole, base="tokens", note=note)


def mean_and_band(curves: Sequence[Points]) -> tuple[Points, list[tuple[float, float, float]]]:
    """Mean, lowest and highest of some curves, over the range that all of them have."""
    start, end = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    # Seeds see different text, so their tokens differ at a step: the ends of the common range
    # need not be points of the first curve.
    inside = {x for x, _ in curves[0] if start <= x <= end}
    common = sorted(inside | {min(start, end), end})
    values = np.array([np.interp(common, *np.transpose(curve)) for curve in curves])
    mean, low, high = (row.tolist() for row in (values.mean(0), values.min(0), values.max(0)))
    return list(zip(common, mean, strict=True)), list(zip(common, low, high, strict=True))


def _note(record: StudyRecord) -> str:
    """How to read the figures."""
    note = "A line is the mean over seeds; its band goes from the lowest seed to the highest."
    if record.runs.keys() - {(cell.variant, cell.seed) for cell in record.done}:
        note += " Faint lines are cells that are not done."
    # Copies and redrawn pairs only matter between epochs; held-out text has one.
    changed = record.changed() - {"corruption.copies", "corruption.redraw"}
    if {key.split(".")[0] for key in changed} & {"masking", "corruption", "blocks", "tokenizer"}:
        note += (
            " Variants that differ in masking or input format are evaluated on their own masks and"
            " blocks: a lower line may be an easier task as well as a better model."
        )
    return note

"""A study in the overview: its cells as they fill, its tables so far, and its verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clozelab import files
from clozelab.reporting.charts import Chart
from clozelab.reporting.document import PageTable
from clozelab.reporting.study import claims, curves, tables
from clozelab.runs.directory import CELLS
from clozelab.serving.folder_state import activity
from clozelab.studies.records import StudyRecord, read
from clozelab.studies.verdicts import judge


def study_row(folder: Path) -> dict[str, Any]:
    """The state of a study, with the tables and charts of its page."""
    record = read(folder)
    parts = [*tables.parts(record)] if record.cells else []
    judged = judge(record) if record.cells else []
    heads = ["Means", f"Differences from {record.variants[0].name}"]
    shown = [part for part in parts if isinstance(part, PageTable)]
    return {
        "title": record.study.title,
        "question": record.study.question,
        "state": _study_state(record),
        "planned": len(record.planned),
        "done": len(record.done),
        "failed": len(record.failed),
        "variants": [_variant_json(record, one.name, one.says) for one in record.variants],
        "verdicts": [
            {
                "says": one.claim.judged,
                "verdict": claims.signed(one),
                "sentence": claims.sentence(one, record),
            }
            for one in judged
        ],
        "tables": [*zip(heads, shown, strict=False)],
        "charts": [part for part in curves.parts(record) if isinstance(part, Chart)],
    }


def _study_state(record: StudyRecord) -> str:
    if record.ended:
        return "finished"
    return "running" if files.is_locked(record.folder) else "stopped"


def _variant_json(record: StudyRecord, name: str, says: str) -> dict[str, Any]:
    """A variant and its cells, seed by seed."""
    seeds = sorted(cell.seed for cell in record.planned if cell.variant == name)
    return {"name": name, "says": says, "cells": [_cell_json(record, name, seed) for seed in seeds]}


def _cell_json(record: StudyRecord, variant: str, seed: int) -> dict[str, Any]:
    """How far a cell is: waiting, running, stopped, done or failed."""
    for cell in record.cells:
        if (cell.variant, cell.seed) == (variant, seed):
            state = "failed" if cell.failed is not None else "done"
            return {"seed": seed, "state": state, "share": 1.0, "why": cell.failed}
    run = record.runs.get((variant, seed))
    if run is None:
        return {"seed": seed, "state": "waiting", "share": 0.0}
    folder = record.folder / CELLS / variant / f"seed-{seed}"
    state = activity(folder, done=False)
    if state == "finished":  # pretraining is done, its fine-tunings are not
        state = "running" if files.is_locked(record.folder) else "stopped"
    share = min(run.steps / max(run.recipe.schedule.total, 1), 1.0)
    return {"seed": seed, "state": state, "share": share}

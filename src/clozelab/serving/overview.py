"""The overview of runs, fine-tunings and studies from their folders, while they are written.

It only reads. A folder may vanish, and a line may be half written: then a row says so, or lacks
that line. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clozelab import files
from clozelab.diagnosis.examine import examine
from clozelab.diagnosis.reading import read_run as read_case
from clozelab.errors import UserError
from clozelab.reporting import page, run_curves
from clozelab.reporting.charts import charts_data
from clozelab.reporting.document import PageTable
from clozelab.reporting.records import DAMAGED, finetunings, named
from clozelab.runs.directory import PLAN, STUDY, Run, json_or_empty
from clozelab.runs.record import Moment, RunRecord, read_run
from clozelab.serving.folder_state import Readings, activity, finished_tunings
from clozelab.serving.study_overview import study_row

_RECENT = 0.1  # share of a log's lines that tell the current speed
_readings = Readings()
Json = dict[str, Any]


def overview(folders: Sequence[Path]) -> Json:
    """The overview of some folders, as JSON values."""
    records: list[RunRecord] = []
    rows: dict[str, list[Json]] = {"runs": [], "tunings": [], "studies": []}
    for folder, name in named(folders):
        try:
            if (folder / STUDY).is_file():
                rows["studies"].append(_study_row(folder, name))
            elif (folder / PLAN).is_file():
                rows["tunings"].append({"name": name, **_readings.of(folder, _tuning_row)})
            else:
                record = replace(_readings.of(folder, _record), name=name)
                rows["runs"].append(_run_row(record, number=len(records)))
                records.append(record)
        except (UserError, OSError, *DAMAGED) as error:
            problem = _why_unreadable(folder, error)
            rows["runs"].append({"name": name, "state": "unreadable", "error": problem})
    _readings.forget_others(folders)
    differences = page.differences_of(records)
    return {
        **rows,
        "comparable": len(run_curves.comparable(records)) < 2,  # their losses
        "differences": _table_json(differences) if differences.rows else None,
        **charts_data(run_curves.charts(records)),
    }


def _record(folder: Path) -> RunRecord:
    return read_run(Run.open(folder), folder.name)


def _run_row(run: RunRecord, *, number: int) -> Json:
    """The progress, speed and losses of a run."""
    total, pace = run.recipe.schedule.total, _seconds_a_step(run.clock)
    state = activity(run.folder, done=run.done)
    speeds = run.numbers.get("tokens_a_second", [])
    names = dict.fromkeys((*run.held_out, *run.train))
    return {
        "name": run.name,
        "colour": number,  # of its lines
        "state": state,
        "recipe": run.recipe.name,
        "step": run.steps,
        "steps": total,
        "tokens": run.tokens,
        "seconds": run.seconds,
        "tokens_a_second": speeds[-1][1] if speeds else None,
        "seconds_left": (total - run.steps) * pace if state == "running" and pace else None,
        "limited_by": run.limited_by,
        "losses": {name: _last_losses(run, name) for name in names if name not in run.untrained},
        "probes": run.probed,
        "findings": _readings.of(run.folder, _findings),
    }


def _last_losses(run: RunRecord, name: str) -> Json:
    """The last loss of an objective, on held-out text and in training."""
    last = {"held_out": run.last.get(name, {}).get("loss")}
    if name in run.train:
        last["train"] = run.train[name][-1][1]
    return {where: loss for where, loss in last.items() if loss is not None}


def _seconds_a_step(clock: Sequence[Moment]) -> float | None:
    """The seconds per step, from the last lines of the log."""
    if len(clock) < 2:
        return None
    lines = max(1, int(_RECENT * len(clock)))
    first, last = clock[-1 - lines], clock[-1]
    return (last.seconds - first.seconds) / max(last.step - first.step, 1)


def _findings(folder: Path) -> list[Json]:
    """The doctor's findings from the log alone, without healthy ones."""
    findings = examine(read_case(str(folder), log_only=True)).findings
    return [
        {"level": one.level, "title": one.title, "evidence": one.evidence, "remedy": one.remedy}
        for one in findings
        if one.level != "healthy"
    ]


def _tuning_row(folder: Path) -> Json:
    """The fine-tunings of a model on a task: a table of their scores once they are done."""
    task = json_or_empty(folder / PLAN)["data"]["task"]
    records = [*finetunings(folder, folder.name)]
    if not records:
        state = "running" if files.is_locked(folder) else "stopped"
        return {"task": task, "state": state, "done": len(finished_tunings(folder))}
    scores = next(part for part in page.scores(records) if isinstance(part, PageTable))
    return {"task": task, "state": "finished", "table": _table_json(scores)}


def _study_row(folder: Path, name: str) -> Json:
    row = _readings.of(folder, study_row)
    tables = [{"title": title, **_table_json(content)} for title, content in row["tables"]]
    return {"name": name, **row, "tables": tables, **charts_data(row["charts"])}


def _table_json(content: PageTable) -> Json:
    """A table as JSON; a number has its text and its value."""
    rows = [
        [
            cell if isinstance(cell, str) else {"text": cell.text, "value": cell.value}
            for cell in row
        ]
        for row in content.rows
    ]
    return {"columns": [*content.columns], "rows": rows, "note": content.note}


def _why_unreadable(folder: Path, error: Exception) -> str:
    """A sentence on why a folder cannot be shown."""
    if not folder.exists():
        return "the folder is gone"
    return str(error) if isinstance(error, UserError) else "its records are not whole"

"""Studies in a terminal: those there are, one's plan, and what its cells came to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from clozelab.studies.spec import StudySpec


def table(studies: Iterable[StudySpec]) -> Table:
    """Name, title, whose table it is, and how many variants it has."""
    found = Table(box=None, pad_edge=False)
    for column in ("study", "title", "paper"):
        found.add_column(column)
    found.add_column("variants", justify="right")
    for study in studies:
        paper = f"{study.paper.name}, {study.paper.source}"
        found.add_row(study.name, study.title, paper, str(len(study.variants)))
    return found


def described(study: StudySpec) -> Group:
    """What a study compares, before it is known on which text."""
    lines = Table(box=None, pad_edge=False)
    for column in ("variant", "what it is", "what it changes"):
        lines.add_column(column)
    for variant in study.variants:
        words = [f"recipe {variant.recipe}"] if variant.recipe else []
        words += [f"taught by {variant.teacher}"] if variant.teacher else []
        lines.add_row(variant.name, variant.says, ", ".join([*words, *variant.set]) or "nothing")
    return Group(
        Text(study.title, style="bold"),
        study.question,
        "",
        lines,
        "",
        _cells(study, len(study.variants) * study.seeds),
        "give --data CORPUS, and --budget, to see how long each would train",
    )


def plan(study: StudySpec, told: Mapping[str, Any]) -> Group:
    """What each variant's cells do, and how long all of it should take."""
    lines = Table(box=None, pad_edge=False)
    lines.add_column("variant")
    lines.add_column("what it is")
    for column in ("steps", "tokens", "minutes a cell"):
        lines.add_column(column, justify="right")
    seconds = {cell["variant"]: cell["predicted_seconds"] for cell in told["cells"]}
    for variant in study.variants:
        name = variant.name
        if name in told["cannot"]:
            lines.add_row(name, f"cannot be run: {told['cannot'][name]}", "–", "–", "–")
            continue
        steps = told["steps"][name]
        tokens = steps * told["paces"][name]["tokens_a_step"]
        lines.add_row(
            name, variant.says, f"{steps:,}", f"{tokens / 1e6:,.2f} M", _minutes(seconds[name])
        )
    known = [one["predicted_seconds"] for one in told["cells"]]
    total = None if None in known else sum(known)
    ends = [_cells(study, len(told["cells"])), f"equal {told['equal']} for each cell"]
    ends += [f"about {_minutes(total)} minutes of the device"] if total is not None else []
    return Group(Text(study.title, style="bold"), study.question, "", lines, "", *ends)


def scores(study: StudySpec, result: Mapping[str, Any]) -> Table:
    """The mean of every score over the seeds of each variant, as far as they are done."""
    names = list(dict.fromkeys(name for cell in result["cells"] for name in cell["scores"]))
    found = Table(box=None, pad_edge=False)
    found.add_column("variant")
    for name in names:
        found.add_column(name, justify="right")
    found.add_column("seeds", justify="right")
    for variant in study.variants:
        cells = [one for one in result["cells"] if one["variant"] == variant.name]
        row, most = [], 0 if names else len(cells)
        for name in names:
            values = [one["scores"][name] for one in cells if one["scores"].get(name) is not None]
            digits = 3 if name.startswith("held_out.") else 1
            row.append(f"{fmean(values):.{digits}f}" if values else "–")
            most = max(most, len(values))
        found.add_row(variant.name, *row, str(most))
    return found


def _cells(study: StudySpec, many: int) -> str:
    tasks = ", ".join(study.tasks) or "no task"
    return (
        f"{many} cells: {len(study.variants)} variants × {study.seeds} seeds, each tuned on {tasks}"
    )


def _minutes(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds / 60:,.1f}"

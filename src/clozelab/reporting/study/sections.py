"""The sections of a study's page: answer, tables, claims, curves, cost, changes, reproduction."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from clozelab.nearest import counted, listed
from clozelab.reporting.document import (
    GAP,
    NumberCell,
    Page,
    PageTable,
    Part,
    Section,
    TableCell,
    number,
    three_digits,
)
from clozelab.reporting.page import differences
from clozelab.reporting.study import claims, curves, tables
from clozelab.runs.directory import STUDY
from clozelab.studies.records import StudyRecord, parts_line
from clozelab.studies.verdicts import VERDICTS, Judgement, judge, repeats

_COSTS = {  # by column: the key of a cell's cost, and the unit
    "M parameters": ("parameters", 1e6),
    "steps": ("steps", 1.0),
    "M tokens": ("tokens", 1e6),
    "PFLOP": ("flops", 1e15),
    "minutes": ("seconds", 60.0),
    "minutes of tuning": ("tuning_seconds", 60.0),
}
_MACHINE = ("gpu", "device", "precision", "cpus", "torch", "python", "clozelab", "commit", "data",
            "fingerprint")  # fmt: skip


def page(record: StudyRecord) -> Page:
    """The page of a study, done or under way."""
    judgements = judge(record)
    lead = f"{record.study.question} {_answer(judgements, record)}"
    return Page(record.study.title, _opening(record), [*_sections(record, judgements)], lead)


def _answer(judgements: Sequence[Judgement], record: StudyRecord) -> str:
    """The verdicts in one sentence."""
    if not record.cells:
        return "No cell is done yet."
    if not judgements:
        return "This study has no claim to judge."
    if len(judgements) == 1:
        return claims.sentence(judgements[0], record)
    verdicts = [judgement.verdict for judgement in judgements]
    counts = [f"{verdicts.count(word)} {word}" for word in VERDICTS if word in verdicts]
    result = listed(counts, conjunction="and")
    return f"Of {len(judgements)} claims, {claims.scope(record)}: {result}."


def _sections(record: StudyRecord, judgements: Sequence[Judgement]) -> Iterator[Section]:
    in_paper = any(name in one.paper for one in record.variants for name in record.measures())
    paper = record.study.paper
    beside = f" beside that of {paper.name}" if paper and in_paper else ""
    yield Section(f"Our table{beside}", [*tables.parts(record)])
    pairs = repeats(record)
    if judgements or pairs:
        yield Section("Claims and verdicts", [*claims.parts(judgements, pairs, record)])
    figures = [*curves.parts(record)]
    if figures:
        yield Section("Curves", figures)
    yield Section("Cost", [_cost_table(record)])
    yield Section("What each variant changes", [*_changes(record)])
    if record.failed:
        yield Section("Cells that failed", [_failed_table(record)])
    yield Section("How to reproduce it", [*_reproduction(record)])


def _opening(record: StudyRecord) -> str:
    study, plan = record.study, record.plan
    size = f" at size {plan['size']}" if plan.get("size") else ""
    done = f"{len(record.done)} of {len(record.planned)} cells are done"
    failed = f", {len(record.failed)} failed" if record.failed else ""
    after = f"After {study.paper.source}: " if study.paper else ""
    points = " Scores are on dev sets, in points of 100." if study.tasks else ""
    cells = f"{counted(len(record.variants), 'variant')} × {counted(study.seeds, 'seed')}"
    return (
        f"{after}{cells}{size} with equal {record.equal}. {done}{failed}.{points} ± is half"
        " the 95 % interval of a mean over seeds."
    )


def _cost_table(record: StudyRecord) -> PageTable:
    """The mean cost of each variant's cells."""
    rows = []
    for variant in record.variants:
        cells = [cell for cell in record.done if cell.variant == variant.name]
        row: list[TableCell] = [variant.name, number(len(cells), "d")]
        for key, scale in _COSTS.values():
            costs = [cell.cost[key] / scale for cell in cells if key in cell.cost]
            row.append(three_digits(fmean(costs)) if costs else GAP)
        rows.append(row)
    minutes = sum(cell.minutes for cell in record.cells)
    once = "; shared pretraining counts once" if any(cell.shared for cell in record.cells) else ""
    note = f"Means over the cells of a variant. In all {minutes:,.1f} minutes{once}."
    note = f"{note} {_equality(record)}".strip()
    return PageTable(["variant", "cells done", *_COSTS], rows, note)


def _equality(record: StudyRecord) -> str:
    """How equal the budget of the cells was."""
    key = {"time": "seconds"}.get(record.equal, record.equal)
    shares = {variant.name: variant.share for variant in record.study.variants}
    amounts = [cell.cost[key] / shares[cell.variant] for cell in record.done if cell.cost.get(key)]
    if len(amounts) < 2:
        return ""
    excess = max(amounts) / min(amounts) - 1
    shared = ", scaled by each variant's share" if {*shares.values()} != {1.0} else ""
    return f"Cells have equal {record.equal}{shared}: they differ by at most {100 * excess:.1f} %."


def _changes(record: StudyRecord) -> Iterator[Part]:
    """Yield the base, then each variant in words and setting by setting."""
    study = record.study
    base = f"The base is the recipe {study.recipe}"
    base += f" with {listed(study.set, conjunction='and')}." if study.set else " without changes."
    if study.tasks and study.finetune:
        settings = listed(study.finetune, conjunction="and")
        base += f" Fine-tuning follows the usual protocol with {settings}."
    yield base
    rows = []
    for variant in record.variants:
        changes = [
            *([f"recipe {variant.recipe}"] if variant.recipe else []),
            *variant.set,
            *([f"distilled from {variant.teacher}"] if variant.teacher else []),
            *([f"{variant.share:g} × the {record.equal}"] if variant.share != 1 else []),
            *([f"protocol {variant.protocol}"] if variant.protocol else []),
            *(f"fine-tuning {setting}" for setting in variant.finetune),
        ]
        rows.append([variant.name, variant.says, ", ".join(changes) or "nothing: it is the base"])
    yield PageTable(["variant", "what it is", "what it sets"], rows)
    compared = [(variant.name, record.recipe(variant)) for variant in record.variants]
    if (table := differences(compared)).rows:
        yield ("heading", "Setting by setting")
        yield table


def _failed_table(record: StudyRecord) -> PageTable:
    rows: list[list[TableCell]] = [
        [cell.variant, number(cell.seed, "d"), cell.failed or ""] for cell in record.failed
    ]
    note = "Their scores are missing above. The same command tries them again."
    return PageTable(["variant", "seed", "why"], rows, note)


def _reproduction(record: StudyRecord) -> Iterator[Part]:
    """Yield the command that reproduces the study, and its machine and data."""
    yield ("code", command(record))
    facts = {"seeds": [listed(map(str, _seeds(record)), conjunction="and")]}
    for name in _MACHINE:
        values = (run.machine.get(name) for run in record.runs.values())
        flat = [one for value in values for one in (value if isinstance(value, list) else [value])]
        facts[name] = [*dict.fromkeys(str(one) for one in flat if one is not None)]
    rows = [[name, ", ".join(values)] for name, values in facts.items() if values]
    yield PageTable(["", "as it was run"], rows)
    if parts := record.plan.get("parts"):
        yield f"Merged: {parts_line(parts)}."
        yield PageTable(["part", "commit", "machine", "cells"], [*_parts(record, parts)])


def _parts(record: StudyRecord, parts: Sequence[Mapping[str, Any]]) -> Iterator[list[TableCell]]:
    """Yield a row for each study that this one was merged from, and one for later cells."""
    for part in parts:
        yield [*(part[name] for name in ("folder", "commit", "machine")), _count(part["cells"])]
    merged = {name for part in parts for name in part["cells"]}
    since = [one for one in record.cells if f"{one.variant}/seed-{one.seed}" not in merged]
    if since:
        yield ["run since", "", "", _count(since)]


def _count(cells: Sequence[Any]) -> NumberCell:
    return number(len(cells), "d")


def _seeds(record: StudyRecord) -> list[int]:
    return sorted({cell.seed for cell in record.planned})


def command(record: StudyRecord) -> str:
    """The command that runs the study again from its file."""
    plan = record.plan
    file, here = (record.folder / STUDY).resolve(), Path.cwd()
    place = file.relative_to(here) if file.is_relative_to(here) else record.folder / STUDY
    words = ["clozelab", "study", str(place)]
    data = plan.get("data") or ["CORPUS"]
    for corpus in [data] if isinstance(data, str) else data:
        words += ["--data", str(corpus)]
    for name in ("size", "budget", "task_data"):
        if plan.get(name) is not None:
            words += [f"--{name.replace('_', '-')}", str(plan[name])]
    seeds = _seeds(record)
    first = ["--first-seed", str(seeds[0])] if seeds[0] else []
    return shlex.join([*words, "--seeds", str(len(seeds)), *first, "--out", "again"])

"""The sections of a study's page: its answer, cost, changes, failures and what others make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from clozelab.reporting.document import GAP, Cell, Page, Part, Section, Table, listed, number
from clozelab.reporting.page import differences
from clozelab.reporting.study import again, curves, scores, verdicts
from clozelab.reporting.study.cells import Evidence
from clozelab.reporting.study.claims import VERDICTS, Judged, judge, told


def page(evidence: Evidence) -> Page:
    """All that is told of a study, done or under way."""
    judged = [judge(claim, evidence) for claim in evidence.study.claims]
    lead = f"{evidence.study.question} {answer(judged, evidence)}"
    return Page(evidence.study.title, _opening(evidence), [*sections(evidence, judged)], lead)


def answer(judged: Sequence[Judged], evidence: Evidence) -> str:
    """The claims' verdicts in one sentence."""
    if not evidence.outcomes:
        return "No cell is done yet."
    if not judged:
        return "The study as it was asked for has no claim to judge."
    if len(judged) == 1:
        return told(judged[0], where=_where(evidence))
    found = [one.verdict for one in judged]
    counts = [f"{found.count(word)} {word}" for word in VERDICTS if word in found]
    name = evidence.study.paper.name
    return f"Of {len(judged)} claims of {name}, {_where(evidence)}: {listed(counts)}."


def _where(evidence: Evidence) -> str:
    return "at this scale" if evidence.ended else "so far"


def sections(evidence: Evidence, judged: Sequence[Judged]) -> Iterator[Section]:
    """The page's content."""
    theirs = any(name in one.paper for one in evidence.variants for name in evidence.measures())
    beside = f" beside that of {evidence.study.paper.name}" if theirs else ""
    yield Section(f"Our table{beside}", [*scores.tables(evidence)])
    if judged:
        said = [*verdicts.shown(judged, where=_where(evidence))]
        yield Section("What was claimed, and what came out", said)
    drawn = [*curves.drawn(evidence)]
    if drawn:
        yield Section("Loss", drawn)
    yield Section("What it cost", [_cost(evidence)])
    yield Section("What each variant changes", [*_changes(evidence)])
    if evidence.failed:
        yield Section("Cells that failed", [_failed(evidence)])
    yield Section("How to do it again", [*again.told(evidence)])


def _opening(evidence: Evidence) -> str:
    study, plan = evidence.study, evidence.plan
    size = f" at size {plan['size']}" if plan.get("size") else ""
    done = f"{len(evidence.done)} of {evidence.planned} cells are done"
    failed = f", {len(evidence.failed)} failed" if evidence.failed else ""
    return (
        f"After {study.paper.source}: {len(evidence.variants)} variants × {study.seeds} seeds{size}"
        f" with equal {evidence.equal}. {done}{failed}. Scores are on dev sets, in points of 100;"
        " ± is half of a mean's 95 % interval over seeds."
    )


def _cost(evidence: Evidence) -> Table:
    """Of each variant the mean over its cells."""
    forms = {
        "M parameters": ("parameters", 1e6),
        "steps": ("steps", 1.0),
        "M tokens": ("tokens", 1e6),
        "PFLOP": ("flops", 1e15),
        "minutes": ("seconds", 60.0),
        "and of tuning": ("tuning_seconds", 60.0),
    }
    rows = []
    for one in evidence.variants:
        mine = [each for each in evidence.done if each.variant == one.name]
        row = [Cell(one.name), number(len(mine), "d")]
        for key, size in forms.values():
            found = [each.cost[key] / size for each in mine if key in each.cost]
            row.append(_few(fmean(found)) if found else GAP)
        rows.append(row)
    minutes = sum(each.minutes for each in evidence.outcomes)
    twins = any(each.shared for each in evidence.outcomes)
    once = ", what variants share counted once" if twins else ""
    note = f"Means over a variant's cells; {minutes:,.1f} minutes in all{once}."
    return Table(["variant", "cells done", *forms], rows, f"{note} {_equal(evidence)}".strip())


def _few(value: float) -> Cell:
    """A number in three digits, or in all of its whole ones."""
    return Cell(f"{value:,.0f}" if value >= 100 else f"{value:.3g}", value)


def _equal(evidence: Evidence) -> str:
    """How equal that was which the study holds equal."""
    key = {"time": "seconds"}.get(evidence.equal, evidence.equal)
    shares = {one.name: one.share for one in evidence.study.variants}
    found = [each.cost[key] / shares[each.variant] for each in evidence.done if each.cost.get(key)]
    if len(found) < 2:
        return ""
    apart = max(found) / min(found) - 1
    shared = ", each by its share" if {*shares.values()} != {1.0} else ""
    told = f"Cells have equal {evidence.equal}{shared}"
    return f"{told}: they differ by at most {100 * apart:.1f} %."


def _changes(evidence: Evidence) -> Iterator[Part]:
    """In words, and setting by setting."""
    rows = []
    for one in evidence.variants:
        extra = [
            *([f"recipe {one.recipe}"] if one.recipe else []),
            *one.set,
            *([f"distilled from {one.teacher}"] if one.teacher else []),
            *([f"{one.share:g} × the {evidence.equal}"] if one.share != 1 else []),
            *([f"protocol {one.protocol}"] if one.protocol else []),
            *(f"fine-tuning {setting}" for setting in one.finetune),
        ]
        rows.append([Cell(one.name), Cell(one.says), Cell(", ".join(extra) or "the base as it is")])
    yield _base(evidence)
    yield Table(["variant", "what it is", "what it sets"], rows)
    compared = [(one.name, evidence.recipe(one)) for one in evidence.variants]
    if any(recipe != compared[0][1] for _, recipe in compared):
        yield ("heading", "Setting by setting")
        yield differences(compared)


def _base(evidence: Evidence) -> str:
    """What all variants have in common, and how all are tuned."""
    study = evidence.study
    told = f"The base is the recipe {study.recipe}"
    told += f" with {listed(study.set)}." if study.set else " as it is."
    if study.tasks and study.finetune:
        told += f" Fine-tuning is by the usual protocol with {listed(study.finetune)}."
    return told


def _failed(evidence: Evidence) -> Table:
    rows = [
        [Cell(one.variant), number(one.seed, "d"), Cell(one.failed or "")]
        for one in evidence.failed
    ]
    note = "Their scores are missing above. The same command tries them again."
    return Table(["variant", "seed", "why"], rows, note)

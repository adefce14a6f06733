"""The plan of a study: how long each cell trains, so that all are equal and a budget is kept.

A budget of tokens or steps is for each cell. A budget of time is for the whole study: a few steps
of every variant are timed, the time of fine-tuning is estimated, and the rest is divided into equal
tokens, steps or time, as the study says. The plan is saved, so that later cells train as long.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from clozelab.errors import UserError
from clozelab.files import write_text
from clozelab.runs.directory import CELLS, PLAN, STUDY, seed_of
from clozelab.runs.events import Said
from clozelab.runs.machine import Machine
from clozelab.studies import spec, timing
from clozelab.studies.folder import UNITS, SavedPlan, fingerprints, saved_plan, task_files
from clozelab.studies.measures import plateau_level, unmeasurable
from clozelab.studies.power import claim_powers
from clozelab.studies.records import packed_files
from clozelab.studies.request import StudyRequest
from clozelab.studies.timing import Pace
from clozelab.text.building import cores
from clozelab.text.store.corpus import open_stores
from clozelab.training import budget as budgets
from clozelab.training.budget import Budget

_TIMING_SECONDS = 40.0  # seconds of timing, over all variants
_LEAST_SHARE = 0.1  # the least share of a budget for pretraining; less is refused
_FULL_WIDTH = 768  # a model of this hidden size fills a GPU
_MOST_AT_ONCE = 4  # the most cells that share a GPU, each with four cores


@dataclass(frozen=True)
class StudyPlan:
    """How long every cell trains."""

    request: StudyRequest
    unit: str  # of what is equal for all cells: tokens, steps or seconds
    amount: float
    paces: Mapping[str, Pace]
    broken: Mapping[str, str]  # variants that cannot be set up, and why
    tuning_seconds: Mapping[str, float]  # of a cell's fine-tunings, if estimated
    fingerprints: Mapping[str, str]  # of the folder's variants, tasks and corpora
    at_once: int = 1
    tunings_at_once: int = 1  # of a cell's fine-tunings
    # By variant, the loss of the unigram plateau; by task, the size of its dev set.
    plateau: Mapping[str, float] = field(default_factory=dict)
    items: Mapping[str, int] = field(default_factory=dict)
    # By claim, the power of its seeds, as stated before they are run.
    powers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    parts: Sequence[Mapping[str, Any]] = ()  # the studies that the folder was merged from

    def steps(self, variant: str) -> int:
        """The steps of a variant's cells."""
        if variant in self.broken:
            return 1
        pace = self.paces[variant]
        amount = self.amount * self.request.study.variant(variant).share
        if self.unit == "steps":
            return max(1, round(amount))
        budget = Budget("tokens" if self.unit == "tokens" else "seconds", amount)
        return budgets.steps(
            budget, tokens_a_step=pace.tokens_a_step, seconds_a_step=pace.seconds_a_step
        )

    @property
    def is_paced(self) -> bool:
        """Whether cells train for a time, not for a number of steps."""
        return self.unit == "seconds" and self.at_once == 1

    def budget(self, variant: str) -> str:
        """The budget of a variant's cells.

        A run that is alone on its machine is given seconds, which it keeps by its own pace: the
        estimate from a few timed steps is off by some per cent, as much as many an effect.
        """
        steps = self.steps(variant)
        if self.is_paced:
            return f"{self.amount * self.request.study.variant(variant).share:.3f}s"
        return f"{steps}steps"

    def seconds(self, variant: str) -> float | None:
        """About how long a cell of the variant takes; None if it was not timed."""
        pace = self.paces.get(variant)
        if pace is None or pace.seconds_a_step is None:
            return None
        shared = self.request.shares_pretraining_with(variant) is not None
        pretraining = 0.0 if shared else self.steps(variant) * pace.seconds_a_step
        return pretraining + self.tuning_seconds.get(variant, 0.0)

    def as_json(self) -> dict[str, Any]:
        """The contents of plan.json."""
        request = self.request
        names = [one.name for one in request.study.variants]
        return {
            "study": request.study.name,
            **request.recorded(),
            "at_once": self.at_once,
            "tunings_at_once": self.tunings_at_once,
            "equal": self.unit,
            "amount": self.amount,
            "tokens_a_cell": self.amount if self.unit == "tokens" else None,
            "steps": {name: self.steps(name) for name in names if name not in self.broken},
            "paces": {name: asdict(pace) for name, pace in self.paces.items()},
            "tuning_seconds": dict(self.tuning_seconds),
            "cannot": dict(self.broken),
            "plateau": dict(self.plateau),
            "items": dict(self.items),
            "power": dict(self.powers),
            "made": dict(self.fingerprints),
            **({"parts": list(self.parts)} if self.parts else {}),
            "cells": [
                {
                    "variant": cell.variant,
                    "seed": cell.seed,
                    "folder": str(cell.folder(Path())),
                    "predicted_seconds": self.seconds(cell.variant),
                }
                for cell in request.cells()
            ],
        }

    def write(self, out: Path) -> None:
        """Save the plan and the study in its folder."""
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / STUDY, spec.to_toml(self.request.study))
        text = json.dumps(self.as_json(), indent=1, ensure_ascii=False)
        write_text(out / PLAN, text + "\n")


def make_plan(
    request: StudyRequest,
    machine: Machine,
    *,
    out: Path | None = None,
    at_once: int | None = None,
    tunings_at_once: int = 1,
    timed: bool = False,
) -> Generator[Said, None, StudyPlan]:
    """The plan of a request, or the one that is saved in the folder.

    With `timed`, steps are timed even without a budget of time, to estimate the duration.
    """
    if at_once is not None and at_once < 1:
        raise UserError(f"--at-once {at_once}: must be at least 1")
    if tunings_at_once < 1:
        raise UserError(f"--tunings-at-once {tunings_at_once}: must be at least 1")
    budget = None if request.budget is None else budgets.parse(request.budget)
    for variant in request.study.variants:
        open_stores(request.stores(variant.name))
        for task in request.tasks():
            timing.tuning(request, variant.name, task)  # reports its errors before anything runs
    if not request.study.tasks and not request.study.measures:
        yield Said(
            f"{request.study.name}: has no task, so only loss curves are compared; name tasks"
            " with --tasks"
        )
    for measure, why in unmeasurable(request).items():
        yield Said(f"{request.study.name}: {measure} is left out: {why}")
    prints = fingerprints(request)
    saved = saved_plan(request, prints, out)
    if saved is not None and saved.unit == "seconds":
        at_once = _saved_at_once(at_once, saved.at_once, place=out)
    at_once = _cells_at_once(request, machine) if at_once is None else at_once
    plan = StudyPlan(request, "", 0.0, {}, {}, {}, prints, at_once, tunings_at_once)
    levels = {one.name: plateau_level(request, one.name) for one in request.study.variants}
    plan = replace(
        plan,
        plateau={name: level for name, level in levels.items() if level is not None},
        items={name: len(data.splits().read("dev")) for name, data in request.tasks().items()},
    )
    powers = claim_powers(request.study, size=request.size, sizes=plan.items)
    plan = replace(plan, powers={one.claim.comparison: one.as_json() for one in powers})
    if saved is None:
        plan = yield from _divide_budget(_with_paces(plan), budget, machine)
        if timed and any(pace.seconds_a_step is None for pace in plan.paces.values()):
            plan = yield from _timed(plan, machine, list(plan.paces))
            plan = replace(plan, tuning_seconds=_tuning_seconds(plan, machine))
        return plan
    if task_files(plan.fingerprints) and not task_files(saved.fingerprints):
        yield Said(
            f"{out}: was started before clozelab recorded digests of task files; do not"
            " change these files from now on"
        )
    if left_out := _left_out(request, out):
        yield Said(
            f"{out}: {left_out} finished {'cell is' if left_out == 1 else 'cells are'} kept but"
            " not compared, because this command names fewer seeds or variants"
        )
    plan = replace(
        plan,
        unit=saved.unit,
        amount=saved.amount,
        paces=saved.paces,
        tuning_seconds=saved.tuning_seconds,
        fingerprints={**saved.fingerprints, **plan.fingerprints},
        powers={name: _stated_power(saved, name, power) for name, power in plan.powers.items()},
        parts=saved.parts,
    )
    plan = _with_paces(plan)
    if plan.unit == "seconds":
        new = [name for name, pace in plan.paces.items() if pace.seconds_a_step is None]
        plan = yield from _timed(plan, machine, new)
    return replace(plan, paces={**saved.paces, **plan.paces})  # keeps variants that may return


def _left_out(request: StudyRequest, out: Path | None) -> int:
    """How many cells of a folder are finished and not among those of a request."""
    if out is None:
        return 0
    cells = {cell.folder(out) for cell in request.cells()}
    pattern = f"{CELLS}/*/seed-*/result.json"
    packed = [out / name for name in packed_files(out) if Path(name).match(pattern)]
    finished = {file.parent for file in (*out.glob(pattern), *packed)} - cells
    return sum(seed_of(cell) is not None for cell in finished)


def _stated_power(saved: SavedPlan, claim: str, power: Mapping[str, Any]) -> Mapping[str, Any]:
    """A claim's power as first stated, unless its seeds have changed."""
    stated = saved.powers.get(claim, {})
    return stated if stated.get("seeds") == power["seeds"] else power


def _saved_at_once(at_once: int | None, before: int, *, place: Path | None) -> int:
    """The number of cells at once that a study of equal time was started with, or refused."""
    if at_once is not None and (at_once == 1) != (before == 1):
        raise UserError(
            f"{place}: was started with --at-once {before}; continue with the same value,"
            " because cells run alone are limited by time and parallel cells by steps"
        )
    return before if at_once is None else at_once


def _cells_at_once(request: StudyRequest, machine: Machine) -> int:
    """How many cells a device runs at once: several if models are too narrow to fill a GPU."""
    names = [one.name for one in request.study.variants]
    narrow = all(request.recipe(name).encoder.hidden_size < _FULL_WIDTH for name in names)
    return max(1, min(_MOST_AT_ONCE, cores() // 4)) if narrow and _on_gpu(machine) else 1


def _on_gpu(machine: Machine) -> bool:
    return machine.device != "cpu" and torch.cuda.is_available()


def _with_paces(plan: StudyPlan) -> StudyPlan:
    """The plan with the cost of a step of every variant that can be set up."""
    paces: dict[str, Pace] = {}
    broken: dict[str, str] = {}
    names = [one.name for one in plan.request.study.variants]
    for name in names:
        try:
            paces[name] = plan.paces.get(name) or timing.pace(plan.request, name)
        except UserError as error:
            broken[name] = str(error)
            if len(broken) == len(names):
                raise
    return replace(plan, paces=paces, broken=broken)


def _divide_budget(
    plan: StudyPlan, budget: Budget | None, machine: Machine
) -> Generator[Said, None, StudyPlan]:
    """The plan with the budget divided into equal amounts for the cells."""
    study = plan.request.study
    if budget is None:
        if study.equal == "time":
            raise UserError(
                f"{study.name}: gives each run equal time; set --budget, as in --budget 30m"
            )
        first = next(iter(plan.paces))
        steps = plan.request.recipe(first).schedule.steps
        each = 1.0 if study.equal == "steps" else plan.paces[first].tokens_a_step
        return replace(plan, unit=study.equal, amount=steps * each)
    if budget.kind != "seconds":
        return replace(plan, unit=budget.kind, amount=budget.amount)
    plan = yield from _timed(plan, machine, list(plan.paces))
    plan = replace(plan, tuning_seconds=_tuning_seconds(plan, machine))
    left = budget.amount - study.seeds * sum(plan.tuning_seconds.values())
    if left < _LEAST_SHARE * budget.amount:
        raise UserError(
            f"--budget {plan.request.budget}: fine-tuning alone takes about"
            f" {(budget.amount - left) / 60:,.1f} minutes; give more time, or fewer --seeds or"
            " --tasks"
        )
    unit = UNITS[study.equal]
    cost = sum(
        study.seeds * study.variant(name).share * _seconds_per_unit(pace, unit)
        for name, pace in plan.paces.items()
        if plan.request.shares_pretraining_with(name) is None
    )
    plan = replace(plan, unit=unit, amount=left / cost)
    if unit == "steps":
        plan = replace(plan, amount=float(max(1, int(plan.amount))))
    for name in plan.paces:
        plan.steps(name)  # refuses a budget of less than one step
    return plan


def _seconds_per_unit(pace: Pace, unit: str) -> float:
    """The seconds of one unit: a token, a step or a second."""
    seconds = pace.seconds_a_step or 0.0
    return {"tokens": seconds / pace.tokens_a_step, "steps": seconds, "seconds": 1.0}[unit]


def _timed(plan: StudyPlan, machine: Machine, names: list[str]) -> Generator[Said, None, StudyPlan]:
    """The plan with timed steps; variants of one shape are timed once."""
    if not names:
        return plan
    yield Said("timing a few steps of each variant")
    timed: dict[str, float] = {}
    paces, broken = dict(plan.paces), dict(plan.broken)
    for name in names:
        shape = timing.shape(plan.request, name)
        try:
            if shape not in timed:
                timed[shape] = timing.seconds_a_step(
                    plan.request, name, machine, budget=_TIMING_SECONDS / len(names)
                )
            paces[name] = replace(paces[name], seconds_a_step=timed[shape])
        except UserError as error:
            del paces[name]
            broken[name] = str(error)
            if not paces:
                raise
    return replace(plan, paces=paces, broken=broken)


def _tuning_seconds(plan: StudyPlan, machine: Machine) -> dict[str, float]:
    gpu = _on_gpu(machine)
    return {
        name: timing.tuning_seconds(
            plan.request, name, pace.tokens_a_step / (pace.seconds_a_step or 1.0), gpu=gpu
        )
        for name, pace in plan.paces.items()
    }

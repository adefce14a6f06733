"""The plan of a study: how long each cell trains, so that all have the same and a budget holds.

A budget of tokens or steps is each cell's. One of time is the whole study's: a few steps of every
variant are timed, fine-tuning is reckoned, and what is left is shared out in equal tokens, steps or
time, as the study says. The plan is kept, so that cells done later have what the first ones had.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from clozelab.errors import UserError
from clozelab.files import write_text
from clozelab.runs.directory import PLAN, STUDY
from clozelab.runs.events import Said
from clozelab.runs.machine import Machine
from clozelab.studies import pace as paces_
from clozelab.studies import spec as studies
from clozelab.studies.pace import Pace
from clozelab.studies.request import Request
from clozelab.studies.started import KINDS, begun, files_of, made
from clozelab.text.building import cores
from clozelab.text.store.mixture import open_stores
from clozelab.training import budget as budgets
from clozelab.training.budget import Budget

_SHORT = 40.0  # seconds; a twentieth of them is spent on timing
_ROOM = 0.1  # of a budget must be left for pretraining
_WIDE = 768  # a cell of this width has a GPU to itself
_AT_ONCE = 4  # cells that share one at most, each with four cores


@dataclass(frozen=True)
class Plan:
    """What every cell does."""

    request: Request
    kind: str  # of what cells have the same: tokens, steps or seconds
    amount: float
    paces: Mapping[str, Pace]
    broken: Mapping[str, str]  # variants that cannot be set up, and why
    tuning: Mapping[str, float]  # seconds of a cell's fine-tunings, where they were reckoned
    made: Mapping[str, str]  # what the folder's variants, tasks and corpora are
    at_once: int = 1

    def steps(self, variant: str) -> int:
        """The steps of a variant's cells."""
        if variant in self.broken:
            return 1
        found = self.paces[variant]
        amount = self.amount * self.request.study.variant(variant).share
        if self.kind == "steps":
            return max(1, round(amount))
        given = Budget("tokens" if self.kind == "tokens" else "seconds", amount)
        return budgets.steps(
            given, tokens_a_step=found.tokens_a_step, seconds_a_step=found.seconds_a_step
        )

    def tokens(self, variant: str) -> float:
        """About as many tokens as a variant's cells see."""
        found = self.paces.get(variant)
        return self.steps(variant) * found.tokens_a_step if found else 0.0

    def seconds(self, variant: str) -> float | None:
        """About how long a cell of the variant takes; None where nothing was timed."""
        found = self.paces.get(variant)
        if found is None or found.seconds_a_step is None:
            return None
        own = 0.0 if self.request.twin(variant) else self.steps(variant) * found.seconds_a_step
        return own + self.tuning.get(variant, 0.0)

    def told(self) -> dict[str, Any]:
        """The plan as it is kept."""
        request = self.request
        names = [one.name for one in request.study.variants]
        return {
            "study": request.study.name,
            "size": request.size,
            "data": list(request.data),
            "task_data": request.task_data,
            "budget": request.budget,
            "at_once": self.at_once,
            "equal": self.kind,
            "amount": self.amount,
            "tokens_a_cell": self.amount if self.kind == "tokens" else None,
            "steps": {name: self.steps(name) for name in names if name not in self.broken},
            "paces": {name: asdict(one) for name, one in self.paces.items()},
            "tuning_seconds": dict(self.tuning),
            "cannot": dict(self.broken),
            "made": dict(self.made),
            "cells": [
                {
                    "variant": cell.variant,
                    "seed": cell.seed,
                    "folder": str(cell.place(Path())),
                    "predicted_seconds": self.seconds(cell.variant),
                }
                for cell in request.cells()
            ],
        }

    def write(self, out: Path) -> None:
        """Keep the plan and the study in its folder."""
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / STUDY, studies.to_toml(self.request.study))
        text = json.dumps(self.told(), indent=1, ensure_ascii=False)
        write_text(out / PLAN, text + "\n")


def planned(
    request: Request, machine: Machine, *, out: Path | None = None, at_once: int | None = None
) -> Generator[Said, None, Plan]:
    """The plan of a request, or of the one that was begun in the folder before."""
    at_once = _side_by_side(request, machine) if at_once is None else at_once
    if at_once < 1:
        raise UserError(f"--at-once {at_once}: at least 1")
    given = None if request.budget is None else budgets.parse(request.budget)
    for variant in request.study.variants:
        open_stores(request.stores(variant.name))
        for task in request.tasks():
            paces_.tuning(request, variant.name, task)  # what is wrong there is told before it runs
    if not request.study.tasks and not request.study.measures:
        yield Said(f"{request.study.name}: has nothing to compare but curves; name --tasks")
    before = begun(request, out)
    plan = Plan(request, "", 0.0, {}, {}, {}, made(request), at_once)
    if before is None:
        return (yield from _shared_out(_with_paces(plan), given, machine))
    if files_of(plan.made) and not files_of(before.made):
        yield Said(
            f"{out}: was started before digests of its tasks were kept; from now on their files"
            " must stay as they are"
        )
    plan = replace(
        plan,
        kind=before.kind,
        amount=before.amount,
        paces=before.paces,
        tuning=before.tuning,
        made={**before.made, **plan.made},
    )
    plan = _with_paces(plan)
    if plan.kind == "seconds":
        new = [name for name, one in plan.paces.items() if one.seconds_a_step is None]
        plan = yield from _timed(plan, machine, new)
    return replace(plan, paces={**before.paces, **plan.paces})  # variants may come back


def _side_by_side(request: Request, machine: Machine) -> int:
    """How many cells a device has at once: narrow ones leave a GPU waiting for the host."""
    names = [one.name for one in request.study.variants]
    narrow = all(request.recipe(name).encoder.width < _WIDE for name in names)
    return max(1, min(_AT_ONCE, cores() // 4)) if narrow and _on_gpu(machine) else 1


def _on_gpu(machine: Machine) -> bool:
    return machine.device != "cpu" and torch.cuda.is_available()


def _with_paces(plan: Plan) -> Plan:
    """The plan with what a step of every variant is, where it can be set up at all."""
    paces: dict[str, Pace] = {}
    broken: dict[str, str] = {}
    names = [one.name for one in plan.request.study.variants]
    for name in names:
        try:
            paces[name] = plan.paces.get(name) or paces_.pace(plan.request, name)
        except UserError as error:
            broken[name] = str(error)
            if len(broken) == len(names):
                raise
    return replace(plan, paces=paces, broken=broken)


def _shared_out(plan: Plan, given: Budget | None, machine: Machine) -> Generator[Said, None, Plan]:
    """The plan with what each cell gets of a budget."""
    study = plan.request.study
    if given is None:
        if study.equal == "time":
            raise UserError(f"{study.name}: gives each run the same time; say --budget 30m")
        first = next(iter(plan.paces))
        steps = plan.request.recipe(first).schedule.steps
        each = 1.0 if study.equal == "steps" else plan.paces[first].tokens_a_step
        return replace(plan, kind=study.equal, amount=steps * each)
    if given.kind != "seconds":
        return replace(plan, kind=given.kind, amount=given.amount)
    plan = yield from _timed(plan, machine, list(plan.paces))
    plan = replace(plan, tuning=_tuning(plan, machine))
    left = given.amount - study.seeds * sum(plan.tuning.values())
    if left < _ROOM * given.amount:
        raise UserError(
            f"--budget {plan.request.budget}: fine-tuning alone takes about"
            f" {(given.amount - left) / 60:,.1f} minutes; give more time, or fewer --seeds or"
            " --tasks"
        )
    kind = KINDS[study.equal]
    cost = sum(
        study.seeds * study.variant(name).share * _cost(one, kind)
        for name, one in plan.paces.items()
        if plan.request.twin(name) is None
    )
    plan = replace(plan, kind=kind, amount=left / cost)
    if kind == "steps":
        plan = replace(plan, amount=float(max(1, int(plan.amount))))
    for name in plan.paces:
        plan.steps(name)  # refuses a budget that has no room for one
    return plan


def _cost(one: Pace, kind: str) -> float:
    """The seconds of a token, of a step or of a second."""
    seconds = one.seconds_a_step or 0.0
    return {"tokens": seconds / one.tokens_a_step, "steps": seconds, "seconds": 1.0}[kind]


def _timed(plan: Plan, machine: Machine, names: list[str]) -> Generator[Said, None, Plan]:
    """The plan with the seconds of a step, each shape timed once."""
    if not names:
        return plan
    yield Said("timing a few steps of each variant, to share out the budget")
    seen: dict[str, float] = {}
    paces, broken = dict(plan.paces), dict(plan.broken)
    for name in names:
        shape = paces_.shape(plan.request, name)
        try:
            if shape not in seen:
                seen[shape] = paces_.seconds_a_step(
                    plan.request, name, machine, budget=_SHORT / len(names)
                )
            paces[name] = replace(paces[name], seconds_a_step=seen[shape])
        except UserError as error:
            del paces[name]
            broken[name] = str(error)
            if not paces:
                raise
    return replace(plan, paces=paces, broken=broken)


def _tuning(plan: Plan, machine: Machine) -> dict[str, float]:
    gpu = _on_gpu(machine)
    return {
        name: paces_.tuning_seconds(
            plan.request, name, one.tokens_a_step / (one.seconds_a_step or 1.0), gpu=gpu
        )
        for name, one in plan.paces.items()
    }

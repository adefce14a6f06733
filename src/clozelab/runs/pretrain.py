"""Pretrain: a recipe, stores and a budget → a run directory with checkpoints and a log.

Both functions are generators of events; whoever runs them draws what they tell. Everything that
changes the result is in the recipe and the seed, and both travel with the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from clozelab import recipe as recipes
from clozelab.contracts import UserError
from clozelab.records import Run
from clozelab.runs.events import Event, Said
from clozelab.runs.machine import Machine
from clozelab.runs.plateau import watched
from clozelab.runs.saving import restore
from clozelab.runs.session import Habits, Session
from clozelab.runs.setup import Setup, Task
from clozelab.training.budget import Budget
from clozelab.training.checkpoint import newest
from clozelab.training.world import join


def pretrain(task: Task, out: Path, *, machine: Machine, habits: Habits) -> Iterator[Event]:
    """Start a run in a new folder."""
    with join(machine.device) as world:
        setup = Setup(task, machine, world)
        if task.budget is not None:
            yield from _fit(setup, task.budget)
        if world.leads:
            Run.create(out, recipe_toml=recipes.to_toml(setup.recipe), machine=setup.facts())
        world.wait()
        yield from _session(setup, Run.open(out), habits).go(0, setup.steps.start())


def resume(task: Task, out: Path, *, machine: Machine, habits: Habits) -> Iterator[Event]:
    """Go on where the newest whole checkpoint of a run stands."""
    run = Run.open(out)
    found, passed = newest(run.checkpoints)
    for line in passed:
        yield Said(line)
    with join(machine.device) as world:
        setup = Setup(task, machine, world)
        session = _session(setup, run, habits)
        first, cursor = 0, setup.steps.start()
        if found is None:
            yield Said(f"{out}: no whole checkpoint; the run begins again")
        else:
            state = found.state()
            if not state:
                raise UserError(
                    f"{out}: was imported and has no steps to go on from; begin a run of its own"
                    f" with --from {out}"
                )
            _check(out, state["data"], setup.identity())
            first, cursor = found.step, restore(found, setup.trainee, world)
            session.tokens, session.seconds = state["tokens"], state["seconds"]
        if world.leads:
            run.resume(first)
        yield from session.go(first, cursor)


def _session(setup: Setup, run: Run, habits: Habits) -> Session:
    again = f"clozelab pretrain --resume {run.path}"
    plateau = watched(setup.recipe, setup.task.stores)
    return Session(setup, run, habits, again=again, plateau=plateau)


def _fit(setup: Setup, budget: Budget) -> Iterator[Event]:
    """Fit the schedule; timing steps may show that memory has no room for the micro-batch."""
    if budget.kind == "seconds":
        yield Said("timing a few steps, to fit the schedule to the budget")
    while True:
        try:
            return setup.fit(budget)
        except torch.OutOfMemoryError:
            pass  # what filled the memory is held by the error until it is forgotten
        yield Said(setup.shrink())


def _check(out: Path, before: list[Any], now: list[Any]) -> None:
    """Refuse to go on with other text than the run began with, wherever it lies by now."""
    if [(one["made"], one["weight"]) for one in before] != [
        (one["made"], one["weight"]) for one in now
    ]:
        raise UserError(
            f"{out}: was begun with other data ({_told(before)}) than is given now"
            f" ({_told(now)}); give the same --data"
        )


def _told(data: list[Any]) -> str:
    return ", ".join(f"{one['path']}:{one['weight']:g}" for one in data)

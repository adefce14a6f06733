"""Run a study: its cells one by one or several at a time, here or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGINT
from typing import Any

from clozelab.errors import UserError
from clozelab.interrupts import Stopped, first_done
from clozelab.runs.events import Ended, Said, drained
from clozelab.runs.machine import Machine
from clozelab.runs.processes import workers
from clozelab.runs.session import SaveOptions
from clozelab.studies import cluster, results
from clozelab.studies import spec as studies
from clozelab.studies.cell import PRETRAINING, Happened, Order, done, run
from clozelab.studies.pace import clear
from clozelab.studies.plan import Plan, planned
from clozelab.studies.records import unpack
from clozelab.studies.request import Cell, asked
from clozelab.studies.started import held
from clozelab.training.world import is_distributed

# What may be wrong with a cell, and is then no reason to leave the others: a user's error, a loss
# that is no number, memory or a disk that is full, a step that does not compile.
_FAILURES = (ValueError, RuntimeError, OSError, ArithmeticError, LookupError, TypeError)
# Curves want ten looks at held-out text; a checkpoint is for going on, and for what comes after.
SAVE_OPTIONS = SaveOptions(save_every=0, keep=1, max_seconds_between_saves=300)


@dataclass(frozen=True)
class Begun:
    """A cell is begun or gone on with."""

    cell: Cell


@dataclass(frozen=True)
class Finished:
    """A cell is done, or has failed."""

    cell: Cell
    failed: str | None
    seed_is_done: bool  # every variant of this seed has come to its end


@dataclass(frozen=True)
class Outcome:
    """What a cell in another process came to."""

    said: tuple[str, ...]
    failed: str | None
    whole: bool


Submit = Callable[[Order], "Future[Outcome]"]
Told = Begun | Happened | Finished


def study(
    name: str,
    data: str | Sequence[str],
    out: str,
    *,
    size: str | None = None,
    budget: str | None = None,
    seeds: int | None = None,
    tasks: Sequence[str] | None = None,
    variants: Sequence[str] | None = None,
    tune: Sequence[str] = (),
    task_data: str | None = None,
    machine: Machine = Machine(),  # noqa: B008  (frozen)
) -> dict[str, Any]:
    """Run a study, by its name or file, and tell what its cells came to, as result.json does.

    The same call goes on where one was stopped, and tries cells again that failed.
    """
    named = None if tasks is None else studies.tasks_of(tasks)
    chosen = studies.read(name).narrowed(tasks=named, variants=variants, seeds=seeds, tuning=tune)
    corpora = [data] if isinstance(data, str) else data
    request = asked(chosen, corpora, size=size, budget=budget, task_data=task_data)
    plan = drained(planned(request, machine, out=Path(out)))
    for told in follow(plan, Path(out), machine=machine):
        if isinstance(told, Happened) and isinstance(told.event, Ended) and not told.event.whole:
            message = f"{out}: was stopped; say the same again to go on"
            raise Stopped(message, signal=told.event.signal)
    return results.write(plan, orders_of(plan, Path(out), machine=machine), Path(out))


def follow(
    plan: Plan,
    out: Path,
    *,
    machine: Machine,
    saving: SaveOptions = SAVE_OPTIONS,
    on: str | None = None,
    keep_models: bool = False,
) -> Iterator[Told]:
    """Do the cells that are not done; `on` is the address of a Ray cluster, or local."""
    if is_distributed():
        raise UserError("study is for one process: leave torchrun out, and see --at-once and --on")
    if on is not None:
        cluster.known(on)
    with held(out):
        yield from _begun(plan, out, machine=machine, saving=saving, on=on, keep_models=keep_models)


def _begun(
    plan: Plan,
    out: Path,
    *,
    machine: Machine,
    saving: SaveOptions,
    on: str | None,
    keep_models: bool,
) -> Iterator[Told]:
    """The cells, in a folder that is ours alone."""
    unpack(out)
    plan.write(out)
    orders = orders_of(plan, out, machine=machine, saving=saving, keep_models=keep_models)
    results.write(plan, orders, out)
    left = [order for order in orders if not done(order)]
    if on is not None:
        with cluster.jobs(on, alone, share=plan.at_once, device=machine.device) as submit:
            yield from _finished(plan, orders, _side_by_side(left, submit, len(left)), out)
    elif plan.at_once > 1:
        sharers = max(1, min(plan.at_once, len(left)))
        shared = [replace(order, machine=replace(machine, sharers=sharers)) for order in left]
        with workers(reuse=False) as processes:
            running = _side_by_side(shared, lambda order: processes.submit(alone, order), sharers)
            yield from _finished(plan, orders, running, out)
    else:
        yield from _finished(plan, orders, _one_by_one(left), out)


def orders_of(
    plan: Plan,
    out: Path,
    *,
    machine: Machine,
    saving: SaveOptions = SAVE_OPTIONS,
    keep_models: bool = False,
) -> list[Order]:
    """Every cell of a plan, as an order."""
    return [
        Order(
            plan.request,
            cell,
            str(out.resolve()),
            plan.steps(cell.variant),
            machine,
            saving,
            keep_models,
        )
        for cell in plan.request.cells()
    ]


def alone(order: Order) -> Outcome:
    """One cell in a process of its own."""
    said: list[str] = []
    try:
        for happened in run(order):
            if isinstance(happened.event, Said):
                said.append(happened.event.text)
            elif isinstance(happened.event, Ended) and not happened.event.whole:
                return Outcome(tuple(said), None, whole=False)
    except _FAILURES as error:
        return Outcome(tuple(said), results.record(order, error), whole=True)
    return Outcome(tuple(said), None, whole=True)


def _finished(
    plan: Plan, orders: list[Order], telling: Iterator[Told], out: Path
) -> Iterator[Told]:
    """Write what came out after every cell, before it is told."""
    for told in telling:
        if isinstance(told, Finished):
            results.write(plan, orders, out)
            same = [one for one in orders if one.cell.seed == told.cell.seed]
            ended = all(done(one) or results.failure(one) is not None for one in same)
            told = replace(told, seed_is_done=ended)
        yield told


def _one_by_one(left: list[Order]) -> Iterator[Told]:
    """The cells in this process."""
    for order in left:
        yield Begun(order.cell)
        failed = None
        try:
            for happened in run(order):
                yield happened
                if isinstance(happened.event, Ended) and not happened.event.whole:
                    return
        except _FAILURES as error:
            failed = results.record(order, error)
        clear()
        yield Finished(order.cell, failed, False)


def _side_by_side(left: list[Order], submit: Submit, many: int) -> Iterator[Told]:
    """As many cells as may be at a time, each when those that it leans on are over."""
    waiting: dict[Future[Outcome], Order] = {}
    left = list(left)
    while left or waiting:
        open_ = {one.cell for one in (*left, *waiting.values())}
        for order in [one for one in left if not _leans_on(one) & open_]:
            if len(waiting) < many:
                waiting[submit(order)] = order
                left.remove(order)
                yield Begun(order.cell)
        for future in first_done(waiting):
            order = waiting.pop(future)
            error = future.exception()
            outcome = future.result() if error is None else None
            if outcome is None:  # its process is gone
                assert error is not None
                if not isinstance(error, Exception):
                    raise error
                outcome = Outcome((), results.record(order, error), whole=True)
            for text in outcome.said:
                yield Happened(order.cell.name, PRETRAINING, Said(text))
            if not outcome.whole:
                yield Happened(order.cell.name, PRETRAINING, Ended(0, False, {}, signal=SIGINT))
                return
            yield Finished(order.cell, outcome.failed, False)


def _leans_on(order: Order) -> set[Cell]:
    found = order.request.leans.get(order.cell.variant)
    return set() if found is None else {Cell(found, order.cell.seed)}

"""Run a study: its cells one by one or several at a time, here or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGINT

from clozelab import cluster
from clozelab.errors import UserError
from clozelab.interrupts import first_done, terminable
from clozelab.runs import warm
from clozelab.runs.directory import Run, json_or_empty
from clozelab.runs.events import Ended, Said
from clozelab.runs.machine import Machine
from clozelab.runs.options import SaveOptions
from clozelab.runs.processes import kept_workers, workers
from clozelab.studies import timing
from clozelab.studies.cells import (
    PRETRAINING,
    CellEvent,
    CellJob,
    SideBySide,
    cell_result,
    failure,
    is_done,
    record_failure,
    run_cell,
)
from clozelab.studies.folder import locked_folder
from clozelab.studies.plan import StudyPlan
from clozelab.studies.records import unpack
from clozelab.studies.request import Cell
from clozelab.text.building import cores
from clozelab.training.world import is_distributed

# Errors that fail one cell and not the study: a user's error, a loss that is not finite, a full
# memory or disk, a step that does not compile.
_FAILURES = (ValueError, RuntimeError, OSError, ArithmeticError, LookupError, TypeError)
# One checkpoint is enough to resume and to fine-tune.
SAVE_OPTIONS = SaveOptions(save_every=0, keep=1, max_seconds_between_saves=300)


@dataclass(frozen=True)
class CellStarted:
    """A cell is started or continued."""

    cell: Cell


@dataclass(frozen=True)
class CellFinished:
    """A cell is done, or has failed."""

    cell: Cell
    failed: str | None
    seed_is_done: bool = False  # every variant of this seed is done or has failed


@dataclass(frozen=True)
class CellOutcome:
    """The outcome of a cell in another process."""

    messages: tuple[str, ...]
    failed: str | None
    whole: bool


Submit = Callable[[CellJob], "Future[CellOutcome]"]
StudyEvent = CellStarted | CellEvent | CellFinished


def follow(
    plan: StudyPlan,
    out: Path,
    *,
    machine: Machine,
    saving: SaveOptions = SAVE_OPTIONS,
    on: str | None = None,
    keep_models: bool = False,
) -> Iterator[StudyEvent]:
    """Run the cells that are not done; `on` is the address of a Ray cluster, or local."""
    if is_distributed():
        raise UserError("study runs in one process; leave torchrun out, and see --at-once and --on")
    if on is not None:
        cluster.known(on)
    with locked_folder(out):
        unpack(out)
        plan.write(out)
        jobs = _jobs(plan, out, machine=machine, saving=saving, keep_models=keep_models)
        _write_result(plan, jobs, out)
        unfinished = [job for job in jobs if not is_done(job)]
        with closing(_run_cells(plan, unfinished, on=on)) as events:
            for event in events:
                if isinstance(event, CellFinished):  # the result is written before it is announced
                    _write_result(plan, jobs, out)
                    seed = [job for job in jobs if job.cell.seed == event.cell.seed]
                    ended = all(is_done(job) or failure(job) is not None for job in seed)
                    event = replace(event, seed_is_done=ended)
                yield event


def _run_cells(
    plan: StudyPlan, jobs: list[CellJob], *, on: str | None
) -> Generator[StudyEvent, None, None]:
    """Run cells and yield their events: on a cluster, in parallel processes, or in this one."""
    if not jobs:
        return
    at_once = min(plan.at_once, len(jobs))
    if on is not None:
        machine = replace(jobs[0].machine, sharers=plan.at_once)
        tunings = _tunings(plan, machine, threads=1)  # a task of the cluster has one core
        shared = [replace(job, machine=machine, tunings=tunings) for job in jobs]
        with cluster.jobs(on, run_apart, share=plan.at_once, device=machine.device) as submit:
            yield from _run_in_parallel(shared, submit, len(jobs))
    elif plan.at_once > 1:
        threads = max(1, cores() // at_once)
        machine = replace(jobs[0].machine, sharers=at_once)
        tunings = _tunings(plan, machine, threads=threads)
        shared = [replace(job, machine=machine, tunings=tunings) for job in jobs]
        # A process gets cells of one shape, whose model it has compiled.
        shapes = {v.name: timing.shape(plan.request, v.name) for v in plan.request.study.variants}
        with workers(threads=threads) as processes:
            yield from _run_in_parallel(
                shared,
                lambda job: processes.submit(run_alone, job, topic=shapes[job.cell.variant]),
                at_once,
                later=lambda job: processes.elsewhere(shapes[job.cell.variant]),
            )
    else:
        tunings = _tunings(plan, jobs[0].machine, threads=cores())
        yield from _run_sequentially([replace(job, tunings=tunings) for job in jobs])


def _tunings(plan: StudyPlan, machine: Machine, *, threads: int) -> SideBySide | None:
    """How the fine-tunings of a cell share its part of a machine; None: one after another."""
    study = plan.request.study
    count = min(plan.tunings_at_once, len(study.tasks) * study.tunings)
    if count < 2:
        return None
    # They have half of the cell's part of the memory: its own process may keep compiled models in
    # the other half (warm.py).
    shared = replace(machine, sharers=2 * count * machine.sharers)
    return SideBySide(count, max(1, threads // count), shared)


def _jobs(
    plan: StudyPlan, out: Path, *, machine: Machine, saving: SaveOptions, keep_models: bool
) -> list[CellJob]:
    """Every cell of a plan as a job."""
    folder = str(out.resolve())
    if plan.is_paced:  # evaluations cost some variants more time than others
        saving = replace(saving, evaluate_every=0)
    return [
        CellJob(plan.request, cell, folder, plan.budget(cell.variant), machine, saving, keep_models)
        for cell in plan.request.cells()
    ]


def _write_result(plan: StudyPlan, jobs: list[CellJob], out: Path) -> None:
    """Write the results of all cells that are done or have failed."""
    paces = {name: pace.flops_a_token for name, pace in plan.paces.items()}
    cells = [
        cell_result(job, flops_a_token=paces.get(job.cell.variant))
        for job in jobs
        if is_done(job) or failure(job) is not None
    ]
    before = json_or_empty(out / "result.json").get("cells", [])
    known = {(one["variant"], one["seed"]): one.get("tuning_seconds", 0.0) for one in before}
    for cell in cells:
        if not cell["tuning_seconds"]:  # which old records have nowhere else
            cell["tuning_seconds"] = known.get((cell["variant"], cell["seed"]), 0.0)
    Run(out).write_result({"study": plan.request.study.name, "cells": cells})


def run_alone(job: CellJob) -> CellOutcome:
    """Run one cell in a process of its own; errors other than a user's end the process."""
    messages: list[str] = []
    with ExitStack() as ends:
        ends.enter_context(warm.keeping(sharers=job.machine.sharers))
        if job.tunings is not None:
            ends.enter_context(terminable())  # to stop their processes first
        try:
            for event in run_cell(job):
                if isinstance(event.event, Said):
                    messages.append(event.event.text)
                elif isinstance(event.event, Ended) and not event.event.whole:
                    return CellOutcome(tuple(messages), None, whole=False)
        except UserError as error:
            return CellOutcome(tuple(messages), record_failure(job, error), whole=True)
        except KeyboardInterrupt:
            return CellOutcome(tuple(messages), None, whole=False)
        finally:
            warm.clear()  # others need the memory, and this process may be idle from now on
    return CellOutcome(tuple(messages), None, whole=True)


def run_apart(job: CellJob) -> CellOutcome:
    """Run one cell on a cluster, and record any failure here, in more detail than the cluster."""
    try:
        return run_alone(job)
    except _FAILURES as error:
        return CellOutcome((), record_failure(job, error), whole=True)


def _run_sequentially(jobs: list[CellJob]) -> Iterator[StudyEvent]:
    """Run the cells one by one in this process."""
    with ExitStack() as ends:
        ends.enter_context(warm.keeping())
        ends.callback(warm.forget)
        if (tunings := jobs[0].tunings) is not None:
            ends.callback(kept_workers(threads=tunings.threads).stop)
        for job in jobs:
            yield CellStarted(job.cell)
            failed = None
            try:
                for event in run_cell(job):
                    yield event
                    if isinstance(event.event, Ended) and not event.event.whole:
                        return
            except _FAILURES as error:
                failed = record_failure(job, error)
            warm.clear()
            yield CellFinished(job.cell, failed)


def _run_in_parallel(
    jobs: list[CellJob],
    submit: Submit,
    at_once: int,
    *,
    later: Callable[[CellJob], bool] = lambda job: False,
) -> Iterator[StudyEvent]:
    """Run several cells at a time, each after the cell that it depends on.

    A cell that should wait (`later`) for a busy process comes after those of the next seed.
    """
    running: dict[Future[CellOutcome], CellJob] = {}
    waiting = list(jobs)
    while waiting or running:
        unfinished = {job.cell for job in (*waiting, *running.values())}
        ready = [job for job in waiting if _dependency(job) not in unfinished]
        while ready and len(running) < at_once:
            job = min(ready, key=lambda job: job.cell.seed + 1.5 * later(job))
            running[submit(job)] = job
            ready.remove(job)
            waiting.remove(job)
            yield CellStarted(job.cell)
        for future in first_done(running):
            job = running.pop(future)
            error = future.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            if error is None:
                outcome = future.result()
            else:  # its process died
                outcome = CellOutcome((), record_failure(job, error), whole=True)
            for text in outcome.messages:
                yield CellEvent(job.cell.name, PRETRAINING, Said(text))
            if not outcome.whole:
                yield CellEvent(job.cell.name, PRETRAINING, Ended(0, False, {}, signal=SIGINT))
                return
            yield CellFinished(job.cell, outcome.failed)


def _dependency(job: CellJob) -> Cell | None:
    """The cell whose run a cell depends on."""
    variant = job.request.depends_on.get(job.cell.variant)
    return None if variant is None else Cell(variant, job.cell.seed)

"""Fine-tune: a model, a task and a protocol → runs by seed and grid cell, and the best of them.

A folder of fine-tunings has plan.json (their common settings), a run in each subfolder, and, when
all are done, result.json with every score and the name of the best. Finished trials are not run
again; interrupted ones are resumed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from clozelab import statistics
from clozelab.config import recipe as recipes
from clozelab.config.renamed import recorded, renamed
from clozelab.errors import UserError
from clozelab.files import claim, kind_of, locked, mark, write_text
from clozelab.finetuning import protocols
from clozelab.finetuning.config import FinetuneConfig
from clozelab.finetuning.inputs import (
    FinetuneInputs,
    check,
    forget,
    inputs_for,
    opened,
    splits_of,
    tuning_of,
)
from clozelab.finetuning.request import (
    FinetuneRequest,
    absolute_protocol,
    refuse_changed,
    settled,
    with_settings,
)
from clozelab.finetuning.task import to_toml
from clozelab.finetuning.trial import Trial
from clozelab.interrupts import first_done
from clozelab.runs import warm
from clozelab.runs.directory import PLAN, TASK, Run, json_or_empty, runs_by_seed
from clozelab.runs.events import Ended, Event, Said
from clozelab.runs.machine import Machine
from clozelab.runs.options import SaveOptions
from clozelab.runs.processes import Workers, workers
from clozelab.runs.session import Session
from clozelab.text.building import cores
from clozelab.training.checkpoint import newest, tidy
from clozelab.training.loop import DivergedError
from clozelab.training.world import World, is_distributed, join

_KIND = "fine-tuning"  # in the marker of the folder


@dataclass(frozen=True)
class FinetunePlan:
    """What to fine-tune: one request for each cell of the grid and each seed."""

    request: FinetuneRequest
    cells: tuple[Mapping[str, Any], ...] = ({},)
    seeds: int = 1

    def requests(self) -> list[FinetuneRequest]:
        """Every trial, cell by cell."""
        return [
            replace(
                with_settings(self.request, cell),
                seed=seed,
                name=f"{protocols.named(cell)}/seed-{seed}" if cell else f"seed-{seed}",
            )
            for cell in self.cells
            for seed in range(self.request.seed, self.request.seed + self.seeds)
        ]


@dataclass(frozen=True)
class Happened:
    """An event of one of the trials."""

    trial: str  # its name, which is its folder inside that of the plan
    event: Event


def follow(
    plan: FinetunePlan, out: Path, *, machine: Machine, saving: SaveOptions, at_once: int = 1
) -> Iterator[Happened]:
    """Run the trials that are not done yet, then name the best."""
    if at_once < 1:
        raise UserError(f"--at-once {at_once}: must be at least 1")
    try:
        if at_once > 1:
            yield from _run_in_parallel(plan, out, machine, saving, at_once)
        else:
            yield from _run_sequentially(plan, out, machine, saving)
    finally:
        forget()


def _run_sequentially(
    plan: FinetunePlan, out: Path, machine: Machine, saving: SaveOptions
) -> Iterator[Happened]:
    """Run the trials in this process, or in all of torchrun's, of which the first one writes."""
    with join(machine.device) as world, _locked(out) if world.is_main else nullcontext():
        if world.is_main:
            yield from _write_plan(plan, out)
        world.barrier()
        signal = 0
        for request in _unfinished(plan, out):
            if signal:  # interrupted during the last step of the trial before
                raise KeyboardInterrupt(signal)
            for event in trial(inputs_for(request), out / request.name, machine, saving, world):
                yield Happened(request.name, event)
                if isinstance(event, Ended):
                    signal = event.signal
                    if not event.whole:
                        return
        if world.is_main:
            _write_summary(plan, out)
        world.barrier()


def _unfinished(plan: FinetunePlan, out: Path) -> list[FinetuneRequest]:
    """The requests of the trials that are not done yet."""
    return [request for request in plan.requests() if Run(out / request.name).result() is None]


def _write_summary(plan: FinetunePlan, out: Path) -> None:
    if not _unfinished(plan, out):
        Run(out).write_result(summary(out, plan.request.data.task, cells=plan.cells))


def trial(
    inputs: FinetuneInputs, place: Path, machine: Machine, saving: SaveOptions, world: World
) -> Iterator[Event]:
    """Start or resume one fine-tuning."""
    run = Run(place)
    if run.recipe_file.exists():  # it is resumed with the same machine settings
        facts, recipe = run.machine(), inputs.recipe
        machine = machine.recalled(facts, world.device, recipe=recipe, processes=world.size)
    work = Trial(inputs, machine, world)
    often = work.sampler.epoch if saving.evaluate_every is None else saving.evaluate_every
    saving = replace(saving, evaluate_every=often, save_every=saving.save_every or 0, keep=1)
    session = Session(work, run, saving, again="the same finetune command")
    # A process may outlive the one that locks the folder by a few seconds.
    with run.writing() if world.is_main else nullcontext():
        yield from _start_or_resume(session, work)


def _start_or_resume(session: Session, work: Trial) -> Iterator[Event]:
    """Start or resume a trial in a locked folder."""
    run, world, inputs = session.run, work.world, work.inputs
    started = run.recipe_file.exists()
    if world.is_main:
        tidy(run.checkpoints, keep=session.saving.checkpoints)
        if not started:
            Run.create(run.path, recipe_toml=recipes.to_toml(inputs.recipe), machine=work.facts())
        write_text(run.path / TASK, to_toml(inputs.task))
    world.barrier()
    checkpoint, passed = newest(run.checkpoints)
    for line in passed:
        yield Said(line)
    first, cursor = 0, work.start()
    if checkpoint is not None:
        first, cursor = checkpoint.step, work.recall(checkpoint)
        session.recall(checkpoint.state())
        session.last = work.chosen()
    if world.is_main and started:
        run.resumed(first)
        if first < work.schedule.total:
            yield from session.settle(first)
    world.barrier()
    try:
        yield from session.go(first, cursor)
    except DivergedError as error:  # the other cells of a grid go on
        result = {"diverged": str(error)}
        if world.is_main:
            run.write_result(result)
        yield Said(str(error))
        yield Ended(work.schedule.total, True, result)


def planned(
    request: FinetuneRequest,
    *,
    grid: Sequence[str] | None = None,
    seeds: int = 1,
    out: Path | None = None,
) -> FinetunePlan:
    """The plan of a request; an empty `grid` is that of the protocol.

    What was started in `out` keeps its protocol, unless the request names one. Missing splits,
    wrong settings and an unsuitable teacher are refused here, before anything is written.
    """
    if seeds < 1:
        raise UserError(f"--seeds {seeds}: must be at least 1")
    forget()  # caches of an earlier plan: files may have changed
    protocol = request.protocol or (json_or_empty(out / PLAN).get("protocol") if out else None)
    protocol = protocol or protocols.protocol_for(opened(request.model).recipe)
    digests = request.data.digests(splits_of)
    request = replace(request, protocol=protocol, digests=digests)
    plan = FinetunePlan(request, seeds=seeds)
    if grid is not None:
        kind = splits_of(request.data).kind
        task = protocols.task_word(request.data.task, kind)
        own = protocols.grid(protocol, task) if not grid else {}
        plan = replace(plan, cells=tuple(protocols.cells(own, grid, kind=kind)))
    for cell in plan.cells:
        check(with_settings(request, cell))
    return plan


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Lock the folder; one with other contents is refused."""
    if kind_of(out) is None and {"model", "data"} <= json_or_empty(out / PLAN).keys():
        mark(out, _KIND)  # a folder from before there were markers
    claim(out, _KIND)
    with locked(out, work="fine-tuning"):
        yield


def _write_plan(plan: FinetunePlan, out: Path) -> Iterator[Happened]:
    """Write the plan, or check it against that of the folder."""
    now = asdict(settled(replace(plan.request, seed=0, name="")))
    now["tuning"] = asdict(tuning_of(plan.request, opened(plan.request.model)))
    text = json.dumps(now, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    file = out / PLAN
    if file.exists() and any(place.is_dir() for place in out.iterdir()):  # a run was started
        before, now = _saved_plan(file), json.loads(text)
        if before.get("digests"):  # which say whether a folder has the same data, wherever it is
            before["data"]["root"] = now["data"]["root"]
        changed = sorted(k for k in {*before, *now} - {"digests"} if before.get(k) != now.get(k))
        if changed:
            raise UserError(
                f"{out}: was started differently ({', '.join(changed)}); name another folder"
                " with --out"
            )
        if before.get("digests"):
            since = f"{out} was started"
            refuse_changed(before["digests"], now["digests"], since=since, more=False)
            return
        said = (
            f"{out}: was started before clozelab recorded digests of its data; do not change"
            " the files from now on"
        )
        yield Happened("", Said(said))
    write_text(file, text)


def _saved_plan(file: Path) -> dict[str, Any]:
    try:
        plan = dict(json.loads(file.read_text(encoding="utf-8")))
        with recorded():
            known = [field.name for field in fields(FinetuneConfig)]
            plan["tuning"] = renamed(plan["tuning"], known, place=str(file), key="tuning")
        plan["data"] = dict(plan["data"])
        plan["protocol"] = absolute_protocol(plan.get("protocol"))  # once recorded as it was given
        return plan
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{file}: cannot be read; name another folder with --out") from None


def _run_in_parallel(
    plan: FinetunePlan, out: Path, machine: Machine, saving: SaveOptions, at_once: int
) -> Iterator[Happened]:
    """Run several trials at a time on one device, each in its own process."""
    if is_distributed():
        raise UserError("--at-once needs a single process; leave it out under torchrun")
    count = max(1, min(at_once, len(_unfinished(plan, out))))
    shared = replace(machine, sharers=count)
    with workers(threads=max(1, cores() // count)) as processes:
        for _, happened in side_by_side(
            {out: plan}, processes, machine=shared, saving=saving, at_once=count
        ):
            yield happened


def side_by_side(
    plans: Mapping[Path, FinetunePlan],
    processes: Workers,
    *,
    machine: Machine,
    saving: SaveOptions,
    at_once: int,
) -> Generator[tuple[Path, Happened], None, None]:
    """Run the trials of plans, each in a process of its own; an error stops all of them.

    An event comes with the folder of its plan.
    """
    running: dict[Future[list[Event]], tuple[Path, str]] = {}
    with ExitStack() as locks:
        for out, plan in plans.items():
            locks.enter_context(_locked(out))
            yield from ((out, happened) for happened in _write_plan(plan, out))
        forget()  # the processes read models and examples for themselves
        waiting = [(out, request) for out in plans for request in _unfinished(plans[out], out)]
        for out, plan in plans.items():  # whose trials may all be done
            _write_summary(plan, out)
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    out, request = waiting.pop(0)
                    place = out / request.name
                    started = processes.submit(_run_alone, request, place, machine, saving)
                    running[started] = (out, request.name)
                for done in first_done(running):
                    out, name = running.pop(done)
                    for event in done.result():
                        yield out, Happened(name, event)
                    _write_summary(plans[out], out)
        finally:
            if running:
                processes.stop()


def _run_alone(
    request: FinetuneRequest, place: Path, machine: Machine, saving: SaveOptions
) -> list[Event]:
    """Run one trial in its own process, and return its messages and its end."""
    with warm.keeping(sharers=machine.sharers), join(machine.device) as world:
        try:
            events = trial(inputs_for(request), place, machine, saving, world)
            return [event for event in events if isinstance(event, Said | Ended)]
        finally:
            warm.clear()  # others need the memory, and this process may be idle from now on


def summary(out: Path, task: str, *, cells: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Every score of every trial in the folder, a summary over seeds, and the best trial.

    `cells` are those of the last grid; cells of earlier grids are kept.
    """
    before = (Run(out).result() or {}).get("cells", [])
    settings = {cell["name"]: cell["settings"] for cell in before}
    settings |= {protocols.named(cell) if cell else "": dict(cell) for cell in cells}
    records: list[dict[str, Any]] = []
    best, selected = "", -math.inf
    constant: dict[str, float] = {}  # scores of a constant answer
    seconds = 0.0
    for name, cell in settings.items():
        runs = runs_by_seed(out / name).items()
        results = {seed: result for seed, run in runs if (result := run.result()) is not None}
        seconds += sum(result.get("seconds", 0.0) for result in results.values())
        done = {seed: result for seed, result in results.items() if "dev" in result}
        for seed, result in done.items():
            constant |= result.get("constant", {})
            if result["selected"] > selected:
                best, selected = f"{name}/seed-{seed}".lstrip("/"), result["selected"]
        if done:
            records.append(_cell_record(name, cell, done, diverged=len(results) - len(done)))
    if not records:
        raise DivergedError(
            f"{out}: every run diverged; lower the learning rate (--set learning_rate=…) or"
            " lengthen the warm-up, and use a new folder"
        )
    named = {"task": task, "best": best, "selected": selected}
    return {**named, "constant": constant, "seconds": seconds, "cells": records}


def tunings_of(result: Mapping[str, Any]) -> list[Mapping[str, float]]:
    """The scores of each fine-tuning; one that diverged scores as a constant answer."""
    cell = result["cells"][0]
    diverged = [result.get("constant", {})] * cell.get("diverged", 0)
    return [*cell["seeds"].values(), *diverged]


def _cell_record(
    name: str, settings: Mapping[str, Any], results: Mapping[int, Any], *, diverged: int
) -> dict[str, Any]:
    """The scores of a cell by seed, and over the seeds."""
    scores = {
        str(seed): {metric: value for metric, value in result["dev"].items() if metric != "step"}
        for seed, result in results.items()
    }
    return {
        "name": name,
        "settings": settings,
        "selected": statistics.summary([result["selected"] for result in results.values()]),
        "scores": {
            metric: statistics.summary([values[metric] for values in scores.values()])
            for metric in next(iter(scores.values()))
        },
        "seeds": scores,
        "diverged": diverged,
    }

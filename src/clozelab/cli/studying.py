"""The command study: plan it, run its cells with a live view, and write its page."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from clozelab.cli.console import err, out, warn
from clozelab.cli.training import View, machine_of, progress, resumable
from clozelab.errors import UserError
from clozelab.interrupts import Stopped

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from clozelab.runs.events import Event
    from clozelab.studies.plan import StudyPlan
    from clozelab.studies.request import StudyRequest
    from clozelab.studies.run import StudyEvent
    from clozelab.studies.spec import StudySpec


def study(arguments: argparse.Namespace) -> None:
    """List the studies, show a plan, or run it."""
    from clozelab.cli.views import studies as views
    from clozelab.studies import spec as studies

    if arguments.name is None:
        out.print(views.table(studies.read(name) for name in studies.names()))
        return
    if arguments.plan and not arguments.data:
        out.print(views.described(_chosen(arguments)))
        return
    request = _request(arguments)
    if not arguments.out and not arguments.plan:
        raise UserError(f"study {arguments.name} needs --out DIR for what it makes; or say --plan")
    plan = _planned(arguments, request)
    out.print(views.plan(plan.request.study, plan.as_json()))
    if arguments.plan:
        return
    place = Path(arguments.out)
    _watch(_running(arguments, plan, place), plan, place)


def _chosen(arguments: argparse.Namespace) -> StudySpec:
    """The study, with the tasks, variants and seeds that the words ask for."""
    from clozelab.studies import spec as studies

    tasks = None if arguments.tasks is None else studies.tasks_of(arguments.tasks)
    variants = None if arguments.variants is None else arguments.variants.split(",")
    return studies.read(arguments.name).narrowed(
        tasks=tasks,
        variants=variants,
        seeds=arguments.seeds,
        overrides=arguments.set,
        tuning=arguments.tune,
    )


def _request(arguments: argparse.Namespace) -> StudyRequest:
    from clozelab.studies.request import make_request

    return make_request(
        _chosen(arguments),
        arguments.data,
        size=arguments.size,
        budget=arguments.budget,
        task_data=arguments.task_data,
    )


def _planned(arguments: argparse.Namespace, request: StudyRequest) -> StudyPlan:
    from clozelab.studies.plan import make_plan

    place = Path(arguments.out) if arguments.out else None
    planning = make_plan(request, machine_of(arguments), out=place, at_once=arguments.at_once)
    with err.status("planning", spinner="line"):
        while True:
            try:
                warn(next(planning).text)
            except StopIteration as done:
                plan: StudyPlan = done.value
                return plan


def _running(arguments: argparse.Namespace, plan: StudyPlan, place: Path) -> Iterator[StudyEvent]:
    from clozelab.studies.run import follow

    machine = machine_of(arguments)
    return follow(plan, place, machine=machine, on=arguments.on, keep_models=arguments.keep_models)


def _watch(running: Iterator[StudyEvent], plan: StudyPlan, place: Path) -> None:
    """Draw what the cells tell, and write the page whenever a seed is done."""
    from clozelab.cli.views import studies as views
    from clozelab.reporting.study import write_page
    from clozelab.runs.directory import Run
    from clozelab.studies.run import CellFinished, CellStarted

    study, failed = plan.request.study, list[str]()
    cells = plan.request.cells()
    with resumable(running), progress() as bars:
        everything = bars.add_task("cells", total=len(cells), told="")
        view = _Cell(bars)
        for told in running:
            bars.update(everything, completed=_done(place))
            if isinstance(told, CellStarted):
                err.print(escape(told.cell.name), style="bold")
            elif isinstance(told, CellFinished):
                view.end()
                if told.failed is not None:
                    failed.append(told.cell.name)
                    warn(f"{told.cell.name} failed: {told.failed}")
                bars.update(everything, completed=_done(place))
                if told.seed_is_done:
                    write_page(place)
            else:
                view.show(told.stage, told.event)
    write_page(place)
    result = Run(place).result()
    if result is not None and result["cells"]:
        out.print(views.scores(study, result))
    err.print(escape(f"{place / 'page.html'}: {_done(place)} of {len(cells)} cells"))
    if failed:
        raise UserError(
            f"{len(failed)} of {len(cells)} cells failed ({', '.join(failed)}); their failed.json"
            " tells why, and the same command tries them again"
        )


def _done(place: Path) -> int:
    """The cells that have come to their end, whichever."""
    from clozelab.runs.directory import Run

    return len((Run(place).result() or {"cells": []})["cells"])


class _Cell:
    """The line of the running cell: its pretraining, then its tasks."""

    def __init__(self, bars: Progress) -> None:
        self.bars = bars
        self.view: View | None = None
        self.heard = set[str]()

    def show(self, stage: str, event: Event) -> None:
        """Draw an event."""
        from clozelab.runs.events import Began, Ended, Said

        if isinstance(event, Ended):
            self.end()
            if not event.whole:
                raise Stopped(
                    "stopped, and saved; run the same command again to go on", signal=event.signal
                )
        elif isinstance(event, Said) and event.text in self.heard:
            return  # what is so of the data is so in every cell
        else:
            self.heard |= {event.text} if isinstance(event, Said) else set()
            if isinstance(event, Began):
                err.print(escape(stage))
            self.view = self.view or View(self.bars)
            self.view.show(event)

    def end(self) -> None:
        """Take the line away."""
        task: TaskID | None = self.view.task if self.view else None
        if task is not None:
            self.bars.remove_task(task)
        self.view = None

"""Commands that pretrain: pretrain, distil; a run's events as a live view."""

from __future__ import annotations

import argparse
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from clozelab.cli.console import err, read_recipe, warn
from clozelab.errors import UserError
from clozelab.interrupts import Stopped, signal_of

if TYPE_CHECKING:
    from clozelab.runs.diagnostics import StepTimes
    from clozelab.runs.events import Began, Evaluated, Event, Scored
    from clozelab.runs.machine import Machine
    from clozelab.runs.session import SaveOptions
    from clozelab.training.loop import Step


def pretrain(arguments: argparse.Namespace) -> None:
    """Train an encoder, or go on with a run."""
    from clozelab.pretraining import starting
    from clozelab.pretraining.pretrain import pretrain

    if arguments.resume is not None:
        _resume(arguments)
        return
    if arguments.recipe is None or not arguments.data or arguments.out is None:
        raise UserError(
            "pretrain needs a recipe, --data CORPUS and --out DIR; or --resume DIR to go on"
        )
    recipe = read_recipe(arguments)
    settings = {"data": arguments.data, "seed": arguments.seed or 0, "budget": arguments.budget}
    if arguments.start is None:
        task = starting.fresh(recipe, **settings)
    elif arguments.size is not None or any(one.startswith("encoder.") for one in arguments.set):
        raise UserError("--from brings its own encoder: leave --size and --set encoder.… out")
    else:
        shaped = any(one.startswith(("blocks.", "schedule.")) for one in arguments.set)
        task = starting.continued(recipe, arguments.start, shaped=shaped, **settings)
    place, machine, saving = (
        Path(arguments.out),
        machine_of(arguments),
        _save_options(arguments),
    )
    watch(pretrain(task, place, machine=machine, saving=saving), place)


def _resume(arguments: argparse.Namespace) -> None:
    """Go on with a run; a recipe may be named beside it, to be sure that it is the run's."""
    from clozelab.pretraining import starting
    from clozelab.pretraining.pretrain import resume
    from clozelab.runs.directory import Run

    place, machine = Path(arguments.resume), machine_of(arguments)
    if arguments.out is not None or arguments.start is not None:
        raise UserError(f"{place}: is resumed where it stands; leave --out and --from out")
    given = read_recipe(arguments) if arguments.recipe else None
    changed = given is None and (arguments.set or arguments.size)
    if changed or arguments.budget or arguments.seed is not None:
        raise UserError(
            f"{place}: a run is resumed as it was started; leave --set, --size, --seed and --budget"
            f" out, or start a run of its own with --from {place}"
        )
    task = starting.resumed(place, recipe=given, data=arguments.data)
    saving = _save_options(arguments, Run.open(place).machine())
    watch(resume(task, place, machine=machine, saving=saving), place)


def distil(arguments: argparse.Namespace) -> None:
    """Train a student under a teacher."""
    from clozelab.pretraining import starting
    from clozelab.pretraining.pretrain import pretrain

    task = starting.taught(
        read_recipe(arguments),
        arguments.teacher,
        data=arguments.data,
        seed=arguments.seed or 0,
        budget=arguments.budget,
        sized=arguments.size is not None,
        own=[
            key.removeprefix("encoder.")
            for key in (one.partition("=")[0] for one in arguments.set)
            if key.startswith("encoder.")
        ],
    )
    place = Path(arguments.out)
    machine, saving = machine_of(arguments), _save_options(arguments)
    watch(pretrain(task, place, machine=machine, saving=saving), place)


def watch(events: Iterator[Event], place: Path) -> None:
    """Draw a run's events until it ends."""
    from clozelab.runs.diagnostics import SENTENCES
    from clozelab.runs.events import Ended

    with progress() as bars:
        view = View(bars)
        for event in events:
            if isinstance(event, Ended):
                last = event
            elif speaks():
                view.show(event)
    if not last.whole:
        raise Stopped(
            f"stopped after step {last.step:,}, which is saved; go on with clozelab pretrain"
            f" --resume {place}",
            signal=last.signal,
        )
    if speaks():
        err.print(escape(f"{place}: {last.step:,} steps, {last.result['tokens']:,} tokens"))
        times = last.result.get("times", {}).items()
        if times:
            err.print("time: " + ", ".join(f"{name} {spent:.1f} s" for name, spent in times))
        if "limited_by" in last.result:
            word = last.result["limited_by"]
            err.print(escape(f"{word}-bound: {SENTENCES[word]}"))
    stop_after(place, last.signal)


def stop_after(place: Path, signal: int) -> None:
    """Stop what would follow, where a signal came when all steps were taken."""
    if signal:
        raise Stopped(f"stopped; {place} is done", signal=signal)


@contextmanager
def resumable(running: Iterator[Any]) -> Iterator[None]:
    """End what is running with the view of it; an interrupt, too, says how to go on."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Stopped(
            "stopped; what was saved is kept, and the same command goes on from there",
            signal=signal_of(error),
        ) from None
    finally:
        if isinstance(running, Generator):  # which, closed, stops the processes that it started
            running.close()


def speaks() -> bool:
    """Whether this process does: of those of torchrun, one."""
    return os.environ.get("RANK", "0") == "0"


def progress() -> Progress:
    """Bars with rate and time left, where somebody watches."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[told]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=err, disable=not (speaks() and err.is_terminal))


class View:
    """One line of progress: loss, tokens a second, the device's share of its peak, the limit."""

    def __init__(self, bars: Progress) -> None:
        self.bars = bars
        self.task: TaskID | None = None
        self.spent: StepTimes | None = None
        self.began: Began | None = None

    def show(self, event: Event) -> None:
        """Draw an event."""
        from clozelab.runs.events import Began, Evaluated, Refitted, Said, Scored
        from clozelab.training.loop import Step

        if isinstance(event, Began):
            self.begin(event)
        elif isinstance(event, Said):
            warn(event.text)
        elif isinstance(event, Step):
            self.step(event)
        elif isinstance(event, Refitted):
            if self.task is not None:
                self.bars.update(self.task, total=event.steps)
        elif isinstance(event, Evaluated):
            self.evaluated(event)
        elif isinstance(event, Scored):
            self.scored(event)

    def begin(self, event: Began) -> None:
        """A run's first line, and its bar."""
        self.began = event
        done = f" ({event.first:,} done)" if event.first else ""
        err.print(
            escape(
                f"{event.name}: {event.parameters:,} parameters, {event.steps:,} steps"
                f"{done}, {event.precision} on {event.device}, micro-batches of"
                f" {event.micro_tokens:,} tokens"
            )
        )
        self.task = self.bars.add_task(
            event.name, total=event.steps, completed=event.first, told=""
        )

    def step(self, event: Step) -> None:
        """The bar a step further."""
        from clozelab.runs.diagnostics import FIRST_TIMED, StepTimes, bottleneck
        from clozelab.runs.events import means

        losses = " ".join(f"{name} {one['loss']:.3f}" for name, one in means(event.sums).items())
        # The first step compiles; recent steps count most.
        keep = 0.0 if event.number - self._first() <= FIRST_TIMED else 0.9
        self.spent = (self.spent or StepTimes()).then(event, keep=keep)
        told = f"{losses} · {self.spent.speed:,.0f} tokens/s"
        if self.began is not None:
            flops, peak = self.began.flops_a_token, self.began.peak
            told += f" · {self.spent.speed * flops / peak:.0%} of peak" if peak else ""
            found = bottleneck(self.spent, flops_a_token=flops, peak=peak)
            told += f" · {found.word}-bound" if found else ""
        if self.task is not None:
            self.bars.update(self.task, completed=event.number, told=told)

    def scored(self, event: Scored) -> None:
        """A line with the scores on the dev set."""
        told = ", ".join(
            f"{name.replace('_', ' ')} {one:.2f}" for name, one in event.scores.items()
        )
        err.print(escape(f"step {event.step:,}: dev {told}"))

    def evaluated(self, event: Evaluated) -> None:
        """A line with the losses on held-out text."""
        from clozelab.runs.events import means

        told = ", ".join(
            f"{name} {one['loss']:.3f} ({one['accuracy']:.1%} right)"
            if "accuracy" in one
            else f"{name} {one['loss']:.3f}"
            for name, one in means(event.sums).items()
        )
        err.print(escape(f"step {event.step:,}: held out {told}"))

    def _first(self) -> int:
        return self.began.first if self.began else 0


def machine_of(arguments: argparse.Namespace) -> Machine:
    """What a command says of the machine."""
    from clozelab.runs.machine import Machine

    return Machine(
        device=arguments.device,
        precision=arguments.precision,
        micro_batch=arguments.micro_batch,
        workers=arguments.workers,
        compile=arguments.compile,
        kernels=arguments.kernels,
        graphs=arguments.graphs,
        recompute=arguments.recompute,
        shard=getattr(arguments, "shard", None),
    )


def _save_options(
    arguments: argparse.Namespace, recorded: Mapping[str, Any] | None = None
) -> SaveOptions:
    """What a command says of saving and evaluating; a resume keeps as many as it `recorded`."""
    from clozelab.runs.session import SaveOptions

    keep = (recorded or {}).get("keep", SaveOptions.keep)
    return SaveOptions(
        save_every=arguments.save_every,
        keep=keep if arguments.keep is None else arguments.keep,
        evaluate_every=arguments.evaluate_every,
        tensorboard=arguments.tensorboard,
        evaluate_blocks=arguments.evaluate_blocks,
        max_seconds_between_saves=600 if arguments.save_every is None else None,
    )

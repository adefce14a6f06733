"""What a function shows while it works: lines and a bar on standard error, events to a callback."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich import progress as meters
from rich.console import Console
from rich.text import Text

from clozelab.errors import UserError
from clozelab.interrupts import Stopped, signal_of
from clozelab.nearest import counted
from clozelab.options import option
from clozelab.remote.access import without_secrets
from clozelab.remote.copies import FolderCopy

if TYPE_CHECKING:
    from clozelab.runs.diagnostics import StepTimes
    from clozelab.runs.events import Began, Ended, Evaluated, Event, Probed, Refitted, Said, Scored
    from clozelab.training.loop import Step

T = TypeVar("T")


class _Err(Console):
    def on_broken_pipe(self) -> None:
        """Go on: nobody reads the messages, but the work may be wanted."""
        self.quiet = True


err = _Err(stderr=True, highlight=False, emoji=False, markup=False, soft_wrap=True)


def speaks() -> bool:
    """Whether this process does: of those of torchrun, one."""
    return os.environ.get("RANK", "0") == "0"


class _Rate(meters.ProgressColumn):
    """How much is done in a second."""

    def render(self, task: meters.Task) -> Text:
        """Nothing until it is known."""
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")


@dataclass(frozen=True)
class Watch:
    """How the progress is reported."""

    progress: bool = option("report progress on standard error", True)
    on_event: Callable[[Any], None] | None = option(
        "called with each event as it happens; in fine-tuning with its trial and event"
    )

    def say(self, line: str, *, style: str | None = None) -> None:
        """Say what is done."""
        if self.progress and speaks():
            err.print(without_secrets(line), style=style)

    def warn(self, *lines: str) -> None:
        """Say what is not an error."""
        for line in lines:
            self.say(line, style="yellow")

    def tell(self, event: Any) -> None:
        """Hand an event on."""
        if self.on_event is not None:
            self.on_event(event)

    def bars(self, *columns: Any, transient: bool = False) -> meters.Progress:
        """Bars that are named, with such columns and the time left, where somebody watches."""
        hidden = not (self.progress and speaks() and (err.is_terminal or err.is_jupyter))
        done, elapsed = meters.MofNCompleteColumn(), meters.TimeElapsedColumn()
        name, status = (
            meters.TextColumn(text, markup=False)
            for text in ("{task.description}", "{task.fields[status]}")
        )
        columns = (meters.BarColumn(), *(columns or (done, status, elapsed)))
        how: dict[str, Any] = {"console": err, "disable": hidden, "transient": transient}
        return meters.Progress(name, *columns, meters.TimeRemainingColumn(), **how)

    def follow(self, work: Iterator[Any], show: Callable[[Any], None]) -> Any:
        """Show each event of some work, and hand it on, until it is done; what it returns."""
        with closed(work):
            while True:
                try:
                    event = next(work)
                except StopIteration as ended:
                    return ended.value
                self.tell(event)
                show(event)

    def drain(self, work: Generator[int | tuple[int, int], None, T], name: str, total: int) -> T:
        """Draw how far the work is until it is done; what it returns."""
        with self.bars(meters.TaskProgressColumn(), _Rate(), transient=True) as bars:
            task = bars.add_task(name, total=total)

            def show(event: int | tuple[int, int]) -> None:
                done, all_of_it = event if isinstance(event, tuple) else (event, total)
                bars.update(task, completed=done, total=all_of_it)

            result: T = self.follow(work, show)
            return result


def follow_run(
    events: Iterator[Event], place: Path, watch: Watch, *, verb: str = "pretrain"
) -> None:
    """Draw a run's events until it ends; the verb is the command that goes on with it."""
    from clozelab.runs.diagnostics import SENTENCES

    again = f"clozelab {verb} --resume {place}"
    with watch.bars() as bars:
        view = View(bars, watch)
        try:
            watch.follow(events, view.show)
        except KeyboardInterrupt as error:  # told twice to stop, or before the first step
            if not (place / "checkpoints").is_dir():
                raise
            problem = f"stopped within a step; resume from the last checkpoint with {again}"
            raise Stopped(problem, signal=signal_of(error)) from None
    last = view.ended
    assert last is not None
    if not last.whole:
        raise Stopped(
            f"stopped after step {last.step:,}, which is saved; resume with {again}",
            signal=last.signal,
        )
    watch.say(f"{place}: {counted(last.step, 'step')}, {last.result.get('tokens', 0):,} tokens")
    if times := last.result.get("times"):
        watch.say("time: " + ", ".join(f"{name} {spent:.1f} s" for name, spent in times.items()))
    if "limited_by" in last.result:
        word = last.result["limited_by"]
        watch.say(f"{word}-bound: {SENTENCES[word]}")
    stop_after(place, last.signal)


def stop_after(place: Path, signal: int) -> None:
    """Stop what would follow, where a signal came when all steps were taken."""
    if signal:
        raise Stopped(f"stopped; {place} is done", signal=signal)


@contextmanager
def copying(place: Path, url: str | None, watch: Watch) -> Iterator[Callable[[], None]]:
    """Keep a copy of a folder at a URL, if one is named; the function brings it up to date.

    Nothing waits for the copy but the end, where one that is not complete is an error.
    """
    if url is None or not speaks():
        yield lambda: None
        return
    copy, done = FolderCopy(place, url, warn=watch.warn), False
    try:
        yield copy.update
        done = True
    finally:
        if not copy.close(seconds=2):
            watch.say(f"copying the remaining files to {url}; Ctrl-C skips them")
            copy.close()
        if copy.behind and not done:
            watch.warn(copy.behind)
    if copy.behind:
        raise UserError(f"{place}: is saved, but {copy.behind}")


def noticed(events: Iterator[T], update: Callable[[], None]) -> Iterator[T]:
    """The same events; after each checkpoint the copy of the run is brought up to date."""
    from clozelab.runs.events import Saved

    with closed(events):
        for event in events:
            if isinstance(getattr(event, "event", event), Saved):
                update()
            yield event


@contextmanager
def closed(work: Iterator[Any]) -> Iterator[None]:
    """End some work with its reader: it stops the processes that it started, and frees its locks.

    Otherwise it would last as long as an error of the reader, which a notebook keeps.
    """
    try:
        yield
    finally:
        if isinstance(work, Generator):
            work.close()


@contextmanager
def resumable() -> Iterator[None]:
    """Let an interrupt say how to go on."""
    try:
        yield
    except Stopped:  # says already how to go on
        raise
    except KeyboardInterrupt as error:
        raise Stopped(
            "stopped; what was saved is kept, and the same command continues from there",
            signal=signal_of(error),
        ) from None


class View:
    """One line of progress: loss, tokens a second, the device's share of its peak, the limit.

    Of several runs, one after another, each has the line while it goes; what was said of one is
    not said again of the next, since what is so of the data is so in every run.
    """

    def __init__(self, bars: meters.Progress, watch: Watch) -> None:
        self.bars, self.watch = bars, watch
        self.task: meters.TaskID | None = None
        self.spent: StepTimes | None = None
        self.began: Began | None = None
        self.ended: Ended | None = None
        self.warned = set[str]()

    def show(self, event: Event) -> None:
        """Draw an event: by the method that has the name of its kind, if there is one."""
        draw = getattr(self, f"_{type(event).__name__.lower()}", None)
        if draw is not None:
            draw(event)

    def show_stage(self, event: Event, stage: str, *, name: bool = True) -> None:
        """Draw an event of one of several runs, whose stage is named as it begins."""
        from clozelab.runs.events import Began, Ended

        if isinstance(event, Began) and name:
            self.watch.say(stage)
        self.show(event)
        if isinstance(event, Ended):
            if event.whole and self.task is None:  # it began in another process
                self.watch.say(f"{stage}: {_outcome(event)}")
            self.clear()
            if not event.whole:
                raise Stopped(
                    f"stopped after step {event.step:,} of {stage}, which is saved; run the"
                    " same command again to continue",
                    signal=event.signal,
                )

    def clear(self) -> None:
        """Take the line of the last run away."""
        if self.task is not None:
            self.bars.remove_task(self.task)
        self.task = None

    def _said(self, event: Said) -> None:
        if event.text not in self.warned:
            self.warned.add(event.text)
            self.watch.warn(event.text)

    def _refitted(self, event: Refitted) -> None:
        if self.task is not None:
            self.bars.update(self.task, total=event.steps)

    def _ended(self, event: Ended) -> None:
        self.ended = event

    def _began(self, event: Began) -> None:
        """A run's first line, and its bar."""
        self.clear()
        self.began, self.spent = event, None
        done = f" ({event.first:,} done)" if event.first else ""
        self.watch.say(
            f"{event.name}: {event.parameters:,} parameters, {counted(event.steps, 'step')}{done},"
            f" {event.precision} on {event.device}, micro-batches of {event.micro_tokens:,} tokens"
        )
        steps: dict[str, Any] = {"total": event.steps, "completed": event.first}
        self.task = self.bars.add_task(event.name, **steps, status="")

    def _step(self, event: Step) -> None:
        from clozelab.runs.diagnostics import FIRST_TIMED, StepTimes, bottleneck
        from clozelab.runs.events import means

        losses = " ".join(f"{name} {m['loss']:.3f}" for name, m in means(event.sums).items())
        # The first step compiles; recent steps count most.
        first = self.began.first if self.began else 0
        keep = 0.0 if event.number - first <= FIRST_TIMED else 0.9
        self.spent = (self.spent or StepTimes()).then(event, keep=keep)
        status = f"{losses} · {self.spent.speed:,.0f} tokens/s"
        if self.began is not None:
            flops, peak = self.began.flops_a_token, self.began.peak
            status += f" · {self.spent.speed * flops / peak:.0%} of peak" if peak else ""
            limit = bottleneck(self.spent, flops_a_token=flops, peak=peak)
            status += f" · {limit}-bound" if limit else ""
        if self.task is not None:
            self.bars.update(self.task, completed=event.number, status=status)

    def _scored(self, event: Scored) -> None:
        scores = [f"{_words(name)} {score:.2f}" for name, score in event.scores.items()]
        shared = event.constant.keys() & event.scores.keys()
        blind = shared and all(isclose(event.scores[n], event.constant[n]) for n in shared)
        note = ", the same as a constant prediction" if blind else ""
        self.watch.say(f"step {event.step:,}: dev {', '.join(scores)}{note}")

    def _probed(self, event: Probed) -> None:
        scores = [
            f"{task} {_words(name)} {score:.2f}"
            for task, by_metric in event.scores.items()
            for name, score in by_metric.items()
            if name != "layer"
        ]
        self.watch.say(f"step {event.step:,}: probes {', '.join(scores)}")

    def _evaluated(self, event: Evaluated) -> None:
        from clozelab.runs.events import means

        losses = []
        for name, mean in means(event.sums).items():
            right = f" ({mean['accuracy']:.1%} right)" if "accuracy" in mean else ""
            losses.append(f"{name} {mean['loss']:.3f}{right}")
        text = event.of.replace("_", " ")
        self.watch.say(f"step {event.step:,}: {text} {', '.join(losses)}")


def _outcome(event: Ended) -> str:
    """How a run ended: its steps and its scores on the dev set, or that it diverged."""
    if "diverged" in event.result:
        return "diverged"
    dev = event.result.get("dev", {}).items()
    scores = ", ".join(f"{_words(name)} {score:.2f}" for name, score in dev if name != "step")
    return counted(event.step, "step") + (f", dev {scores}" if scores else "")


def _words(name: str) -> str:
    return name.replace("_", " ")

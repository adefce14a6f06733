"""A run from its first step to its last: train, log, evaluate, save, stop when told to."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from clozelab import recipe as recipes
from clozelab.contracts import UserError
from clozelab.records import Run
from clozelab.runs.events import Ended, Evaluated, Event, Said, Saved, means
from clozelab.runs.heldout import HeldOut, held_out
from clozelab.runs.log import Log
from clozelab.runs.saving import bare, save
from clozelab.runs.setup import Setup
from clozelab.runs.steps import Cursor
from clozelab.training.checkpoint import newest
from clozelab.training.feed import ahead
from clozelab.training.loop import DivergedError, Step, train

_PATIENCE = 600  # seconds


@dataclass(frozen=True)
class Habits:
    """How often a run looks at itself, in steps; 0 is only at the end, None ten times.

    Unless it is told how often to save, it does so at least every ten minutes.
    """

    save_every: int | None = None
    keep: int = 2
    evaluate_every: int | None = None
    evaluate_blocks: int = 1024
    tensorboard: bool = False

    def due(self, every: int | None, number: int, total: int) -> bool:
        """Whether something that happens every so often, and at the end, happens now."""
        often = max(1, -(-total // 10)) if every is None else every
        return number == total or bool(often and number % often == 0)


class Session:
    """A run in its directory."""

    def __init__(self, setup: Setup, run: Run, habits: Habits) -> None:
        self.setup, self.run, self.habits = setup, run, habits
        self.tokens, self.seconds = 0, 0.0
        self.total = setup.recipe.schedule.steps
        self._last: dict[str, Any] = {}
        self._saved = time.monotonic()
        self._held_out: dict[int, HeldOut | str] = {}

    def go(self, first: int, cursor: Cursor) -> Iterator[Event]:
        """Take the steps that are left."""
        leads = self.setup.world.leads
        yield self.setup.began(first)
        log = Log(self.run, self.total, write=leads, board=self.habits.tensorboard)
        for line in [*(self.setup.notes() if not first else []), *log.notes]:
            yield Said(line)
        number = first
        with _stopping() as stopped, closing(log):
            for event in self._train(first, cursor):
                yield event
                if not isinstance(event, Step):
                    continue
                number = event.number
                self._count(event)
                log.step(event)
                # What any process is told, all of them do.
                told = self.setup.world.most(2 * stopped() + self._unsaved_long())
                ends = number == self.total or told >= 2
                if self.habits.due(self.habits.evaluate_every, number, self.total):
                    yield from self._evaluate(number, log)
                if ends or told or self.habits.due(self.habits.save_every, number, self.total):
                    yield from self._save(event)
                if ends:
                    break
        result = {"steps": number, "tokens": self.tokens, "seconds": self.seconds, **self._last}
        # A run that was done before has its result already.
        if leads and number == self.total and (self._last or self.run.result() is None):
            self.run.write_result(result)
        yield Ended(number, number == self.total, result)

    def _train(self, first: int, cursor: Cursor) -> Iterator[Event]:
        """The steps; where memory runs out the micro-batch is halved and the step taken again."""
        while True:
            jobs = self.setup.steps.jobs(first, cursor)
            with closing(ahead(jobs, workers=self.setup.machine.workers)) as feed:
                try:
                    for step in train(self.setup.trainee, feed, self.setup.world):
                        assert isinstance(step.after, Cursor)
                        first, cursor = step.number, step.after
                        yield step
                    return
                except torch.OutOfMemoryError:
                    pass  # what filled the memory is held by the error until it is forgotten
                except DivergedError as error:
                    found, _ = newest(self.run.checkpoints)
                    place = (
                        f"the last good checkpoint is {found.path}" if found else "none is saved"
                    )
                    raise UserError(f"{error}; {place}") from None
            yield Said(self.setup.shrink())

    def _unsaved_long(self) -> bool:
        return self.habits.save_every is None and time.monotonic() - self._saved > _PATIENCE

    def _count(self, step: Step) -> None:
        self.tokens += step.tokens
        self.seconds += step.seconds
        self._last["train"] = means(step.sums)

    def _evaluate(self, number: int, log: Log) -> Iterator[Event]:
        setup, length = self.setup, self.setup.length(number - 1)
        if length not in self._held_out:
            self._held_out[length] = held_out(
                setup.recipe,
                setup.task.stores[0][0],
                length=length,
                many=self.habits.evaluate_blocks,
            )
            if isinstance(self._held_out[length], str):
                yield Said(str(self._held_out[length]))
        found = self._held_out[length]
        if isinstance(found, HeldOut):
            model = setup.trainee.model if setup.machine.shard else bare(setup.trainee.model)
            # The compiled graph is for training; evaluation goes through the plain module.
            compiled, model._compiled_call_impl = model._compiled_call_impl, None
            try:
                sums = found.measure(model, setup.world, tokens=setup.tokens)
            finally:
                model._compiled_call_impl = compiled
            self._last["held_out"] = means(sums)
            log.evaluated(number, sums)
            yield Evaluated(number, sums)

    def _save(self, step: Step) -> Iterator[Event]:
        setup = self.setup
        try:
            place = save(
                self.run.checkpoints,
                step,
                setup.trainee,
                setup.world,
                state={
                    "data": setup.identity(),
                    "seed": setup.seed,
                    "tokens": self.tokens,
                    "seconds": self.seconds,
                },
                texts={
                    "recipe.toml": recipes.to_toml(setup.recipe),
                    "tokenizer.json": setup.task.stores[0][0].tokenizer.to_str(),
                },
                keep=self.habits.keep,
            )
        except OSError as error:  # a full disk, most likely; what was saved before stands
            raise UserError(
                f"step {step.number:,} could not be saved: {error}; mend that, then go on with"
                f" clozelab pretrain --resume {self.run.path}"
            ) from error
        self._saved = time.monotonic()
        if place is not None:
            yield Saved(step.number, place)


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Whether the run was told to stop; told twice, it stops in the middle of a step."""
    told = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield told.is_set
        return

    def stop(number: int, frame: object) -> None:
        if told.is_set():
            raise KeyboardInterrupt
        told.set()

    before = {one: signal.signal(one, stop) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield told.is_set
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)

"""A run from its first step to its last: train, log, evaluate, save, and stop on a signal.

Pretraining and fine-tuning each implement `Trainer`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from clozelab.errors import UserError
from clozelab.interrupts import stopping
from clozelab.runs.diagnostics import FIRST_TIMED, Plateau, StepTimes, bottleneck
from clozelab.runs.directory import SETTINGS, Run
from clozelab.runs.events import (
    Began,
    Ended,
    Evaluated,
    Event,
    Probed,
    Refitted,
    Said,
    Saved,
    Scored,
    means,
)
from clozelab.runs.log import Log
from clozelab.runs.machine import Machine
from clozelab.runs.options import SaveOptions
from clozelab.runs.pacing import EVALUATIONS, Pacer, Stopwatch, Times
from clozelab.training.checkpoint import newest
from clozelab.training.feed import Cursor, ahead
from clozelab.training.loop import (
    DivergedError,
    Prepared,
    Step,
    TrainState,
    check_finite,
    train,
)
from clozelab.training.memory import empty_cache
from clozelab.training.schedule import Schedule
from clozelab.training.world import World

# Measurements of weights by their names in a result, and the kinds of their entries in the log.
_LOGGED = {"held_out": "held_out", "general": "general", "probes": "probe"}


class Trainer(Protocol):
    """What is trained: the model on its device, its feed, how it is evaluated and saved."""

    machine: Machine
    world: World
    train_state: TrainState

    @property
    def schedule(self) -> Schedule:
        """The steps of the whole run, and their learning rates."""

    @property
    def compiled(self) -> bool:
        """Whether the model is compiled, at the first step of each phase."""

    def began(self, first: int) -> Began:
        """The event that describes the run before its first step."""

    def notes(self) -> list[str]:
        """Notes for the user before the first step."""

    def jobs(self, first: int, cursor: Cursor) -> Iterator[Callable[[], Prepared]]:
        """Yield, from step `first` on, a job that prepares each step."""

    def shrink(self) -> str:
        """Halve the micro-batch after memory ran out; returns a note, or raises `UserError`."""

    def evaluate(self, number: int, *, blocks: int) -> Iterator[Said | Evaluated | Scored]:
        """Evaluate the weights after a step."""

    def save(
        self, folder: Path, step: Step, *, state: dict[str, Any], keep: int, ends: bool
    ) -> Path | None:
        """Write a checkpoint; the process that wrote it returns its folder."""

    def facts(self) -> dict[str, Any]:
        """The machine and the settings, for machine.toml."""


@dataclass(eq=False)
class Session:
    """The training of a run, recorded in its folder."""

    trainer: Trainer
    run: Run
    saving: SaveOptions
    _: KW_ONLY
    again: str  # the command that goes on with it
    plateau: Plateau | None = None
    times: Times = field(default_factory=Times)
    evaluations: int = EVALUATIONS  # of the whole run, if its options do not say how often
    pacer: Pacer | None = None  # of a budget of time
    probe: Callable[[], Mapping[str, Mapping[str, float]]] | None = None
    # After an evaluation: why the run ends early, or nothing. Such a run is also evaluated before
    # its first step.
    early: Callable[[], str] | None = None
    # (step, steps of the run) → the text of its recipe; needed to keep a budget or to end early.
    refit: Callable[[int, int], str] | None = None

    def __post_init__(self) -> None:
        self.tokens, self.seconds = 0, 0.0
        self.spent = StepTimes()  # since the run was started or resumed
        self.last: dict[str, Any] = {}  # the last measurements, for the result
        self._result: Mapping[str, Any] | None = None  # of a run that has taken all its steps
        self._settings: Mapping[str, Any] = {}  # what steps are computed with
        self._before: Mapping[str, Any] = {}  # the same, when the last step was taken
        self._saved = time.monotonic()
        self._watch = Stopwatch()
        self._phase = (-1, 0.0)  # of the step before

    def recall(self, state: Mapping[str, Any]) -> None:
        """Restore the counters from the state of a checkpoint."""
        self.tokens, self.seconds = state["tokens"], state["seconds"]
        self._before = state.get("machine", {})  # missing in older checkpoints
        self._result = state.get("result")

    def settle(
        self, step: int, *, also: Mapping[str, dict[str, Any]] | None = None
    ) -> Iterator[Said]:
        """Record the settings of the machine from a step on; yields a note on what has changed.

        `also` are changes of other options.
        """
        facts = self.trainer.facts()
        self._settings = {name: facts.get(name) for name in SETTINGS}
        if not self.trainer.world.is_main:
            return
        before = self._before or self.run.machine()
        changes = self.run.settled(step, facts, before=before, also=also or {})
        if changes:
            yield Said(f"{_format_changes(changes)}, from step {step + 1:,} on")

    def go(self, first: int, cursor: Cursor) -> Iterator[Event]:
        """Train the rest of the steps, yielding events."""
        is_main, saving = self.trainer.world.is_main, self.saving
        yield (began := self.trainer.began(first))
        recorded = self.run.machine()
        self._settings = self._settings or {name: recorded.get(name) for name in SETTINGS}
        self._before = self._before or self._settings
        for line in self.trainer.notes() if not first else ():
            yield Said(line)
        total = self.trainer.schedule.total
        log = Log(self.run, total, write=is_main, trackers=saving.track, tags=saving.tags)
        with closing(log):
            yield from self._go(first, cursor, began, log)

    def _go(self, first: int, cursor: Cursor, began: Began, log: Log) -> Iterator[Event]:
        """Train the rest of the steps with an open log."""
        is_main, saving = self.trainer.world.is_main, self.saving
        self._replay_losses(first)
        number = first
        self.times.add("setup", self._watch.read())
        if self.early is not None and not first:
            yield from self._evaluate(0, log)
            yield from self._run_probe(0, log)
            self.times.add("evaluation", self._watch.read())
        with stopping() as stopped:
            if first == self.trainer.schedule.total:
                yield from self._restore_result(log)
            for event in self._train(first, cursor):
                yield event
                if not isinstance(event, Step):
                    continue
                number = event.number
                self._count(event, keep=float(number - first > FIRST_TIMED))
                log.step(event)
                yield from map(Said, log.notes())
                yield from self._plateau_warning(event)
                # If one process has to stop or save, all of them do.
                limit = saving.max_seconds_between_saves
                late = limit is not None and time.monotonic() - self._saved > limit
                due = self.trainer.world.all_reduce_max(2 * stopped() + late)
                times, schedule = self.evaluations, self.trainer.schedule
                evaluates = saving.due(saving.evaluate_every, number, schedule, times=times)
                if evaluates:
                    yield from self._evaluate(number, log)
                    yield from self._end_early(number)
                schedule = self.trainer.schedule
                ends = number == schedule.total or due >= 2
                times = min(times, EVALUATIONS)
                probes = saving.due(saving.probe_every, number, schedule, times=times)
                probes = probes and self.probe is not None
                if probes:
                    yield from self._run_probe(number, log)
                if evaluates or probes:
                    empty_cache(self.trainer.world.device)  # steps do not need what these needed
                    self.times.add("evaluation", self._watch.read())
                if number == schedule.total:
                    self._result = self._summary(number, began)
                if ends or due or saving.due(saving.save_every, number, schedule):
                    log.flush()  # a resumed run does not take these steps again
                    yield from self._save(event, ends=number == schedule.total)
                    self.times.add("saving", self._watch.read())
                if ends:
                    break
            # Also a signal that came since: a caller with more runs must know of it.
            signal = self.trainer.world.all_reduce_max(stopped())
        total = self.trainer.schedule.total
        result = self._result or self._summary(number, began)
        # A run that was complete before already has its result.
        if is_main and number == total and (self.last or self.run.result() is None):
            self.run.write_result(result)
        log.ended(result, whole=number == total)
        yield from map(Said, log.notes())
        if number == total and self.plateau is not None:
            losses = result.get("held_out") or result.get("train") or {}
            loss = losses.get(self.plateau.objective, {}).get("loss")
            warning = None if loss is None else self.plateau.at_end(loss)
            if warning is not None:
                yield Said(warning)
        yield Ended(number, number == total, result, signal=signal)

    def _end_early(self, number: int) -> Iterator[Event]:
        """Make this the last step if early stopping wants it, and record that as a refit.

        The refit begins one step before, so that this step's share of the run stays as it was.
        """
        total = self.trainer.schedule.total
        if self.early is not None and number < total and (reason := self.early()):
            yield Said(f"early stopping after step {number:,} of {total:,}: {reason}")
            yield self._refit(number - 1, number)

    def _summary(self, number: int, began: Began) -> dict[str, Any]:
        """The result so far."""
        limit = bottleneck(self.spent, flops_a_token=began.flops_a_token, peak=began.peak)
        return {
            **{"steps": number, "tokens": self.tokens, "seconds": self.seconds},
            "times": asdict(self.times),
            **({"limited_by": limit} if limit else {}),
            **self._measured(),
        }

    def _measured(self) -> dict[str, Any]:
        """The last measurements; of held-out text and probes those of the weights that are kept."""
        best = self.last.get("best_step")
        if best is None:
            return self.last
        kept = {
            name: {key: value for key, value in entry.items() if key not in ("kind", "step")}
            for name, kind in _LOGGED.items()
            for entry in self.run.events(kind)
            if entry["step"] == best
        }
        return {name: value for name, value in self.last.items() if name not in _LOGGED} | kept

    def _restore_result(self, log: Log) -> Iterator[Event]:
        """Restore the result and its log entries, if the run was killed after its last step.

        The last checkpoint has the result; for one of an old version it is measured again.
        """
        total = self.trainer.schedule.total
        if not self.trainer.world.all_reduce_max(int(self.run.result() is None)) or self.last:
            return
        if self._result is None:
            for entry in self.run.events("step"):
                if entry["step"] == total:
                    losses = {name: sums for name, sums in entry.items() if isinstance(sums, dict)}
                    self.last["train"] = losses
            yield from self._evaluate(total, log)
            yield from self._run_probe(total, log)
        result = self._result or {}
        for name, kind in _LOGGED.items():
            if name in result and result.get("best_step", total) == total:
                log.restored(kind, total, result[name])

    def _train(self, first: int, cursor: Cursor) -> Iterator[Event]:
        """Yield the steps; if memory runs out, the micro-batch is halved and the step repeated.

        If the pace has changed, the rest of the schedule is refitted.
        """
        while True:
            total = 0
            jobs = self.trainer.jobs(first, cursor)
            with closing(ahead(jobs, workers=self.trainer.machine.threads)) as feed:
                try:
                    for step in train(self.trainer.train_state, feed, self.trainer.world):
                        assert isinstance(step.after, Cursor)
                        first, cursor = step.number, step.after
                        self._before = self._settings
                        # Wall-clock time, which includes what is done between steps, though the
                        # device may work meanwhile.
                        yield replace(step, seconds=self._watch.read())
                        if self.pacer is not None:  # if one process wants a refit, all do it
                            wanted = self.pacer.wanted(first, self.trainer.schedule)
                            total = self.trainer.world.all_reduce_max(wanted)
                        if total:
                            break
                    else:
                        return
                except torch.OutOfMemoryError:
                    pass  # the tensors stay in memory until the error is gone
                except DivergedError as error:
                    raise self._diverged(error, first + 1, after=first) from None
            if total:
                yield self._refit(first, total)
            else:
                yield Said(self.trainer.shrink())
                list(self.settle(first))  # recorded without its note

    def _refit(self, step: int, total: int) -> Refitted:
        """Spread the schedule from a step on over other steps, and record that."""
        assert self.refit is not None
        text = self.refit(step, total)
        if self.plateau is not None:
            self.plateau.schedule = self.trainer.schedule
        if self.trainer.world.is_main:  # so that the run is reproducible
            self.run.refit(step, total, recipe_toml=text)
        return Refitted(step, total)

    def _replay_losses(self, first: int) -> None:
        """Show the logged losses to the plateau detector, so that it does not warn again."""
        if self.plateau is None or not first:
            return
        for entry in self.run.events("step"):
            loss = entry.get(self.plateau.objective, {}).get("loss")
            if loss is not None:
                self.plateau.see(entry["step"], loss)

    def _plateau_warning(self, step: Step) -> Iterator[Said]:
        mean = means(step.sums)
        if self.plateau is not None and self.plateau.objective in mean:
            warning = self.plateau.see(step.number, mean[self.plateau.objective]["loss"])
            if warning is not None:
                yield Said(warning)

    def _count(self, step: Step, *, keep: float) -> None:
        self.tokens += step.tokens
        self.seconds += step.seconds
        self.spent = self.spent.then(step, keep=keep)
        self.last["train"] = means(step.sums)
        assert isinstance(step.after, Cursor)
        # By length and by direction.
        phase = (step.after.phase, self.trainer.schedule.causal_share(step.number - 1))
        if self.trainer.compiled and phase != self._phase:
            self.times.add("setup", step.seconds)  # the first step of a phase compiles
        else:
            self.times.add("training", step.seconds)
            if self.pacer is not None:
                self.pacer.see(step)
        self._phase = phase

    def _diverged(self, error: DivergedError, number: int, *, after: int) -> DivergedError:
        """Record the error of the weights after a step; returns it with an earlier checkpoint."""
        if self.trainer.world.is_main:
            what = str(error).partition(";")[0]
            self.run.append({"kind": "diverged", "step": number, "what": what})
        last, _ = newest(self.run.checkpoints, before=after)
        place = f"the last good checkpoint is {last.path}" if last else "no good one is saved"
        return DivergedError(f"{error}; {place}")

    def _evaluate(self, number: int, log: Log) -> Iterator[Event]:
        for event in self.trainer.evaluate(number, blocks=self.saving.held_out_blocks):
            if isinstance(event, Evaluated):
                self.last[event.of] = means(event.sums)
                if event.best_step is not None:
                    self.last["best_step"] = event.best_step
                log.measured(event.of, number, self.last[event.of])
                try:
                    check_finite(event.sums, number, of="held-out ")
                except DivergedError as error:
                    raise self._diverged(error, number, after=number) from None
            elif isinstance(event, Scored):
                self.last["dev"] = {"step": event.best, **event.at_best}
                self.last["selected"] = event.selected
                self.last["constant"] = dict(event.constant)
                log.measured("dev", number, event.scores)
            yield event

    def _run_probe(self, number: int, log: Log) -> Iterator[Event]:
        if self.probe is not None:
            try:
                self.last["probes"] = scores = self.probe()
            except DivergedError as error:
                raise self._diverged(error, number, after=number) from None
            log.measured("probe", number, scores)
            yield Probed(number, scores)

    def _save(self, step: Step, *, ends: bool) -> Iterator[Event]:
        state = {
            **{"tokens": self.tokens, "seconds": self.seconds, "times": asdict(self.times)},
            "machine": self._settings,
        }
        if ends:
            state["result"] = self._result
        try:
            place = self.trainer.save(
                self.run.checkpoints, step, state=state, keep=self.saving.checkpoints, ends=ends
            )
        except OSError as error:  # most likely a full disk; earlier checkpoints are intact
            raise UserError(
                f"step {step.number:,} could not be saved: {error}; fix that, then resume"
                f" with {self.again}"
            ) from error
        self._saved = time.monotonic()
        if place is not None:
            yield Saved(step.number, place)


def _format_changes(changes: dict[str, dict[str, Any]]) -> str:
    """The changed settings of machine.toml, with their old and new values."""
    return ", ".join(
        f"{name} {_shown(change['from'])} → {_shown(change['to'])}"
        for name, change in changes.items()
    )


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)

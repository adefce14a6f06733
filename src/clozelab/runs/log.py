"""The log of a run: means over several steps, written to metrics.jsonl and to trackers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clozelab.runs.directory import Run
from clozelab.runs.events import means
from clozelab.runs.tracked import begin_tracking, entry_numbers, recorded
from clozelab.tracking import Sender, Status, numbers
from clozelab.training.loop import Measured, Step

_LINES = 2000  # at most, for a whole run


class Log:
    """Writes only if `write`, in the main process. A resumed run keeps its trackers."""

    def __init__(
        self,
        run: Run,
        total: int,
        *,
        write: bool,
        trackers: Sequence[str] = (),
        tags: Sequence[str] = (),
    ) -> None:
        self.run, self.write = run, write
        self.every = max(1, total // _LINES)
        self._steps: list[Step] = []
        self._last = 0  # the step of the last entry
        self._senders = list[Sender]()
        names = (trackers or recorded(run)) if write else ()
        if names:
            tracked = begin_tracking(run, names, tags=tags)
            self._senders = [Sender(name, own) for name, own in tracked.items()]

    def step(self, step: Step) -> None:
        """Add a step; every `every` steps are written as one line."""
        self._steps.append(step)
        if step.number % self.every == 0:
            self.flush()

    def measured(self, kind: str, number: int, values: Mapping[str, Any]) -> None:
        """Write the measurements after a step: held-out losses, dev scores or probes."""
        self.flush()
        self._add(kind, number, values)

    def restored(self, kind: str, number: int, values: Mapping[str, Any]) -> None:
        """Write a line again if it was lost."""
        if not any(entry["step"] == number for entry in self.run.events(kind)):
            self._add(kind, number, values)

    def ended(self, result: Mapping[str, Any], *, whole: bool) -> None:
        """Send the result to trackers if the run is complete (`whole`), and end them."""
        self.flush()
        for sender in self._senders if whole else ():
            sender.log(self._last, numbers(result, "result"))
        self._end("finished" if whole else "stopped")

    def close(self) -> None:
        """Write the remaining steps; trackers that have not ended record a failure."""
        self.flush()
        self._end("failed")

    def notes(self) -> list[str]:
        """The messages of the trackers."""
        return [line for sender in self._senders for line in sender.notes()]

    def _end(self, status: Status) -> None:
        """End each tracker, once."""
        for sender in self._senders:
            sender.end(status)

    def flush(self) -> None:
        """Write the steps that are not written yet, as one line."""
        if not self._steps:
            return
        steps, self._steps = self._steps, []
        sums: Measured = {}
        for step in steps:
            for name, values in step.sums.items():
                total = sums.setdefault(name, {})
                for what, value in values.items():
                    total[what] = total.get(what, 0.0) + value
        last = steps[-1]
        seconds, tokens = sum(s.seconds for s in steps), sum(s.tokens for s in steps)
        numbers = {
            "learning_rate": last.learning_rate,
            "norm": sum(s.norm for s in steps) / len(steps),
            "tokens": tokens,
            "seconds": seconds,
            "tokens_a_second": tokens / max(seconds, 1e-9),
        }
        names = ("waited", "slack", "starved", *(["busy"] if last.busy is not None else []))
        numbers |= {name: sum(getattr(s, name) or 0.0 for s in steps) for name in names}
        self._add("step", last.number, {**means(sums), **numbers})

    def _add(self, kind: str, number: int, values: Mapping[str, Any]) -> None:
        if not self.write:
            return
        self.run.append({"kind": kind, "step": number, **values})
        self._last = number
        for sender in self._senders:
            sender.log(number, entry_numbers(kind, values))

"""A run's log: means over stretches of steps, into metrics.jsonl and TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from clozelab.config.tables import flat
from clozelab.runs.directory import Run
from clozelab.runs.events import means
from clozelab.training.loop import Measured, Step

_LINES = 2000  # at most, for a whole run


class Log:
    """Writes where `write` says so: in one process of the run; `board` asks for curves as well."""

    def __init__(self, run: Run, total: int, *, write: bool, board: bool) -> None:
        self.run, self.write = run, write
        self.every = max(1, total // _LINES)
        self.notes = list[str]()
        self._board: Any = None
        if board and write and find_spec("tensorboard") is None:
            self.notes = ["no curves for TensorBoard: pip install tensorboard to have them"]
        elif board and write:
            writer = import_module("tensorboard.summary").Writer
            self._board = writer(str(run.path / "tensorboard"))
        self._steps: list[Step] = []

    def step(self, step: Step) -> None:
        """Note a step; every so many are written as one line."""
        self._steps.append(step)
        if step.number % self.every == 0:
            self._flush()

    def measured(self, kind: str, number: int, values: Mapping[str, Any]) -> None:
        """Write what was measured after a step: held-out losses, dev scores or probes."""
        self._flush()
        self._add(kind, number, values)

    def restored(self, kind: str, number: int, values: Mapping[str, Any]) -> None:
        """Write a line again that was lost, if it was."""
        if not any(entry["step"] == number for entry in self.run.events(kind)):
            self._add(kind, number, values)

    def close(self) -> None:
        """Write what is left."""
        self._flush()
        if self._board is not None:
            self._board.close()

    def _flush(self) -> None:
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
        if self._board is not None:
            for name, value in flat({kind: dict(values)}):
                self._board.add_scalar(name.replace(".", "/"), value, number)

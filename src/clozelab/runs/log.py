"""A run's log: means over stretches of steps, into metrics.jsonl and TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping

from clozelab.runs.directory import Board, Run
from clozelab.runs.events import means
from clozelab.training.loop import Measured, Step

_LINES = 2000  # at most, for a whole run


class Log:
    """Writes where `write` says so: in one process of the run."""

    def __init__(self, run: Run, total: int, *, write: bool, board: bool) -> None:
        self.run, self.write = run, write
        self.every = max(1, total // _LINES)
        self.board = Board(run.path / "tensorboard") if board and write else None
        self.notes = [self.board.note] if self.board and self.board.note else []
        self._steps: list[Step] = []

    def step(self, step: Step) -> None:
        """Note a step; every so many are written as one line."""
        self._steps.append(step)
        if step.number % self.every == 0:
            self._flush()

    def evaluated(self, number: int, sums: Measured) -> None:
        """Write held-out losses."""
        self._flush()
        self._add("held_out", number, means(sums), {})

    def restored(self, kind: str, number: int, losses: dict[str, dict[str, float]]) -> None:
        """Write a line again that was lost, if it was."""
        if not any(entry["step"] == number for entry in self.run.events(kind)):
            self._add(kind, number, losses, {})

    def scored(self, number: int, scores: Mapping[str, float]) -> None:
        """Write a task's scores on its dev set."""
        self._flush()
        self._add("dev", number, {}, dict(scores))

    def probed(self, number: int, scores: Mapping[str, Mapping[str, float]]) -> None:
        """Write the scores of probes, by task."""
        self._flush()
        self._add("probe", number, {task: dict(values) for task, values in scores.items()}, {})

    def close(self) -> None:
        """Write what is left."""
        self._flush()
        if self.board is not None:
            self.board.close()

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
            "waited": sum(s.waited for s in steps),
            "slack": sum(s.slack for s in steps),
            "starved": sum(s.starved for s in steps),
        }
        if last.busy is not None:
            numbers["busy"] = sum(s.busy or 0.0 for s in steps)
        self._add("step", last.number, means(sums), numbers)

    def _add(
        self, kind: str, number: int, losses: dict[str, dict[str, float]], more: dict[str, float]
    ) -> None:
        if not self.write:
            return
        self.run.append({"kind": kind, "step": number, **losses, **more})
        if self.board is not None:
            flat = {f"{kind}/{n}/{w}": v for n, mean in losses.items() for w, v in mean.items()}
            self.board.add(number, flat | {f"{kind}/{name}": v for name, v in more.items()})

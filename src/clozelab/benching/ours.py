"""clozelab as a contender: the steps that `pretrain` takes, through its feed or from memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import NamedTuple

import torch

from clozelab.pretraining.job import PretrainJob
from clozelab.pretraining.trainer import PretrainTrainer
from clozelab.runs.events import means
from clozelab.runs.machine import Machine
from clozelab.training.feed import ahead
from clozelab.training.loop import Prepared, train
from clozelab.training.world import World


class Lap(NamedTuple):
    """The work of a turn without its first step, which warms up caches and threads."""

    tokens: int  # without padding
    seconds: float
    loss: float | None = None  # of the first step, if known


class MemoryShare:
    """One contender's part of the device's memory, beside that of others."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.held = self.peak = self._others = 0

    def __enter__(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
            self._others = torch.cuda.memory_allocated(self.device) - self.held

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            self.held = torch.cuda.memory_allocated(self.device) - self._others
            peak = torch.cuda.max_memory_allocated(self.device) - self._others
            self.peak = max(self.peak, peak)

    @property
    def gib(self) -> float | None:
        """The peak in GiB; None on a CPU, where memory cannot be attributed."""
        return self.peak / 2**30 if self.device.type == "cuda" else None


class Ours:
    """A run that continues turn by turn; `prepared` are the steps of the last turn."""

    def __init__(self, job: PretrainJob, machine: Machine, world: World) -> None:
        self.trainer = PretrainTrainer(job, machine, world)
        self.prepared: Sequence[Prepared] = ()
        self._done, self._cursor = 0, self.trainer.steps.start()

    def fed(self, steps: int) -> Lap:
        """Take a turn through the feed, which starts empty."""
        jobs = self.trainer.jobs(self._done, self._cursor)
        taken: list[Prepared] = []
        with closing(ahead(jobs, workers=self.trainer.machine.threads)) as feed:
            lap = self._lap(_record_steps(feed, taken), steps)
        self.prepared = taken[: steps + 1]
        self._done += steps + 1
        self._cursor = self.prepared[-1].after  # type: ignore[assignment]
        return lap

    def again(self) -> Lap:
        """Take the steps of the last turn again, from memory."""
        return self._lap(self.prepared, len(self.prepared) - 1)

    def _lap(self, feed: Iterable[Prepared], steps: int) -> Lap:
        stepping = train(self.trainer.train_state, feed, self.trainer.world)
        # A step's results come while the next one runs, at both ends of the timing.
        loss = sum(mean["loss"] for mean in means(next(stepping).sums).values())
        began = time.perf_counter()
        tokens = sum(step.tokens for step in islice(stepping, steps))
        return Lap(tokens, time.perf_counter() - began, loss)


def _record_steps(feed: Iterable[Prepared], taken: list[Prepared]) -> Iterator[Prepared]:
    for prepared in feed:
        taken.append(prepared)
        yield prepared

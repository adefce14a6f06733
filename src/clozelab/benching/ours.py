"""clozelab as a contender: the steps that `pretrain` takes, through its feed or from memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import NamedTuple

import torch

from clozelab.pretraining.job import PretrainJob, PretrainTrainer
from clozelab.runs.events import means
from clozelab.runs.machine import Machine
from clozelab.training.feed import ahead
from clozelab.training.loop import Prepared, train
from clozelab.training.world import World


class Lap(NamedTuple):
    """What was done in a turn; its first step, which wakes caches and threads, is not counted."""

    tokens: int  # real ones
    seconds: float
    loss: float | None = None  # of the first step, where it is told


class MemoryShare:
    """One contender's part of the device's memory while others have theirs."""

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
        """The most it ever had; None on a CPU, where nobody can tell whose memory is whose."""
        return self.peak / 2**30 if self.device.type == "cuda" else None


class Ours:
    """A run that is gone on with turn by turn; `prepared` are the steps of the last turn."""

    def __init__(self, job: PretrainJob, machine: Machine, world: World) -> None:
        self.trainer = PretrainTrainer(job, machine, world)
        self.prepared: Sequence[Prepared] = ()
        self._done, self._cursor = 0, self.trainer.steps.start()

    def fed(self, steps: int) -> Lap:
        """A turn through the feed, which begins with nothing prepared."""
        jobs = self.trainer.jobs(self._done, self._cursor)
        taken: list[Prepared] = []
        with closing(ahead(jobs, workers=self.trainer.machine.threads)) as feed:
            lap = self._lap(_noted(feed, taken), steps)
        self.prepared = taken[: steps + 1]
        self._done += steps + 1
        self._cursor = self.prepared[-1].after  # type: ignore[assignment]
        return lap

    def again(self) -> Lap:
        """The same steps as in the last turn, from memory."""
        return self._lap(self.prepared, len(self.prepared) - 1)

    def _lap(self, feed: Iterable[Prepared], steps: int) -> Lap:
        stepping = train(self.trainer.train_state, feed, self.trainer.world)
        # The first is told of when the second is under way, as each is: no time is lost or won.
        loss = sum(mean["loss"] for mean in means(next(stepping).sums).values())
        began = time.perf_counter()
        tokens = sum(step.tokens for step in islice(stepping, steps))
        return Lap(tokens, time.perf_counter() - began, loss)


def _noted(feed: Iterable[Prepared], taken: list[Prepared]) -> Iterator[Prepared]:
    for prepared in feed:
        taken.append(prepared)
        yield prepared

"""A turn of a contender: some steps behind a first one, and how long they took."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Lap(NamedTuple):
    """What was done in a turn; its first step, which wakes caches and threads, is not counted."""

    tokens: int  # real ones
    seconds: float
    loss: float | None = None  # of the first step, where it is told


class Share:
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
            most = torch.cuda.max_memory_allocated(self.device) - self._others
            self.peak = max(self.peak, most)

    @property
    def gib(self) -> float | None:
        """The most it ever had; None on a CPU, where nobody can tell whose memory is whose."""
        return self.peak / 2**30 if self.device.type == "cuda" else None

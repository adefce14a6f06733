"""The time and the scalars of a step, measured and fetched without making the device wait."""

from __future__ import annotations

import os
from contextlib import suppress

import torch
from torch import Tensor


def core_wait() -> float | None:
    """Seconds that this process's threads were ready to run while other processes had the cores.

    The mean over torch's threads since the process began; None where the kernel has no
    schedstat.
    """
    delays = []
    threads = "/proc/self/task"
    for thread in os.listdir(threads) if os.path.isdir(threads) else ():
        # A thread may have ended meanwhile.
        with suppress(OSError), open(f"{threads}/{thread}/schedstat", "rb") as file:
            _, delay, *_ = file.read().split()
            delays.append(int(delay))
    return sum(delays) / 1e9 / torch.get_num_threads() if delays else None


class StepTimer:
    """The time of a step: waiting for the feed, and inside `with` by CUDA events.

    A CPU has no events. They are read with the step, so that the device is not waited for early.
    """

    def __init__(self, device: torch.device, waited: float) -> None:
        self.device, self.waited = device, waited
        self.events: list[torch.cuda.Event] = []
        self._core_wait = core_wait() if device.type == "cpu" else None

    def starved(self) -> float:
        """Seconds since the step began in which other processes had the CPU's cores."""
        now = core_wait() if self._core_wait is not None else None
        if now is None or self._core_wait is None:
            return 0.0
        return max(0.0, now - self._core_wait)  # less if a thread has ended: its count is gone

    def __enter__(self) -> None:
        self._mark()

    def __exit__(self, failed: type[BaseException] | None, *rest: object) -> None:
        if failed is None:
            self._mark()

    def busy(self) -> float | None:
        """Seconds that the device worked inside `with`; None on a CPU."""
        if not self.events:
            return None
        self.events[-1].synchronize()
        pairs = zip(self.events[::2], self.events[1::2], strict=True)
        return float(sum(start.elapsed_time(end) for start, end in pairs)) / 1000

    def _mark(self) -> None:
        if self.device.type == "cuda":
            self.events.append(torch.cuda.Event(enable_timing=True, blocking=True))  # type: ignore[no-untyped-call]
            self.events[-1].record()


class AsyncScalars:
    """Scalars that are copied from the device asynchronously, before its later work."""

    def __init__(self, values: Tensor) -> None:
        self.values, self.arrived = values, None
        if values.is_cuda:
            self.values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self.values.copy_(values, non_blocking=True)
            self.arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self.arrived.record()

    def read(self) -> list[float]:
        """Wait for the values and return them."""
        if self.arrived is not None:
            self.arrived.synchronize()
        values: list[float] = self.values.tolist()
        return values

"""How long a step took, and its scalars: measured and fetched without making the device wait."""

from __future__ import annotations

import os
from contextlib import suppress

import torch
from torch import Tensor


def core_wait() -> float | None:
    """Seconds that this process's threads were ready to run while others had the cores.

    The mean over the threads that compute, since the process began; None where the kernel does
    not tell.
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
    """The time a step takes: for the feed, and inside `with` by the device's own clock.

    A CPU has no such clock. Events are read with the step: nothing is waited for early.
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
        return max(0.0, now - self._core_wait)  # a thread that ended takes its count along

    def __enter__(self) -> None:
        self._mark()

    def __exit__(self, failed: type[BaseException] | None, *rest: object) -> None:
        if failed is None:
            self._mark()

    def busy(self) -> float | None:
        """Seconds from each beginning to its end; None without a clock."""
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
    """Scalars on their way from the device, copied before whatever it is asked to do later."""

    def __init__(self, values: Tensor) -> None:
        self.values, self.arrived = values, None
        if values.is_cuda:
            self.values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self.values.copy_(values, non_blocking=True)
            self.arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self.arrived.record()

    def read(self) -> list[float]:
        """Wait for them."""
        if self.arrived is not None:
            self.arrived.synchronize()
        values: list[float] = self.values.tolist()
        return values

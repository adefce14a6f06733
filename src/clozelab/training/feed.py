"""Preparation in the background: threads prepare steps ahead of time, and yield them in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Cursor:
    """Where a feed stands: the phase, and in each store the epoch and the blocks taken from it."""

    phase: int
    places: tuple[tuple[int, int], ...]


def ahead(
    jobs: Iterator[Callable[[], T]], *, workers: int, depth: int = 2
) -> Generator[T, None, None]:
    """Yield the results of the jobs in their order; the next ones are prepared in the background.

    One thread takes the jobs in order and `workers` threads run them; at most `depth` results per
    worker wait. Without workers a job runs when its result is asked for. Closing it ends the
    threads.
    """
    if not workers:
        for job in jobs:
            yield job()
        return
    taking = ThreadPoolExecutor(1, thread_name_prefix="feed-order")
    running = ThreadPoolExecutor(workers, thread_name_prefix="feed")

    def submit() -> tuple[Future[Callable[[], T] | None], Future[Any]]:
        taken = taking.submit(next, jobs, None)
        return taken, running.submit(_run, taken)

    try:
        waiting = deque(submit() for _ in range(workers * depth))
        while True:
            taken, done = waiting.popleft()
            if taken.result() is None:
                return
            waiting.append(submit())
            yield done.result()
    finally:
        for pool in (taking, running):
            pool.shutdown(cancel_futures=True)


def _run(taken: Future[Callable[[], Any] | None]) -> Any:
    """The result of a job when it has been taken; None after the last."""
    job = taken.result()
    return None if job is None else job()

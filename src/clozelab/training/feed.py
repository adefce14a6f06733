"""Preparation in the background: threads prepare steps ahead of time, and yield them in order."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import Full, Queue
from threading import Event, Thread
from typing import TypeVar

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

    One thread submits the jobs and `workers` threads run them; at most `depth` results per worker
    wait. Without workers a job runs when its result is asked for. Closing it ends the threads.
    """
    if not workers:
        for job in jobs:
            yield job()
        return
    waiting: Queue[Future[T] | None] = Queue(workers * depth)
    closed = Event()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="feed")

    def put(future: Future[T] | None) -> None:
        while not closed.is_set():
            try:
                return waiting.put(future, timeout=0.1)
            except Full:
                continue

    def submit_jobs() -> None:
        try:
            for job in jobs:
                put(pool.submit(job))
                if closed.is_set():
                    return
            put(None)
        except BaseException as error:
            failed: Future[T] = Future()
            failed.set_exception(error)
            put(failed)

    submitter = Thread(target=submit_jobs, name="feed-order", daemon=True)
    submitter.start()
    try:
        while (future := waiting.get()) is not None:
            yield future.result()
    finally:
        closed.set()
        submitter.join()
        pool.shutdown(wait=True, cancel_futures=True)

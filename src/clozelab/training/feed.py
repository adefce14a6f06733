"""Preparation in the background: steps are made ahead of time, and come out in order."""

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
    """The results of the jobs in their order, some of them made before they are asked for.

    One thread walks the jobs, `workers` more run them, at most `depth` results for each wait.
    No workers: each job runs when its result is asked for. Closing the iterator ends the threads.
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

    def walk() -> None:
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

    walker = Thread(target=walk, name="feed-order", daemon=True)
    walker.start()
    try:
        while (future := waiting.get()) is not None:
            yield future.result()
    finally:
        closed.set()
        walker.join()
        pool.shutdown(wait=True, cancel_futures=True)

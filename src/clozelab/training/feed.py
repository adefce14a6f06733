"""Preparation in the background: steps are made ahead of time, and come out in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(jobs: Iterator[Callable[[], T]], *, workers: int, depth: int = 2) -> Iterator[T]:
    """The results of the jobs in their order, `depth` of them under way for each worker.

    No workers: each job runs when it is asked for. Closing the iterator waits for no more than
    the jobs that are running.
    """
    if not workers:
        for job in jobs:
            yield job()
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="feed")
    waiting: deque[Future[T]] = deque()
    try:
        for job in jobs:
            waiting.append(pool.submit(job))
            if len(waiting) > workers * depth:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)

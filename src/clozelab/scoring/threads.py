"""Run jobs in parallel threads, instead of each operation on all cores.

Operations here are short, and an operation on all cores ends with the slowest: on a machine that is
shared, threads would wait for each other most of the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

J = TypeVar("J")
R = TypeVar("R")

_MOST_THREADS = 4  # threads: the Python part of jobs runs in one at a time


def side_by_side(work: Callable[[J], R], jobs: Iterable[J], *, device: torch.device) -> Iterator[R]:
    """Yield the result of every job in order; on a GPU they run one after another."""
    cores = torch.get_num_threads()
    if device.type != "cpu" or cores == 1:
        yield from map(work, jobs)
        return
    threads = min(_MOST_THREADS, cores)
    pending: deque[Future[R]] = deque()
    try:
        with ThreadPoolExecutor(
            threads, initializer=torch.set_num_threads, initargs=(cores // threads,)
        ) as pool:
            for job in jobs:
                pending.append(pool.submit(work, job))
                if len(pending) > 2 * threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
    finally:
        torch.set_num_threads(cores)

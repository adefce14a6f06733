"""Jobs on the cores of a CPU: whole jobs side by side, instead of each operation shared out.

Operations here are short, and one that is shared out ends with the slowest core: where others use
the machine, too, threads wait for each other most of the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

J = TypeVar("J")
R = TypeVar("R")

_MOST = 4  # jobs at a time: what Python does for each is done for one at a time


def side_by_side(work: Callable[[J], R], jobs: Iterable[J], *, device: torch.device) -> Iterator[R]:
    """What becomes of every job, in their order; on a GPU they follow one another."""
    cores = torch.get_num_threads()
    if device.type != "cpu" or cores == 1:
        yield from map(work, jobs)
        return
    threads = min(_MOST, cores)
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

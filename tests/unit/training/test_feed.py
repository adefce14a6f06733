"""The feed: results in order, made once, whatever the workers; no thread outlives it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from clozelab.training.feed import ahead

WORKERS = [0, 1, 3]


def ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("feed")]


@pytest.mark.parametrize("workers", WORKERS)
def test_results_come_in_order_and_each_is_made_once(workers: int) -> None:
    calls: Counter[int] = Counter()

    def job(number: int) -> Callable[[], int]:
        def work() -> int:
            time.sleep(0.002 * (number % 3 == 0))  # so that later ones are done sooner
            calls[number] += 1
            return number

        return work

    assert list(ahead((job(n) for n in range(40)), workers=workers)) == list(range(40))
    assert calls == Counter(range(40))
    assert not ours()


@pytest.mark.parametrize("workers", WORKERS)
def test_a_failing_job_raises_at_its_turn(workers: int) -> None:
    def jobs() -> Iterator[Callable[[], float]]:
        for number in (1, 2, 0, 4):
            yield lambda number=number: 1 / number  # type: ignore[misc]

    feed = ahead(jobs(), workers=workers)
    assert [next(feed), next(feed)] == [1.0, 0.5]
    with pytest.raises(ZeroDivisionError):
        next(feed)
    assert not ours()


@pytest.mark.parametrize("workers", WORKERS)
def test_jobs_that_fail_to_be_made_raise_after_those_before(workers: int) -> None:
    def jobs() -> Iterator[Callable[[], int]]:
        yield lambda: 1
        raise ValueError("no more text")

    feed = ahead(jobs(), workers=workers)
    assert next(feed) == 1
    with pytest.raises(ValueError, match="no more text"):
        next(feed)
    assert not ours()


@pytest.mark.parametrize("workers", WORKERS)
def test_closing_early_ends_the_threads_and_makes_little_ahead(workers: int) -> None:
    calls: list[int] = []

    def jobs() -> Iterator[Callable[[], None]]:
        number = 0
        while True:
            yield lambda number=number: calls.append(number)  # type: ignore[misc]
            number += 1

    feed = ahead(jobs(), workers=workers, depth=2)
    next(feed)
    time.sleep(0.05)
    feed.close()
    assert not ours()
    assert len(calls) <= 1 + workers * 2 + 2

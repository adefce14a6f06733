"""Jobs on several cores: in order, each on a thread with its share of the cores."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from clozelab.scoring.threads import side_by_side

CPU = torch.device("cpu")


@pytest.fixture
def cores() -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


def test_jobs_run_side_by_side_and_come_in_order(cores: int) -> None:
    met = threading.Barrier(cores, timeout=60)  # none passes before three are there

    def work(job: int) -> tuple[int, int, bool]:
        if job < cores:
            met.wait()
        main = threading.current_thread() is threading.main_thread()
        return job * job, torch.get_num_threads(), main

    results = [*side_by_side(work, range(40), device=CPU)]
    assert results == [(job * job, 1, False) for job in range(40)]
    assert torch.get_num_threads() == cores


def test_few_jobs_are_taken_ahead_and_an_error_is_raised(cores: int) -> None:
    taken: list[int] = []

    def jobs() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    results = side_by_side(lambda job: 1 // (job - 5), jobs(), device=CPU)
    assert [next(results) for _ in range(5)] == [-1, -1, -1, -1, -1]
    assert len(taken) < 30
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert torch.get_num_threads() == cores


def test_one_core_or_a_gpu_has_one_job_after_another(cores: int) -> None:
    def work(job: int) -> bool:
        return threading.current_thread() is threading.main_thread()

    assert all(side_by_side(work, range(3), device=torch.device("cuda")))
    torch.set_num_threads(1)
    assert all(side_by_side(work, range(3), device=CPU))

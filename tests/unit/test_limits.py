"""What limits a run, on both sides of every threshold."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from clozelab.runs.limits import (
    AHEAD,
    ARITHMETIC,
    FEED,
    HIGH,
    HOST,
    IDLE,
    MEMORY,
    SENTENCES,
    SHARED,
    Limit,
    Spent,
    limit,
)
from clozelab.training.loop import Step
from clozelab.training.timing import core_wait

MORE, LESS = 1.001, 0.999
# Ten seconds of a device that is busy, waited for, and at half of its rate.
WELL = {"seconds": 10.0, "tokens": 1000.0, "waited": 0.0, "slack": 5.0, "busy": 9.9}
FULL = HIGH * 10.0 / 1000.0  # operations a token at which it is at the border, with a peak of 1


def found(flops: float = 1.0, peak: float | None = 1.0, **changed: float | None) -> Limit | None:
    spent = Spent(**{**WELL, **changed})  # type: ignore[arg-type]
    return limit(spent, flops_a_token=flops, peak=peak)


def test_a_busy_device_is_bound_by_arithmetic_at_a_high_rate_and_by_memory_below() -> None:
    assert found(FULL * MORE) == ARITHMETIC
    assert found(FULL * LESS) == MEMORY


def test_without_a_measured_rate_the_two_are_not_told_apart() -> None:
    assert found(FULL, peak=None) is None
    assert found(FULL, peak=None, busy=1.0) == HOST


@pytest.mark.parametrize(("share", "word"), [(MORE, "feed"), (LESS, "host")])
def test_an_idle_device_waits_for_the_feed_if_half_of_that_time_is_spent_there(
    share: float, word: str
) -> None:
    given = found(busy=6.0, waited=share * 2.0)
    assert given is not None and given.word == word


def test_a_device_that_rests_for_little_is_limited_by_neither_feed_nor_host() -> None:
    for waited, limited in ((10.0, FEED), (0.0, HOST)):
        assert found(busy=10.0 - IDLE * 10.0 * MORE, waited=waited) == limited
        assert found(busy=10.0 - IDLE * 10.0 * LESS, waited=waited) == ARITHMETIC


def test_a_device_nobody_waits_for_is_limited_by_the_host_however_busy_it_seems() -> None:
    assert found(slack=AHEAD * 10.0 * LESS) == HOST
    assert found(slack=AHEAD * 10.0 * MORE) == ARITHMETIC
    # Where the text was waited for meanwhile, the host was ahead as well.
    assert found(slack=0.0, waited=AHEAD * 10.0 * MORE) == ARITHMETIC


def test_a_cpu_waits_for_its_feed_or_computes() -> None:
    assert found(busy=None, slack=0.0, peak=None, waited=IDLE * 10.0 * MORE) == FEED
    assert found(busy=None, slack=0.0, peak=None, waited=IDLE * 10.0 * LESS) == ARITHMETIC


def test_without_a_step_nothing_is_said() -> None:
    assert limit(Spent(), flops_a_token=1.0, peak=1.0) is None


def step(number: int, *, busy: float | None = 0.5) -> Step:
    return Step(number, {}, 0.0, 0.0, 100 * number, 1.0, waited=0.25, slack=0.125, busy=busy)


def test_steps_add_up_and_those_before_count_as_much_as_is_kept() -> None:
    first = Spent().then(step(1), keep=0.0)
    assert first == Spent(1.0, 100.0, 0.25, 0.125, 0.5) and first.speed == 100.0
    assert first.then(step(2), keep=1.0) == Spent(2.0, 300.0, 0.5, 0.25, 1.0)
    assert first.then(step(2), keep=0.5) == Spent(1.5, 250.0, 0.375, 0.1875, 0.75)
    assert first.then(step(2), keep=0.0) == Spent(1.0, 200.0, 0.25, 0.125, 0.5)
    assert first.then(step(2, busy=None), keep=1.0).busy is None


def test_every_word_has_a_sentence() -> None:
    assert {*SENTENCES} == {"feed", "host", "memory", "arithmetic", "shared"}
    assert "--workers" in SENTENCES["feed"] and "--micro-batch" in SENTENCES["host"]


def test_a_cpu_that_others_use_is_no_fault_of_its_arithmetic() -> None:
    assert found(busy=None, starved=IDLE * 10.0 * MORE) == SHARED
    assert found(busy=None, starved=IDLE * 10.0 * LESS) == ARITHMETIC
    assert found(busy=None, starved=5.0, waited=5.0) == SHARED  # the feed's threads wait as well


@pytest.mark.skipif(core_wait() is None, reason="the kernel does not tell how long threads wait")
def test_waiting_for_a_core_is_measured() -> None:
    """Two processes on one core: each waits for about half of the time."""
    spin = "import os, time\nos.sched_setaffinity(0, {CORE})\n{more}"
    core = min(os.sched_getaffinity(0))
    timed = (
        "import torch\ntorch.set_num_threads(1)\n"
        "from clozelab.training.timing import core_wait\n"
        "began, end = core_wait(), time.process_time() + 0.3\n"
        "while time.process_time() < end: pass\n"
        "print(core_wait() - began)"
    )
    others = "while True: pass"
    code = {
        name: spin.replace("CORE", str(core)).replace("{more}", more)
        for name, more in (("timed", timed), ("other", others))
    }
    other = subprocess.Popen([sys.executable, "-c", code["other"]])
    try:
        told = subprocess.run(
            [sys.executable, "-c", code["timed"]], capture_output=True, text=True, check=True
        )
    finally:
        other.kill()
        other.wait()
    assert float(told.stdout) > 0.1

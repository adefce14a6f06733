"""A budget of time under changing load, with a clock that is told how long each step takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clozelab.runs.pacing import Pacer, Times
from clozelab.runs.session import SaveOptions
from clozelab.training.loop import Step
from clozelab.training.schedule import Schedule

TOKENS = 1000  # of a step


def simulated(
    seconds: float,
    pace: Callable[[float], float],
    *,
    evaluation: float = 0.0,
    phases: tuple[tuple[int, float], ...] = (),
) -> tuple[float, Schedule]:
    """What a run takes whose step takes pace(seconds so far), planned by the first pace."""
    planned = Schedule(int(seconds / pace(0)), 0, 8, phases=phases)
    schedule, times = planned, Times()

    lengths = [length for length, _ in phases] or [128]

    def tokens_a_step(share: float) -> float:
        parts = [(part, lengths[phase]) for part, phase, _ in schedule.stretches(share)]
        return sum(part * TOKENS * length / lengths[0] for part, length in parts) / (1 - share)

    pacer = Pacer(
        seconds,
        times,
        tokens_a_step=tokens_a_step,
        evaluation=evaluation,
    )
    number = 0
    while number < schedule.total:
        size = lengths[schedule.phase(number).number] / lengths[0]
        took = pace(times.counted()) * size
        number += 1
        times.add("training", took)
        pacer.see(Step(number, {}, 0.0, 0.0, int(TOKENS * size), took))
        if SaveOptions().due(None, number, schedule, times=pacer.evaluations):
            times.add("evaluation", evaluation)
        if total := pacer.wanted(number, schedule):
            schedule = schedule.refitted(number, total)
    return times.counted(), schedule


LOADS: dict[str, Callable[[float], float]] = {
    "steady": lambda now: 0.1,
    "busy later": lambda now: 0.1 if now < 20 else 0.4,
    "busy at first": lambda now: 0.6 if now < 10 else 0.1,
    "busy from the start": lambda now: 0.1 if now == 0 else 0.9,
    "busy at the end": lambda now: 0.1 if now < 54 else 0.5,
    "now and then": lambda now: 0.1 if int(now / 7) % 2 else 0.3,
    "spikes": lambda now: 1.0 if int(now * 7) % 3 == 0 else 0.05,
    "quiet at the end": lambda now: 1.0 if now < 45 else 0.04,
    "long steps": lambda now: 1.5 if now < 10 else 5.0,
}


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("evaluation", [0.0, 0.5, 5.0, 20.0])
def test_a_budget_of_time_is_kept_under_changing_load(load: str, evaluation: float) -> None:
    took, schedule = simulated(60, LOADS[load], evaluation=evaluation)
    assert took == pytest.approx(60, rel=0.15)
    shares = [schedule.progress(step) for step in range(schedule.total + 1)]
    assert shares[-1] == 1 and shares == sorted(shares)


def test_a_steady_run_is_left_as_it_was_planned() -> None:
    assert not simulated(60, LOADS["steady"])[1].refits


def test_longer_blocks_to_come_are_reckoned_with() -> None:
    phases = ((128, 0.5), (512, 0.5))  # planned as if all steps were as short as the first
    assert simulated(60, LOADS["steady"], phases=phases)[0] == pytest.approx(60, rel=0.15)


def test_a_run_without_refits_can_overrun_sixfold() -> None:
    """What the simulation would show without a pacer: it can tell the difference."""
    pace, now = LOADS["busy from the start"], 0.0
    for _ in range(int(60 / pace(0))):
        now += pace(now)
    assert now > 6 * 60

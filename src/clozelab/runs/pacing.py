"""Keeping a budget of time: the rest of the schedule is refitted to the measured pace.

The budget includes the steps, evaluations and saves of a run, but not its setup and compilation,
nor what a killed run did after its last checkpoint.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, asdict, dataclass

from clozelab.training.loop import Step
from clozelab.training.schedule import Schedule

# Not tuned: a refit costs about a step (docs/decisions/10-time.md), so there are some tens at most.
STRETCH = 0.04  # of the budget, or of the run: how often the pace is checked
RECENT = 0.1  # of the budget: the last steps, by which the pace is measured
SMALL = 0.02  # of the remaining steps: a smaller change is not worth a refit
LATE = 0.05  # of the budget: a late run may take that much longer, to decay its learning rate
EVALUATIONS = 10  # of a run, if its options do not say how often
LOOKING = 0.1  # of the budget, at most, for evaluations before the last
SAVES = 10  # over a run, by default


@dataclass
class Times:
    """The seconds that a run has spent, by purpose."""

    setup: float = 0.0  # building, compiling, timing a few steps
    training: float = 0.0
    evaluation: float = 0.0
    saving: float = 0.0

    def __post_init__(self) -> None:
        self.last = dict.fromkeys(asdict(self), 0.0)  # the seconds of the last time

    def add(self, what: str, seconds: float) -> None:
        """Add seconds to a purpose."""
        setattr(self, what, getattr(self, what) + seconds)
        self.last[what] = seconds

    def counted(self) -> float:
        """The seconds that count towards a budget."""
        return self.training + self.evaluation + self.saving


@dataclass(eq=False)
class Pacer:
    """Computes how many steps fit into a budget of time, by what the last steps took."""

    seconds: float
    times: Times
    _: KW_ONLY
    tokens_a_step: Callable[[float], float]  # on the mean, from a share of the run on
    evaluation: float  # the seconds that one should take, until one is measured
    most: int = EVALUATIONS  # evaluations
    done: InitVar[float] = 0.0

    def __post_init__(self, done: float) -> None:
        # At least one, the last: computed from a number that all processes share, so that they
        # evaluate after the same steps.
        fit = int(LOOKING * self.seconds / max(self.evaluation, 1e-9))
        self.evaluations = 1 + min(self.most - 1, fit)
        self._recent: deque[tuple[float, int]] = deque()  # seconds and tokens of the last steps
        self._sums = 0.0, 0  # of these
        self._last_check = self.times.counted(), done  # of the budget, and of the run

    def see(self, step: Step) -> None:
        """Add the time of a step; only the last ones count."""
        seconds, tokens = self._sums
        self._recent.append((step.seconds, step.tokens))
        seconds, tokens = seconds + step.seconds, tokens + step.tokens
        while seconds - self._recent[0][0] > RECENT * self.seconds:
            first = self._recent.popleft()
            seconds, tokens = seconds - first[0], tokens - first[1]
        self._sums = seconds, tokens

    def wanted(self, step: int, schedule: Schedule) -> int:
        """The number of steps of the whole run that fit, after `step` steps; 0: no refit is needed.

        A resumed run first repeats its recorded refits.
        """
        spent, total = self.times.counted(), schedule.total
        share, last = schedule.progress(step), self.times.last
        recorded = schedule.refits[-1][0] if schedule.refits else 0
        early = spent - self._last_check[0] < STRETCH * self.seconds
        early = early and share - self._last_check[1] < STRETCH
        if early or not self._recent or not recorded < step < total:
            return 0
        self._last_check = spent, share
        evaluation = last["evaluation"] or self.evaluation
        reserve = evaluation * (1 + int(self.evaluations * (1 - share)))
        reserve += last["saving"] * (1 + int(SAVES * (1 - share)))
        left = max(self.seconds - spent - reserve, LATE * self.seconds * (1 - share))
        seconds, tokens = self._sums
        rest = max(1, round(left / (seconds / tokens * self.tokens_a_step(share))))
        return step + rest if abs(step + rest - total) > SMALL * (total - step) else 0


class Stopwatch:
    """Measures the seconds since it was created or last read."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def read(self) -> float:
        """The seconds since the last reading."""
        now = time.perf_counter()
        passed, self._since = now - self._since, now
        return passed

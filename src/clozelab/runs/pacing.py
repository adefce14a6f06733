"""A budget of time, kept: what is left of the schedule is fitted to the pace that is measured.

Counted are the steps, the evaluations and the saves of a run; setting it up and compiling it are
not, nor is what a killed run did after its last checkpoint.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, asdict, dataclass

from clozelab.training.loop import Step
from clozelab.training.schedule import Schedule

# Not tuned: a refit costs about a step (docs/decisions/10-time.md), so there are some tens at most.
STRETCH = 0.04  # of the budget, or of the run: how often the pace is looked at
RECENT = 0.1  # of the budget: the steps by which the pace is told
SMALL = 0.02  # of the steps that are left: a smaller change is not worth a refit
LATE = 0.05  # of the budget: a run that is late takes that much longer, for the rate to come down
LOOKING = 0.1  # of the budget, at most, for evaluations before the last
SAVES = 10  # over a run, unless told otherwise


@dataclass
class Times:
    """Where a run's seconds went."""

    setup: float = 0.0  # building, compiling, timing a few steps
    training: float = 0.0
    evaluation: float = 0.0
    saving: float = 0.0

    def __post_init__(self) -> None:
        self.last = dict.fromkeys(asdict(self), 0.0)  # what each took the last time

    def add(self, what: str, seconds: float) -> None:
        """Something was done again."""
        setattr(self, what, getattr(self, what) + seconds)
        self.last[what] = seconds

    def counted(self) -> float:
        """What a budget pays for."""
        return self.training + self.evaluation + self.saving


@dataclass(eq=False)
class Pacer:
    """How many steps a run should take in all, by what its steps have cost so far."""

    seconds: float
    times: Times
    _: KW_ONLY
    tokens_a_step: Callable[[float], float]  # on the mean, from a share of the run on
    evaluation: float  # the seconds that one should take, until one is measured
    refit: Callable[[int, int], str]  # (step, steps of the run) → the text of its recipe
    done: InitVar[float] = 0.0

    def __post_init__(self, done: float) -> None:
        # One to ten, that at the end included: from a number that all processes share, so that
        # they evaluate after the same steps.
        self.evaluations = 1 + min(9, int(LOOKING * self.seconds / max(self.evaluation, 1e-9)))
        self._recent: deque[tuple[float, int]] = deque()  # seconds and tokens of the last steps
        self._sums = 0.0, 0  # of these
        self._looked = self.times.counted(), done  # of the budget, and of the run

    def see(self, step: Step) -> None:
        """Remember what a step took; only the last ones count."""
        seconds, tokens = self._sums
        self._recent.append((step.seconds, step.tokens))
        seconds, tokens = seconds + step.seconds, tokens + step.tokens
        while seconds - self._recent[0][0] > RECENT * self.seconds:
            first = self._recent.popleft()
            seconds, tokens = seconds - first[0], tokens - first[1]
        self._sums = seconds, tokens

    def wanted(self, step: int, schedule: Schedule) -> int:
        """After so many steps, the steps of the whole run that fit; 0: it is well as it is.

        A resumed run first takes the refits that are recorded.
        """
        spent, total = self.times.counted(), schedule.total
        share, last = schedule.progress(step), self.times.last
        recorded = schedule.refits[-1][0] if schedule.refits else 0
        early = spent - self._looked[0] < STRETCH * self.seconds
        early = early and share - self._looked[1] < STRETCH
        if early or not self._recent or not recorded < step < total:
            return 0
        self._looked = spent, share
        evaluation = last["evaluation"] or self.evaluation
        reserve = evaluation * (1 + int(self.evaluations * (1 - share)))
        reserve += last["saving"] * (1 + int(SAVES * (1 - share)))
        left = max(self.seconds - spent - reserve, LATE * self.seconds * (1 - share))
        seconds, tokens = self._sums
        rest = max(1, round(left / (seconds / tokens * self.tokens_a_step(share))))
        return step + rest if abs(step + rest - total) > SMALL * (total - step) else 0


class Stopwatch:
    """Seconds since it was made or read last."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def read(self) -> float:
        """The seconds since the last reading."""
        now = time.perf_counter()
        passed, self._since = now - self._since, now
        return passed

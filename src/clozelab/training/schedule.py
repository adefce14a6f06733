"""Steps, batch size and learning rate: phases of length, warm-up, a plateau and decay.

BERT A.2 gives most steps to short blocks; RoBERTa §4.2 fills steps by tokens where blocks differ.
Some steps, or some blocks of every step, may be read causally (arXiv:2507.00994, 2410.24159).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import ceil, cos, isclose, pi, sqrt
from typing import Annotated, Literal, NamedTuple

from clozelab.errors import UserError
from clozelab.ranges import NonNegativeInt, Part, PositiveFloat, PositiveInt, Share, between

_CLOSE = 1e-6  # shares that differ by less are equal


class Phase(NamedTuple):
    """A stretch of steps with blocks of one length."""

    length: int | None  # None: the length of the format's blocks
    first: int
    last: int  # the last step that belongs to it
    number: int  # phases before it


@dataclass(frozen=True)
class Schedule(Part):
    """The steps of a run, their batch sizes (over all devices) and learning rates.

    Everything is a function of the share of the run that is done. A run on a budget of time may
    be slower or faster than estimated: then the rest of the schedule is spread over the steps that
    there is still time for.
    """

    steps: PositiveInt
    warmup: NonNegativeInt  # steps over which the learning rate rises
    batch_size: PositiveInt  # blocks of a step
    # "tokens": a step takes as many blocks as make `batch_size` full ones, so that formats of short
    # blocks see as much text.
    fill: Literal["sequences", "tokens"] = "sequences"
    # How the learning rate falls: "linear" from the peak; "google_linear" along the line that
    # started at step 0, as BERT's code did; "polynomial" is linear to the `power`;
    # "one_minus_sqrt" is 1 − √share of the fall (arXiv:2405.18392), steep at first.
    decay: Literal[
        "linear", "google_linear", "cosine", "polynomial", "one_minus_sqrt", "constant"
    ] = "linear"
    power: PositiveFloat = 1.0
    # The last learning rate, as a share of the peak.
    final: Annotated[float, between(0, 1, "must be a share of the peak, between 0 and 1")] = 0.0
    # (length, share of the steps); none is one phase at the blocks' length.
    phases: tuple[tuple[int, float], ...] = ()
    ramp: tuple[tuple[int, float], ...] = ()  # (sequences, share) of smaller first steps
    # (step, steps of the whole run from there on) of a run; a recipe has none.
    refits: tuple[tuple[int, int], ...] | None = None
    # The last share of the steps, over which the learning rate falls; 1: all after the warm-up.
    # Less is a plateau before it: warm-up, stable, decay. Recipes name it only then.
    decay_share: Share = field(default=1.0, metadata={"later": True})
    # (share of the blocks, share of the steps): so many blocks of these first steps are read
    # causally, and none of the others. Recipes name it only where there are some.
    causal: tuple[tuple[float, float], ...] = field(default=(), metadata={"later": True})
    # The last share of the steps whose weights are averaged: the run ends with their mean
    # (arXiv:1803.05407). 0: it ends with the last ones. Recipes name it only where there is one.
    average: Share = field(default=0.0, metadata={"later": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup > self.steps:
            raise UserError(f"warmup = {self.warmup}: must lie between 0 and steps = {self.steps}")
        if self.power != 1 and self.decay != "polynomial":
            raise UserError(
                f'power = {self.power}: has no effect without decay = "polynomial"; leave it out'
            )
        if self.decay_share < 1 and self.decay in ("google_linear", "constant"):
            raise UserError(
                f'decay_share = {self.decay_share}: has no effect with decay = "{self.decay}";'
                ' leave it out, or set decay = "one_minus_sqrt"'
            )
        self._check_phases()
        self._check_ramp()
        self._check_causal()
        self._check_refits()

    @property
    def total(self) -> int:
        """The steps of the whole run, by the last refit."""
        return self.refits[-1][1] if self.refits else self.steps

    @property
    def warmed(self) -> int:
        """The steps after which the warm-up is over, which a refit may move."""
        return bisect_left(range(self.total), float(self.warmup), key=self._unrefitted)

    def factor(self, step: int) -> float:
        """The learning rate after `step` steps, as a share of the peak."""
        planned = self._unrefitted(step)
        if planned < self.warmup:
            return planned / self.warmup
        if self.decay == "constant":
            return 1.0
        # BERT's code began the line with the warm-up, so the learning rate drops where that ends.
        plateau_end = (1 - self.decay_share) * self.steps
        first = 0 if self.decay == "google_linear" else max(self.warmup, plateau_end)
        if planned < first:
            return 1.0
        left = (self.steps - planned) / (self.steps - first) if planned < self.steps else 0.0
        if self.decay == "cosine":
            left = (1 - cos(pi * left)) / 2
        elif self.decay == "polynomial":
            left **= self.power
        elif self.decay == "one_minus_sqrt":
            left = 1 - sqrt(1 - left)
        return self.final + (1 - self.final) * left

    def progress(self, step: int) -> float:
        """The share of the run that is done after `step` steps."""
        return min(self._unrefitted(step) / self.steps, 1.0)

    def share_of_mean(self, step: int) -> float:
        """The share that the weights after the step after `step` others have in the mean so far.

        0 before the averaging begins and 1 for its first weights. In the end each step counts by
        the share of the run that it took, however the steps are refitted in between.
        """
        done = self.progress(step + 1)
        since = done - (1 - self.average)
        return min((done - self.progress(step)) / since, 1.0) if since > _CLOSE else 0.0

    def phase(self, step: int) -> Phase:
        """The phase of the step after `step` others; the last phase never ends."""
        if not self.phases:
            return Phase(None, 0, self.steps - 1, 0)
        number, ends = self._stretch(step, [share for _, share in self.phases])
        first = ends[number - 1] if number else 0
        return Phase(self.phases[number][0], first, ends[number] - 1, number)

    def batch_size_at(self, step: int) -> int:
        """The number of blocks of the step after `step` others."""
        shares = [share for _, share in self.ramp]
        sizes = [*(size for size, _ in self.ramp), self.batch_size]
        number, _ = self._stretch(step, [*shares, 1 - sum(shares)])
        return sizes[number]

    def causal_share(self, step: int) -> float:
        """The share of blocks that the step after `step` others reads causally."""
        left = 1 - sum(share for _, share in self.causal)
        stretches = [*self.causal, *([(0.0, left)] if left > _CLOSE else [])]
        number, _ = self._stretch(step, [share for _, share in stretches])
        return stretches[number][0]

    @property
    def mean_causal_share(self) -> float:
        """The share of all blocks of the run that are read causally."""
        return sum(blocks * share for blocks, share in self.causal)

    def stretches(self, first: float = 0.0) -> Iterator[tuple[float, int, int]]:
        """Yield the rest of the run after a share of it, as (share, phase number, sequences)."""
        phases = [share for _, share in self.phases] or [1.0]
        ramp = [share for _, share in self.ramp]
        ends = [*accumulate(phases)][:-1], [*accumulate(ramp)]
        sizes = [*(size for size, _ in self.ramp), self.batch_size]
        borders = sorted({first, *(end for bounds in ends for end in bounds if end > first), 1.0})
        for border, end in pairwise(borders):
            phase, size = (bisect_right(bounds, border) for bounds in ends)
            yield end - border, phase, sizes[size]

    def fitted(self, steps: int) -> Schedule:
        """The same schedule in `steps` steps: every share stays the same.

        The warm-up of a shorter run is at least 5 % of the steps, since Adam's first steps are as
        noisy as those of a long one, and at most half.
        """
        warmup = round(self.warmup / self.steps * steps)
        if self.warmup and steps < self.steps:
            warmup = min(max(warmup, ceil(steps / 20)), steps // 2)
        return replace(self, steps=steps, warmup=warmup, refits=None)

    def refitted(self, step: int, total: int) -> Schedule:
        """The same schedule, from `step` on spread so that the run ends after `total` steps.

        Refits after that step, which a run recorded before it was killed, are void.
        """
        before = [refit for refit in self.refits or () if refit[0] <= step]
        return replace(self, refits=(*before, (step, total)))

    def _unrefitted(self, step: int) -> float:
        """The step of the schedule without refits at which the same share of the run is done."""
        first, done, total = 0, 0.0, self.steps
        for at, new_total in self.refits or ():
            if step < at:
                break
            done += (self.steps - done) * (at - first) / (total - first)
            first, total = at, new_total
        if not self.refits or step >= total:
            return self.steps + step - total
        return done + (self.steps - done) * (step - first) / (total - first)

    def _stretch(self, step: int, shares: Sequence[float]) -> tuple[int, list[int]]:
        """In which of the stretches with these shares of the steps a step is, and where they end.

        None is empty, given enough steps, and the last one never ends.
        """
        ends = [round(total * self.steps) for total in accumulate(shares)]
        ends[-1] = self.steps
        if self.steps >= len(ends):
            for number in range(len(ends)):
                before, after = ends[number - 1] if number else 0, len(ends) - 1 - number
                ends[number] = min(max(ends[number], before + 1), self.steps - after)
        return bisect_right(ends, min(self._unrefitted(step), self.steps - 1)), ends

    def _check_phases(self) -> None:
        if any(length < 1 or share <= 0 for length, share in self.phases):
            raise UserError("phases: give pairs (length, share of the steps), each above 0")
        total = sum(share for _, share in self.phases)
        if self.phases and not isclose(total, 1, abs_tol=_CLOSE):
            raise UserError(f"phases: the shares must sum to 1, not {total:g}")

    def _check_refits(self) -> None:
        end, last = self.steps, 0
        for at, total in self.refits or ():
            if not last <= at < min(end, total):
                raise UserError(
                    f"refits: [{at}, {total}] is out of place; give pairs (step, steps of the whole"
                    " run), in order, each before the run's end"
                )
            end, last = total, at

    def _check_causal(self) -> None:
        if any(not 0 <= blocks <= 1 or share <= 0 for blocks, share in self.causal):
            raise UserError(
                "causal: give pairs (share of the blocks, from 0 to 1; share of the steps, above 0)"
            )
        total = sum(share for _, share in self.causal)
        if total > 1 + _CLOSE:
            raise UserError(f"causal: the shares of the steps must sum to at most 1, not {total:g}")

    def _check_ramp(self) -> None:
        sizes = [size for size, _ in self.ramp]
        if any(share <= 0 for _, share in self.ramp) or sum(share for _, share in self.ramp) >= 1:
            raise UserError("ramp: the shares of the steps must be above 0 and sum to less than 1")
        if sizes != sorted({*sizes}) or any(not 1 <= size < self.batch_size for size in sizes):
            raise UserError(f"ramp: must grow step by step towards batch_size = {self.batch_size}")

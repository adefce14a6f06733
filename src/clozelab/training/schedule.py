"""How long, how much at once, and at which rate: steps, phases of length, warm-up and decay.

BERT A.2 gives most steps to short blocks; RoBERTa §4.2 fills steps by tokens where blocks differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose
from typing import ClassVar, Literal

from clozelab.contracts import UserError


@dataclass(frozen=True)
class Schedule:
    """One run's steps, counted over all devices.

    `sequences` is a step's blocks; with `fill = "tokens"` a step takes as many blocks as make
    `sequences` full ones, so that formats of short blocks see as much text. `phases` lists
    (length, share of the steps); none is one phase at the blocks' length. `ramp` lists
    (sequences, share of the steps) of smaller first steps. The rate rises over `warmup` steps and
    falls to `final` × peak: "linear" falls from the peak, "google_linear" along the line that began
    at step 0, as BERT's code did; "polynomial" is linear to the `power`.
    """

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()

    steps: int
    warmup: int
    sequences: int
    fill: Literal["sequences", "tokens"] = "sequences"
    decay: Literal["linear", "google_linear", "cosine", "polynomial", "constant"] = "linear"
    power: float = 1.0
    final: float = 0.0
    phases: tuple[tuple[int, float], ...] = ()
    ramp: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        for name in ("steps", "sequences"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} = {getattr(self, name)}: must be at least 1")
        if not 0 <= self.warmup <= self.steps:
            raise UserError(f"warmup = {self.warmup}: must lie between 0 and steps = {self.steps}")
        if not 0 <= self.final <= 1:
            raise UserError(f"final = {self.final}: must be a share of the peak, between 0 and 1")
        if self.power <= 0:
            raise UserError(f"power = {self.power}: must be above 0")
        if self.power != 1 and self.decay != "polynomial":
            raise UserError(f'power = {self.power}: has an effect only with decay = "polynomial"')
        self._check_phases()
        self._check_ramp()

    def _check_phases(self) -> None:
        if any(length < 1 or share <= 0 for length, share in self.phases):
            raise UserError("phases: give pairs (length, share of the steps), each above 0")
        total = sum(share for _, share in self.phases)
        if self.phases and not isclose(total, 1, abs_tol=1e-6):
            raise UserError(f"phases: the shares must sum to 1, and sum to {total:g}")

    def _check_ramp(self) -> None:
        sizes = [size for size, _ in self.ramp]
        if any(share <= 0 for _, share in self.ramp) or sum(share for _, share in self.ramp) >= 1:
            raise UserError("ramp: the shares of the steps must be above 0 and sum to less than 1")
        if sizes != sorted({*sizes}) or any(not 1 <= size < self.sequences for size in sizes):
            raise UserError(f"ramp: must grow step by step towards sequences = {self.sequences}")

"""Distillation: a teacher's distribution and its states as the target (DistilBERT §2-3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from clozelab.contracts import UserError
from clozelab.objectives.widths import Course, Widths, check_weight


@dataclass(frozen=True)
class Distillation:
    """`soft` × divergence at `temperature`, times its square, + `cosine` × distance of last states.

    `over` says at which tokens the distributions are compared. `start` is where the student's
    layers come from: teacher layers spread evenly (12 → 6 gives 0 2 4 7 9 11), those listed in
    `layers`, or "random" numbers. The loss on the hidden tokens is `masked_lm`'s, listed beside.
    """

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset({"targets", "token_vectors"})

    weight: float = 1.0
    course: Course = ()
    teacher: str = "bert"
    temperature: float = 2.0
    soft: float = 5.0
    cosine: float = 1.0
    over: Literal["tokens", "targets"] = "tokens"
    start: Literal["spread", "listed", "random"] = "spread"
    layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_weight(self.weight, self.course)
        if self.temperature <= 0:
            raise UserError(f"temperature = {self.temperature}: must be above 0, for instance 2")
        for name in ("soft", "cosine"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} = {getattr(self, name)}: must be at least 0")
        if (self.start == "listed") != bool(self.layers):
            raise UserError('layers: list them with start = "listed", and only then')
        if list(self.layers) != sorted(set(self.layers)) or min(self.layers, default=0) < 0:
            raise UserError(f"layers = {list(self.layers)}: list teacher layers from 0, ascending")

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable numbers of the head, by part."""
        return {}

"""What optimisers that move a group's parameters together share."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer


class GroupOptimizer(Optimizer):
    """An optimiser that says how one group of parameters moves; the rest is here."""

    kept: ClassVar[tuple[str, ...]]  # what is kept of each parameter, zeros at first

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            if not moved:
                continue
            for parameter in moved:
                if not self.state[parameter]:
                    zeros = {name: torch.zeros_like(parameter) for name in self.kept}
                    self.state[parameter].update(zeros)
            states = [[self.state[p][name] for p in moved] for name in self.kept]
            self.move(moved, [p.grad for p in moved], *states, group=group)

    def move(
        self,
        moved: list[Tensor],
        gradients: list[Tensor],
        *states: list[Tensor],
        group: dict[str, Any],
    ) -> None:
        """Move one group; `states` are what is kept of its parameters, in the order of `kept`."""
        raise NotImplementedError

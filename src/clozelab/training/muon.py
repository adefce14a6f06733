"""Muon: momentum whose matrices are made nearly orthogonal before they are steps.

Differs from torch's own: matrices of one shape are worked on together, a few large products in the
place of many small ones, and matrices that only lie side by side in one parameter, as queries, keys
and values do, are each made orthogonal alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from clozelab.training.stepping import GroupOptimizer
from clozelab.training.world import full_tensor, shard_like

# Of the odd polynomial that pulls singular values towards 1, steeply at first.
_POLYNOMIAL = (3.4445, -4.7750, 2.0315)


class MuonOptimizer(GroupOptimizer):
    """θ ← (1 − lr · decay) θ − lr · √max(1, rows / columns) · orthogonal(momentum).

    `parts` says of how many matrices, one below another, a parameter is made; 1 if it is not there.
    """

    kept = ("momentum_buffer",)

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        momentum: float,
        iterations: int,
        parts: Mapping[Tensor, int],
    ) -> None:
        super().__init__(groups, {"momentum": momentum, "iterations": iterations})
        self.parts = parts

    def move(
        self,
        moved: list[Tensor],
        gradients: list[Tensor],
        *states: list[Tensor],
        group: dict[str, Any],
    ) -> None:
        """Move one group."""
        (kept,) = states
        torch._foreach_lerp_(kept, gradients, 1 - group["momentum"])
        ahead = torch._foreach_lerp(gradients, kept, group["momentum"])
        if group["weight_decay"]:
            torch._foreach_mul_(moved, 1 - group["lr"] * group["weight_decay"])
        for members in self._alike(moved):
            steps = self._orthogonal([ahead[place] for place in members], moved[members[0]], group)
            mine = [moved[place] for place in members]
            laid = [shard_like(step, p) for step, p in zip(steps, mine, strict=True)]
            torch._foreach_add_(mine, laid, alpha=-group["lr"])

    def _alike(self, moved: list[Tensor]) -> Iterable[list[int]]:
        """The places of parameters made of the same number of matrices of the same shape."""
        sorts: dict[tuple[Any, ...], list[int]] = {}
        for place, parameter in enumerate(moved):
            kind = (parameter.shape, parameter.dtype, self.parts.get(parameter, 1))
            sorts.setdefault(kind, []).append(place)
        return sorts.values()

    def _orthogonal(
        self, momenta: list[Tensor], first: Tensor, group: dict[str, Any]
    ) -> Iterable[Tensor]:
        """The steps of some parameters that are alike."""
        parts = self.parts.get(first, 1)
        stacked = torch.stack([full_tensor(momentum) for momentum in momenta])
        matrices = stacked.view(len(momenta) * parts, -1, stacked.shape[-1])
        rows, columns = matrices.shape[1:]
        directions = orthogonal(matrices, group["iterations"]) * max(1.0, rows / columns) ** 0.5
        steps: tuple[Tensor, ...] = directions.to(first.dtype).view_as(stacked).unbind()
        return steps


def orthogonal(matrices: Tensor, iterations: int) -> Tensor:
    """[M, R, C] → matrices with the same singular vectors and values near 1.

    By the iteration x ← a x + (b x xᵀ + c (x xᵀ)²) x on what has a Frobenius norm of 1, in the
    precision that is fast on the device: the polynomial forgives rounding.
    """
    a, b, c = _POLYNOMIAL
    x = matrices.to(product_dtype(matrices.device))
    wide = x.shape[1] <= x.shape[2]
    x = x if wide else x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(iterations):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x if wide else x.mT


def product_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the processor multiplies it natively, float32 where it would be emulated.

    A CPU without AVX-512's bfloat16 instructions is five to thirty times slower in bfloat16. What
    torch may use of a CPU can be less than what it has (ATEN_CPU_CAPABILITY).
    """
    if device.type == "cuda":
        native = torch.cuda.get_device_capability(device) >= (8, 0)  # since Ampere
    else:
        usable = torch.backends.cpu.get_cpu_capability() == "AVX512"
        native = usable and bool(torch.cpu.get_capabilities().get("avx512_bf16"))
    return torch.bfloat16 if native else torch.float32

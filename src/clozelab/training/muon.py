"""Muon: the momentum of each matrix is made nearly orthogonal before it is the update.

Differs from torch's own: matrices of one shape are computed as a batch, a few large products
instead of many small ones; and matrices that share a parameter, as those of queries, keys and
values do, are made orthogonal separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clozelab.training import updates
from clozelab.training.updates import Named, Scale, Tensors, gradients_of
from clozelab.training.world import full_tensor, shard_like

if TYPE_CHECKING:
    from clozelab.training.optimiser import Muon

# Of the odd polynomial that pulls singular values towards 1, steeply at first: Muon's own (Jordan
# et al. 2024), found there for the steepest slope at zero.
_POLYNOMIAL = (3.4445, -4.7750, 2.0315)


def build(settings: Muon, parameters: Named, *, scale: Scale | None = None) -> list[Optimizer]:
    """Muon for the layers' matrices, Adam for everything else; neither without parameters."""
    named = list(parameters)
    inner = [(name, p) for name, p in named if _is_inner(name, p)]
    others = [(name, p) for name, p in named if not _is_inner(name, p)]
    optimisers: list[Optimizer] = []
    if inner:
        groups = updates.grouped(inner, settings, rate=settings.matrix_learning_rate, scale=scale)
        parts = _matrix_counts(dict(inner))
        optimisers.append(MuonOptimizer(groups, settings=settings, parts=parts))
    if others:
        optimisers.append(updates.adam(settings, others, scale=scale))
    return optimisers


def _matrix_counts(inner: Mapping[str, nn.Parameter]) -> dict[Tensor, int]:
    """The number of matrices in each parameter: queries, keys, values; a gate and its input."""
    parts: dict[Tensor, int] = {p: 3 for name, p in inner.items() if name.endswith("qkv.weight")}
    for name, parameter in inner.items():
        output = inner.get(name.replace("inner.weight", "output.weight"))
        if output is not None and output is not parameter:
            parts[parameter] = parameter.shape[0] // output.shape[1]
    return parts


def _is_inner(name: str, parameter: nn.Parameter) -> bool:
    """Whether it is a matrix of the layers: no embedding, no head, no bias with two axes.

    The layers of ELECTRA's generator count, though it is among the heads.
    """
    modules = {*name.rpartition("heads.generator.encoder.")[2].split(".")}
    inside = modules & {"attention", "ffn", "projection"} and "heads" not in modules
    return bool(inside) and parameter.ndim == 2 and not updates.is_spared(name, parameter)


class MuonOptimizer(updates.GroupOptimizer):
    """θ ← (1 − lr · decay) θ − lr · √max(1, rows / columns) · orthogonal(momentum).

    `parts` has the number of matrices that a parameter stacks; 1 where it is missing.
    """

    state_names = ("momentum_buffer",)

    def __init__(
        self, groups: list[dict[str, Any]], *, settings: Muon, parts: Mapping[Tensor, int]
    ) -> None:
        defaults = {"momentum": settings.momentum, "iterations": settings.iterations}
        super().__init__(groups, defaults)
        self.parts = parts

    def move(self, parameters: Tensors, states: list[Tensors], *, group: dict[str, Any]) -> None:
        """Update one group of parameters."""
        (momenta,), gradients = states, gradients_of(parameters)
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        nesterov = torch._foreach_lerp(gradients, momenta, group["momentum"])
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        for indices in self._by_shape(parameters):
            same_shape = [parameters[index] for index in indices]
            steps = self._orthogonal([nesterov[index] for index in indices], same_shape[0], group)
            shards = [shard_like(step, p) for step, p in zip(steps, same_shape, strict=True)]
            torch._foreach_add_(same_shape, shards, alpha=-group["lr"])

    def _by_shape(self, parameters: Tensors) -> Iterable[list[int]]:
        """The indices of the parameters with the same number of matrices of the same shape."""
        indices: dict[tuple[Any, ...], list[int]] = {}
        for index, parameter in enumerate(parameters):
            kind = (parameter.shape, parameter.dtype, self.parts.get(parameter, 1))
            indices.setdefault(kind, []).append(index)
        return indices.values()

    def _orthogonal(
        self, momenta: list[Tensor], first: Tensor, group: dict[str, Any]
    ) -> Iterable[Tensor]:
        """The updates of parameters of the same shape."""
        parts = self.parts.get(first, 1)
        stacked = torch.stack([full_tensor(momentum) for momentum in momenta])
        matrices = stacked.view(len(momenta) * parts, -1, stacked.shape[-1])
        rows, columns = matrices.shape[1:]
        directions = orthogonal(matrices, group["iterations"]) * max(1.0, rows / columns) ** 0.5
        steps: tuple[Tensor, ...] = directions.to(first.dtype).reshape(stacked.shape).unbind()
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

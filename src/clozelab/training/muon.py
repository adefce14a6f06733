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
from clozelab.training.orthogonal import orthogonal
from clozelab.training.updates import Named, Scale, Tensors, gradients_of
from clozelab.training.world import full_tensor, shard_like

if TYPE_CHECKING:
    from clozelab.training.optimiser import Muon

_TINY = 1e-8  # beside a root of mean squares, which are near 1 / columns; not tuned


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

    def __init__(
        self, groups: list[dict[str, Any]], *, settings: Muon, parts: Mapping[Tensor, int]
    ) -> None:
        super().__init__(groups, {"momentum": settings.momentum})
        self.parts = parts
        self.polynomials = settings.polynomials()
        self.neuron_beta = settings.neuron_beta
        self.state_names = ("momentum_buffer", *(("neuron_squares",) if self.neuron_beta else ()))

    def zeros(self, name: str, parameter: Tensor) -> Tensor:
        """A state before the first step: of squares there is one for each row."""
        if name == "momentum_buffer":
            return torch.zeros_like(parameter)
        return shard_like(torch.zeros(len(parameter), 1, dtype=parameter.dtype), parameter)

    def move(self, parameters: Tensors, states: list[Tensors], *, group: dict[str, Any]) -> None:
        """Update one group of parameters."""
        (momenta, *squares), gradients = states, gradients_of(parameters)
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        nesterov = torch._foreach_lerp(gradients, momenta, group["momentum"])
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        for indices in self._by_shape(parameters):
            same_shape = [parameters[index] for index in indices]
            parts = self.parts.get(same_shape[0], 1)
            directions = self._directions([nesterov[index] for index in indices], parts)
            for of_rows in squares:
                self._normalise(directions, [of_rows[index] for index in indices])
            steps = directions.view(len(indices), *same_shape[0].shape).unbind()
            shards = [shard_like(step, p) for step, p in zip(steps, same_shape, strict=True)]
            rows, columns = directions.shape[1:]
            stretch = max(1.0, rows / columns) ** 0.5
            torch._foreach_add_(same_shape, shards, alpha=-group["lr"] * stretch)

    def _by_shape(self, parameters: Tensors) -> Iterable[list[int]]:
        """The indices of the parameters with the same number of matrices of the same shape."""
        indices: dict[tuple[Any, ...], list[int]] = {}
        for index, parameter in enumerate(parameters):
            kind = (parameter.shape, parameter.dtype, self.parts.get(parameter, 1))
            indices.setdefault(kind, []).append(index)
        return indices.values()

    def _directions(self, momenta: list[Tensor], parts: int) -> Tensor:
        """[M, R, C] the orthogonal matrices of parameters of the same shape."""
        stacked = torch.stack([full_tensor(momentum) for momentum in momenta])
        matrices = stacked.view(len(momenta) * parts, -1, stacked.shape[-1])
        return orthogonal(matrices, self.polynomials).to(stacked.dtype).contiguous()

    def _normalise(self, directions: Tensor, squares: Tensors) -> None:
        """Divide each row by the root of its mean square so far; each matrix keeps its norm.

        NorMuon (arXiv:2510.05491, algorithm 1); its bias correction would cancel in the norm.
        """
        means = torch.stack([full_tensor(square) for square in squares]).view(*directions.shape[:2])
        means.lerp_(directions.square().mean(2), 1 - self.neuron_beta)
        norms = directions.norm(dim=(1, 2), keepdim=True)
        directions /= means.sqrt()[..., None] + _TINY
        directions *= norms / directions.norm(dim=(1, 2), keepdim=True).clamp(min=_TINY)
        for square, mean in zip(squares, means.view(len(squares), -1, 1), strict=True):
            square.copy_(shard_like(mean, square))

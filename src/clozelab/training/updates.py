"""The optimisers at work: which parameters decay, and how each kind of step is taken.

Every group carries `peak` beside `lr`: the loop sets the rate to peak × the schedule's factor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import AdamW, Optimizer
from torch.optim.adamw import adamw as functional_adamw

from clozelab.training import muon as orthogonal
from clozelab.training.stepping import GroupOptimizer
from clozelab.training.world import full_tensor

if TYPE_CHECKING:
    from clozelab.training.optimiser import Muon, Optimiser

Named = Iterable[tuple[str, nn.Parameter]]
Scale = Callable[[str], float]  # a parameter's rate by its name, as a multiple


class UncorrectedAdam(GroupOptimizer):
    """Adam without bias correction, as in BERT's code; with `trust` it is ALBERT's LAMB (§4.1).

    θ −= lr · ratio · (m / (√v + ε) + decay · θ), where the ratio is ‖θ‖ / ‖step‖ for what is not
    spared, if there is trust, and 1 otherwise.
    """

    kept = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        betas: tuple[float, float],
        epsilon: float,
        trust: bool,
    ) -> None:
        super().__init__(groups, {"betas": betas, "epsilon": epsilon, "trust": trust})

    def move(
        self,
        moved: list[Tensor],
        gradients: list[Tensor],
        *states: list[Tensor],
        group: dict[str, Any],
    ) -> None:
        """Move one group."""
        means, squares = states
        if group["trust"]:
            self._move_by_trust(moved, gradients, means, squares, group)
            return
        # So late that nothing is left to correct.
        late = torch.full((), 1e9, device=moved[0].device)
        first, second = group["betas"]
        functional_adamw(
            moved, gradients, means, squares, [], [late] * len(moved), fused=True, amsgrad=False,
            beta1=first, beta2=second, lr=group["lr"], weight_decay=group["weight_decay"],
            eps=group["epsilon"], maximize=False,
        )  # fmt: skip

    def _move_by_trust(
        self,
        moved: list[Tensor],
        gradients: list[Tensor],
        means: list[Tensor],
        squares: list[Tensor],
        group: dict[str, Any],
    ) -> None:
        first, second = group["betas"]
        torch._foreach_lerp_(means, gradients, 1 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - second)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["epsilon"])
        steps = torch._foreach_div(means, roots)
        if group["weight_decay"]:
            torch._foreach_add_(steps, moved, alpha=group["weight_decay"])
        if not group["spared"]:
            for step, ratio in zip(steps, _ratios(moved, steps), strict=True):
                step.mul_(ratio)
        torch._foreach_add_(moved, steps, alpha=-group["lr"])


def adamw(settings: Optimiser, parameters: Named, *, scale: Scale | None = None) -> AdamW:
    """Adam with bias correction and decoupled decay, in one kernel."""
    groups = grouped(parameters, settings, rate=settings.rate, scale=scale)
    return AdamW(groups, betas=settings.betas, eps=settings.epsilon, fused=True)


def uncorrected(
    settings: Optimiser, parameters: Named, *, trust: bool, scale: Scale | None = None
) -> UncorrectedAdam:
    """BERT's Adam, or LAMB."""
    groups = grouped(parameters, settings, rate=settings.rate, scale=scale)
    return UncorrectedAdam(groups, betas=settings.betas, epsilon=settings.epsilon, trust=trust)


def muon(settings: Muon, parameters: Named, *, scale: Scale | None = None) -> list[Optimizer]:
    """Muon for the layers' matrices, Adam for everything else; each only where it has something."""
    named = list(parameters)
    inner = [(name, p) for name, p in named if _inner(name, p)]
    others = [(name, p) for name, p in named if not _inner(name, p)]
    optimisers: list[Optimizer] = []
    if inner:
        optimisers.append(
            orthogonal.MuonOptimizer(
                grouped(inner, settings, rate=settings.matrix_rate, scale=scale),
                momentum=settings.momentum,
                iterations=settings.iterations,
                parts={p: 3 for name, p in inner if name.endswith("qkv.weight")},
            )
        )
    return [*optimisers, adamw(settings, others, scale=scale)] if others else optimisers


def grouped(
    parameters: Named, settings: Optimiser, *, rate: float, scale: Scale | None = None
) -> list[dict[str, Any]]:
    """What trains: what decays, then what is spared unless everything decays, by rate."""
    sorts: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in parameters:
        if parameter.requires_grad:
            factor = 1.0 if scale is None else scale(name)
            sorts.setdefault((_spared(name, parameter), factor), []).append(parameter)
    groups: list[dict[str, Any]] = []
    # What has the settings' own rate comes first: a step's rate is that of the first group.
    for spared, factor in sorted(sorts, key=lambda sort: (sort[0], sort[1] != 1, -sort[1])):
        decay = 0.0 if spared and not settings.decay_all else settings.decay
        group = {"params": sorts[spared, factor], "weight_decay": decay, "spared": spared}
        groups.append(group | {"lr": rate * factor, "peak": rate * factor})
    return groups


@torch.no_grad()
def clip(parameters: Iterable[nn.Parameter], most: float) -> Tensor:
    """Shrink the gradients to a global norm of at most `most` (0: leave them); returns the norm."""
    trained = [p for p in parameters if p.grad is not None]
    norm = full_tensor(get_total_norm([p.grad for p in trained if p.grad is not None]))
    if most:
        clip_grads_with_norm_(trained, most, norm)
    return norm


def _spared(name: str, parameter: nn.Parameter) -> bool:
    """Biases, norms and single vectors."""
    # Differs from XLNet's code: its query biases, which have two axes, are spared by their name.
    return parameter.ndim < 2 or name.endswith("bias") or "norm." in name


def _inner(name: str, parameter: nn.Parameter) -> bool:
    """A matrix inside the layers: no table, no head, no bias that happens to have two axes."""
    places = {*name.split(".")}
    inside = places & {"attention", "ffn", "projection"} and "heads" not in places
    return bool(inside) and parameter.ndim == 2 and not _spared(name, parameter)


def _ratios(parameters: Sequence[Tensor], steps: Sequence[Tensor]) -> Sequence[Tensor]:
    """‖θ‖ / ‖step‖ of each, over all devices; 1 where either is 0."""
    sizes = torch.stack([full_tensor(norm) for norm in torch._foreach_norm(list(parameters))])
    lengths = torch.stack([full_tensor(norm) for norm in torch._foreach_norm(list(steps))])
    return torch.where((sizes > 0) & (lengths > 0), sizes / lengths, 1.0).unbind()

"""The updates of Adam and LAMB, the mean of weights, and which parameters have weight decay.

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

from clozelab.training.world import full_tensor

if TYPE_CHECKING:
    from clozelab.training.optimiser import Optimiser

Tensors = list[Tensor]
Named = Iterable[tuple[str, nn.Parameter]]
Scale = Callable[[str], float]  # a parameter's rate by its name, as a multiple


class GroupOptimizer(Optimizer):
    """A base class: a subclass says how one group of parameters is updated."""

    state_names: tuple[str, ...]  # of the tensors that belong to each parameter

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            for parameter in parameters:
                if not self.state[parameter]:
                    zeros = {name: self.zeros(name, parameter) for name in self.state_names}
                    self.state[parameter].update(zeros)
            if parameters:
                states = [[self.state[p][name] for p in parameters] for name in self.state_names]
                self.move(parameters, states, group=group)

    def zeros(self, name: str, parameter: Tensor) -> Tensor:
        """The state of that name before the first step; sharded as the parameter."""
        return torch.zeros_like(parameter)

    def move(self, parameters: Tensors, states: list[Tensors], *, group: dict[str, Any]) -> None:
        """Update one group; `states` are in the order of `state_names`."""
        raise NotImplementedError


class UncorrectedAdam(GroupOptimizer):
    """Adam without bias correction, as in BERT's code; with `trust` it is ALBERT's LAMB (§4.1).

    θ −= lr · ratio · (m / (√v + ε) + decay · θ), where the ratio is ‖θ‖ / ‖step‖ for what is not
    spared, if there is trust, and 1 otherwise.
    """

    state_names = ("exp_avg", "exp_avg_sq")

    def move(self, parameters: Tensors, states: list[Tensors], *, group: dict[str, Any]) -> None:
        """Update one group."""
        if group["trust"]:
            _lamb_update(parameters, states, group)
            return
        # A step count so large that the bias correction is 1.
        late = torch.full((), 1e9, device=parameters[0].device)
        (means, squares), (first, second) = states, group["betas"]
        functional_adamw(
            parameters, gradients_of(parameters), means, squares, [], [late] * len(parameters),
            fused=True, amsgrad=False, beta1=first, beta2=second, lr=group["lr"],
            weight_decay=group["weight_decay"], eps=group["epsilon"], maximize=False,
        )  # fmt: skip


def _lamb_update(parameters: Tensors, states: list[Tensors], group: dict[str, Any]) -> None:
    (means, squares), (first, second) = states, group["betas"]
    gradients = gradients_of(parameters)
    torch._foreach_lerp_(means, gradients, 1 - first)
    torch._foreach_mul_(squares, second)
    torch._foreach_addcmul_(squares, gradients, gradients, value=1 - second)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_add_(roots, group["epsilon"])
    steps = torch._foreach_div(means, roots)
    if group["weight_decay"]:
        torch._foreach_add_(steps, parameters, alpha=group["weight_decay"])
    if not group["spared"]:
        for step, ratio in zip(steps, _trust_ratios(parameters, steps), strict=True):
            step.mul_(ratio)
    torch._foreach_add_(parameters, steps, alpha=-group["lr"])


class WeightMean(Optimizer):
    """The mean of the weights after the last steps of a run, which ends with it (1803.05407).

    An optimiser only in that it has a state for each parameter, which checkpoints keep.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__([p for p in parameters if p.requires_grad], {})

    @torch.no_grad()
    def add(self, share: float, *, last: bool) -> None:
        """Add the present weights to the mean with a share of it; at last the mean replaces them.

        In fp16 a skipped step counts once more: its weights are those before it.
        """
        parameters = [p for group in self.param_groups for p in group["params"]]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["mean"] = parameter.detach().clone()
        means = [self.state[parameter]["mean"] for parameter in parameters]
        torch._foreach_lerp_(means, parameters, share)
        if last:
            for parameter, mean in zip(parameters, means, strict=True):
                parameter.copy_(mean)
            self.state.clear()


def gradients_of(parameters: Sequence[Tensor]) -> Tensors:
    """The gradients of parameters that have one."""
    return [p.grad for p in parameters if p.grad is not None]


def adam(settings: Optimiser, parameters: Named, *, scale: Scale | None = None) -> Optimizer:
    """Adam with decoupled decay in one kernel, BERT's Adam, or LAMB."""
    groups = grouped(parameters, settings, rate=settings.learning_rate, scale=scale)
    if settings.corrects_bias:
        return AdamW(groups, betas=settings.betas, eps=settings.epsilon, fused=True)
    return UncorrectedAdam(
        groups,
        {"betas": settings.betas, "epsilon": settings.epsilon, "trust": settings.trust_ratio},
    )


def grouped(
    parameters: Named, settings: Optimiser, *, rate: float, scale: Scale | None = None
) -> list[dict[str, Any]]:
    """The parameter groups by learning rate: those with weight decay, then those without."""
    members: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in parameters:
        if parameter.requires_grad:
            factor = 1.0 if scale is None else scale(name)
            members.setdefault((is_spared(name, parameter), factor), []).append(parameter)
    groups: list[dict[str, Any]] = []
    # Factor 1 comes first: the learning rate that a step records is that of the first group.
    for spared, factor in sorted(members, key=lambda kind: (kind[0], kind[1] != 1, -kind[1])):
        decay = 0.0 if spared and not settings.decay_all else settings.weight_decay
        group = {"params": members[spared, factor], "weight_decay": decay, "spared": spared}
        groups.append(group | {"lr": rate * factor, "peak": rate * factor})
    return groups


@torch.no_grad()
def clip(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Clip the gradients to a global norm of `max_norm` (0: no clipping); returns the norm."""
    trained = [p for p in parameters if p.grad is not None]
    norm = full_tensor(get_total_norm(gradients_of(trained)))
    if max_norm:
        clip_grads_with_norm_(trained, max_norm, norm)
    return norm


def is_spared(name: str, parameter: nn.Parameter) -> bool:
    """Whether it has no weight decay: biases, norms and single vectors."""
    # Differs from XLNet's code: its query biases, which have two axes, are spared by their name.
    return parameter.ndim < 2 or name.endswith("bias") or "norm." in name


def _trust_ratios(parameters: Sequence[Tensor], steps: Sequence[Tensor]) -> Sequence[Tensor]:
    """‖θ‖ / ‖step‖ of each parameter, over all devices; 1 where either is 0."""
    sizes = torch.stack([full_tensor(norm) for norm in torch._foreach_norm(list(parameters))])
    lengths = torch.stack([full_tensor(norm) for norm in torch._foreach_norm(list(steps))])
    return torch.where((sizes > 0) & (lengths > 0), sizes / lengths, 1.0).unbind()

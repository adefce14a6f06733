"""A run's state to a checkpoint and back: weights, moments, memory, and where the feed stands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clozelab.errors import UserError
from clozelab.training import checkpoint
from clozelab.training.checkpoint import Checkpoint
from clozelab.training.feed import Cursor
from clozelab.training.loop import Step, Trainee
from clozelab.training.world import World, like, whole


def bare(model: nn.Module) -> nn.Module:
    """The model inside its wrapper."""
    inner = getattr(model, "module", model)
    assert isinstance(inner, nn.Module)
    return inner


@contextmanager
def plainly(model: nn.Module, *, wrapped: bool = False) -> Iterator[nn.Module]:
    """The model without its compiled graph, which is for training; in its wrapper if need be."""
    plain = model if wrapped else bare(model)
    compiled, plain._compiled_call_impl = plain._compiled_call_impl, None
    try:
        yield plain
    finally:
        plain._compiled_call_impl = compiled


def names(model: nn.Module) -> dict[nn.Parameter, str]:
    """What every parameter is called in a checkpoint."""
    return {parameter: name for name, parameter in bare(model).named_parameters()}


def save(
    folder: Path,
    step: Step,
    trainee: Trainee,
    world: World,
    *,
    state: Mapping[str, Any],
    texts: Mapping[str, str],
    keep: int,
    more: Mapping[str, Tensor] | None = None,
) -> Path | None:
    """Write a checkpoint; every process takes part, the first one writes."""
    parameters = bare(trainee.model).named_parameters()
    moments = checkpoint.moments(trainee.optimisers, names(trainee.model))
    weights = _kept(((name, whole(value.detach())) for name, value in parameters), world)
    tensors = _kept(moments, world)
    if trainee.memory is not None:
        layers = enumerate(torch.split(trainee.memory, 1))
        memory = _kept(((str(number), world.joined(layer)) for number, layer in layers), world)
        if memory:
            tensors["memory"] = torch.cat([*memory.values()])
    assert isinstance(step.after, Cursor)
    place = None
    if world.leads:
        told = {
            **state,
            "step": step.number,
            "phase": step.after.phase,
            "places": [list(one) for one in step.after.places],
            "scaler": trainee.scaler.state_dict() if trainee.scaler else None,
        }
        place = checkpoint.save(
            folder,
            step.number,
            weights=weights,
            tensors={**tensors, **(more or {})},
            state=told,
            texts=texts,
            keep=keep,
        )
    world.wait()
    return place


def _kept(gathered: Iterable[tuple[str, Tensor]], world: World) -> dict[str, Tensor]:
    """What all processes gather, one tensor after another, in the memory of the one that writes."""
    return {name: value.cpu() for name, value in gathered if world.leads}


def restore(found: Checkpoint, trainee: Trainee, world: World) -> Cursor:
    """Put a checkpoint's state into a trainee; where its feed stood."""
    set_weights(trainee.model, found.weights())
    tensors, state = found.tensors(), found.state()
    memory = tensors.pop("memory", None)
    if memory is not None:
        rows = memory.shape[1] // world.size
        mine = memory[:, world.rank * rows : (world.rank + 1) * rows]
        trainee.memory = mine.to(world.device)
    checkpoint.restore(trainee.optimisers, names(trainee.model), tensors)
    if trainee.scaler is not None and state["scaler"]:
        trainee.scaler.load_state_dict(state["scaler"])
    return Cursor(state["phase"], tuple((epoch, index) for epoch, index in state["places"]))


@torch.no_grad()
def set_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give every parameter its value; a name too many or too few is refused."""
    parameters = dict(bare(model).named_parameters())
    strange = sorted(parameters.keys() ^ weights.keys())
    if strange:
        raise UserError(f"the checkpoint does not fit the recipe: {', '.join(strange[:5])}")
    for name, parameter in parameters.items():
        parameter.copy_(like(weights[name].to(parameter.dtype), parameter))


def begin_with(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give the parameters that are named their values; the others stay fresh."""
    fresh = {name: value.detach().clone() for name, value in bare(model).named_parameters()}
    set_weights(model, fresh | {name: w for name, w in weights.items() if name in fresh})

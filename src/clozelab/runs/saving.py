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
from clozelab.training.loop import Step, TrainState
from clozelab.training.world import World, full_tensor, shard_like


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
    train_state: TrainState,
    world: World,
    *,
    state: Mapping[str, Any],
    texts: Mapping[str, str],
    keep: int,
    more: Mapping[str, Tensor] | None = None,
) -> Path | None:
    """Write a checkpoint; every process takes part, the first one writes."""
    parameters = bare(train_state.model).named_parameters()
    moments = checkpoint.moments(train_state.optimisers, names(train_state.model))
    weights = _gathered(((name, full_tensor(value.detach())) for name, value in parameters), world)
    tensors = _gathered(moments, world)
    if train_state.memory is not None:
        layers = map(world.all_gather, torch.split(train_state.memory, 1))
        memory = _gathered(((str(number), layer) for number, layer in enumerate(layers)), world)
        if memory:
            tensors["memory"] = torch.cat([*memory.values()])
    assert isinstance(step.after, Cursor)
    place = None
    if world.is_main:
        whole = {
            **state,
            "step": step.number,
            "phase": step.after.phase,
            "places": [list(place) for place in step.after.places],
            "scaler": train_state.scaler.state_dict() if train_state.scaler else None,
        }
        place = checkpoint.save(
            folder,
            step.number,
            weights=weights,
            tensors={**tensors, **(more or {})},
            state=whole,
            texts=texts,
            keep=keep,
        )
    world.barrier()
    return place


def _gathered(tensors: Iterable[tuple[str, Tensor]], world: World) -> dict[str, Tensor]:
    """What all processes gather, one tensor after another, in the memory of the one that writes."""
    return {name: value.cpu() for name, value in tensors if world.is_main}


def restore(saved: Checkpoint, train_state: TrainState, world: World) -> Cursor:
    """Put a checkpoint into a train state; returns where its feed stood."""
    set_weights(train_state.model, saved.weights())
    tensors, state = saved.tensors(), saved.state()
    memory = tensors.pop("memory", None)
    if memory is not None:
        rows = memory.shape[1] // world.size
        mine = memory[:, world.rank * rows : (world.rank + 1) * rows]
        train_state.memory = mine.to(world.device)
    checkpoint.restore(train_state.optimisers, names(train_state.model), tensors)
    if train_state.scaler is not None and state["scaler"]:
        train_state.scaler.load_state_dict(state["scaler"])
    return Cursor(state["phase"], tuple((epoch, index) for epoch, index in state["places"]))


@torch.no_grad()
def set_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give every parameter its value; a name too many or too few is refused."""
    parameters = dict(bare(model).named_parameters())
    strange = sorted(parameters.keys() ^ weights.keys())
    if strange:
        raise UserError(f"the checkpoint does not fit the recipe: {', '.join(strange[:5])}")
    for name, parameter in parameters.items():
        parameter.copy_(shard_like(weights[name].to(parameter.dtype), parameter))


def begin_with(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give the parameters that are named their values; the others stay fresh."""
    fresh = {name: value.detach().clone() for name, value in bare(model).named_parameters()}
    set_weights(model, fresh | {name: w for name, w in weights.items() if name in fresh})

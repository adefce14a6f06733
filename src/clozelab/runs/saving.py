"""Save and restore the state of a run: weights, moments, memory and position of the feed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clozelab.errors import UserError
from clozelab.files import write_tensors
from clozelab.training import checkpoint
from clozelab.training.checkpoint import Checkpoint
from clozelab.training.feed import Cursor
from clozelab.training.loop import Step, TrainState
from clozelab.training.world import World, is_sharded, shard_like


def bare(model: nn.Module) -> nn.Module:
    """The model without its DDP wrapper."""
    inner = getattr(model, "module", model)
    assert isinstance(inner, nn.Module)
    return inner


@contextmanager
def plainly(model: nn.Module, *, wrapped: bool = False) -> Iterator[nn.Module]:
    """The model without its compiled graph, which is for training; if `wrapped`, as it is."""
    plain = model if wrapped else bare(model)
    compiled, plain._compiled_call_impl = plain._compiled_call_impl, None
    try:
        yield plain
    finally:
        plain._compiled_call_impl = compiled


def names(model: nn.Module) -> dict[nn.Parameter, str]:
    """The name of every parameter in a checkpoint."""
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
    """Write a checkpoint; every process takes part.

    The main process writes it; of a sharded model each process writes its own shards.
    """
    assert isinstance(step.after, Cursor)
    number, path = step.number, None
    full_state = {
        **state,
        "step": number,
        "phase": step.after.phase,
        "places": [list(at) for at in step.after.places],
        "scaler": train_state.scaler.state_dict() if train_state.scaler else None,
    }
    weights = {name: value.detach() for name, value in bare(train_state.model).named_parameters()}
    moments = dict(checkpoint.moments(train_state.stateful(), names(train_state.model)))
    tensors = {**_gather_memory(train_state, world), **(more or {})}
    if not is_sharded(train_state.model):
        if world.is_main:
            path = checkpoint.save(
                folder,
                number,
                weights=weights,
                tensors={**moments, **tensors},
                state=full_state,
                texts=texts,
                keep=keep,
            )
        world.barrier()
        return path
    from clozelab.training import shards  # imported here since it takes a second

    part = checkpoint.part_of(folder, number)
    if world.is_main:
        checkpoint.begin(folder, number)
    world.barrier()
    try:
        shards.write_joined(part / checkpoint.WEIGHTS, weights)
        shards.write((part / checkpoint.TENSORS).parent, moments)
        if world.is_main:
            write_tensors(part / checkpoint.TENSORS, tensors)
            path = checkpoint.finish(part, number, state=full_state, texts=texts, keep=keep)
    finally:
        if world.is_main:
            checkpoint.discard(part)
    world.barrier()
    return path


def _gather_memory(train_state: TrainState, world: World) -> dict[str, Tensor]:
    """The memory of all processes, gathered layer by layer in the main process; else empty."""
    if train_state.memory is None:
        return {}
    layers = map(world.all_gather, torch.split(train_state.memory, 1))
    gathered = [layer.cpu() for layer in layers if world.is_main]
    return {"memory": torch.cat(gathered)} if gathered else {}


def restore(saved: Checkpoint, train_state: TrainState, world: World) -> Cursor:
    """Load a checkpoint into a train state; returns the position of its feed."""
    if is_sharded(train_state.model):  # each process reads its own shards
        parameters = dict(bare(train_state.model).named_parameters())
        weights = saved.weights(parameters.get)
        tensors = saved.tensors(lambda name: parameters.get(checkpoint.owner_of(name)))
    else:
        weights, tensors = saved.weights(), saved.tensors()
    set_weights(train_state.model, weights)
    state = saved.state()
    memory = tensors.pop("memory", None)
    if memory is not None:
        rows = memory.shape[1] // world.size
        mine = memory[:, world.rank * rows : (world.rank + 1) * rows]
        train_state.memory = mine.to(world.device)
    checkpoint.restore(train_state.stateful(), names(train_state.model), tensors)
    if train_state.scaler is not None and state["scaler"]:
        train_state.scaler.load_state_dict(state["scaler"])
    return Cursor(state["phase"], tuple((epoch, index) for epoch, index in state["places"]))


@torch.no_grad()
def set_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Set every parameter; raises `UserError` if the names are not the same."""
    parameters = dict(bare(model).named_parameters())
    strange = sorted(parameters.keys() ^ weights.keys())
    if strange:
        raise UserError(f"the checkpoint does not fit the recipe: {', '.join(strange[:5])}")
    for name, parameter in parameters.items():
        parameter.copy_(shard_like(weights[name].to(parameter.dtype), parameter))


def begin_with(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Set the parameters that are named in `weights`; the others keep their initial values."""
    fresh = {name: value.detach().clone() for name, value in bare(model).named_parameters()}
    set_weights(model, fresh | {name: w for name, w in weights.items() if name in fresh})

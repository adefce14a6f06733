"""The one loop: a generator that yields after every step; the caller records, saves and stops.

Sums are divided by the targets of the whole step, over all micro-batches and processes, before
the backward pass, so that no split of a step changes its loss or its gradients.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from clozelab.contracts import Batch, UserError
from clozelab.keys import key, mix
from clozelab.training.updates import clip
from clozelab.training.world import World

Measured = dict[str, dict[str, float]]  # by objective: its sums


class DivergedError(UserError):
    """A loss that is no number; it was seen before anything was updated."""


@dataclass(frozen=True)
class Prepared:
    """What this process does in one step."""

    number: int  # steps done before this one
    batches: Sequence[Batch]
    blank: Batch  # without a target, for a process that has fewer batches than another
    counts: Mapping[str, int]  # labels of each objective in these batches
    tokens: int
    factor: float = 0.0  # of the peak rates
    weights: Mapping[str, float] = field(default_factory=dict)  # of the objectives
    fresh: bool = False  # the text does not go on from the step before
    after: object = None  # where the feed stands afterwards, for a checkpoint


@dataclass(frozen=True)
class Step:
    """One finished step."""

    number: int  # steps done, this one included
    sums: Measured  # over all processes
    norm: float  # of the gradient, before clipping
    rate: float
    tokens: int
    seconds: float
    after: object = None


@dataclass
class Trainee:
    """What training changes: the weights, the optimisers' state, the memory of a stream."""

    model: nn.Module  # as `World.wrap` gave it
    optimisers: list[torch.optim.Optimizer]
    clip: float
    seed: int
    scaler: torch.amp.GradScaler | None = None
    memory: Tensor | None = None  # [layers, rows of this process, M, W]


def train(trainee: Trainee, feed: Iterable[Prepared], world: World) -> Iterator[Step]:
    """Take a step for each prepared one; a loss that is no number raises `DivergedError`."""
    began = time.perf_counter()
    for prepared in feed:
        trainee.model.train()
        if prepared.fresh:
            trainee.memory = None
        found, tokens = _gradients(trainee, prepared, world)
        for optimiser in trainee.optimisers if trainee.scaler else ():
            trainee.scaler.unscale_(optimiser)  # type: ignore[union-attr]
        norm = clip(trainee.model.parameters(), trainee.clip)
        sums = _read(found)
        _check(sums, prepared.number + 1)
        _update(trainee, prepared.factor)
        rate = trainee.optimisers[0].param_groups[0]["lr"]
        seconds = time.perf_counter() - began
        number = prepared.number + 1
        yield Step(number, sums, float(norm), rate, tokens, seconds, prepared.after)
        began = time.perf_counter()


@torch.no_grad()
def measure(model: nn.Module, feed: Iterable[Prepared], world: World) -> Measured:
    """Every objective's sums over some batches, nothing dropped out and nothing learned."""
    model.eval()
    found: dict[str, dict[str, Tensor]] = {}
    memory: Tensor | None = None
    for prepared in feed:
        memory = None if prepared.fresh else memory
        parts: list[Tensor] = []
        for batch in _batches(prepared, world):
            sums, after = model(_on(batch, world.device, memory, parts))
            parts += [] if after is None else [after]
            _add(found, sums)
        memory = torch.cat(parts, 1) if parts else None
    return _read(_reduced(found, world))


def _gradients(
    trainee: Trainee, prepared: Prepared, world: World
) -> tuple[dict[str, dict[str, Tensor]], int]:
    """The gradients of a step, left in the parameters; its sums and tokens over all processes."""
    names = sorted(prepared.counts)
    told = [prepared.tokens, *(prepared.counts[name] for name in names)]
    totals = world.total(torch.tensor(told, dtype=torch.float64, device=world.device)).tolist()
    counts = dict(zip(names, totals[1:], strict=True))
    # Wrappers average gradients over the processes: the factor makes a sum of it.
    scale = {n: prepared.weights[n] * world.size / max(counts[n], 1) for n in names}
    found: dict[str, dict[str, Tensor]] = {}
    parts: list[Tensor] = []
    batches = _batches(prepared, world)
    draws = mix(key(trainee.seed, "dropout", prepared.number), world.rank)
    for number, batch in enumerate(batches):
        torch.manual_seed(int(mix(draws, number)) >> 1)
        with world.accumulate(trainee.model, number == len(batches) - 1):
            sums, after = trainee.model(_on(batch, world.device, trainee.memory, parts))
            loss = torch.stack([sums[name]["loss"] * scale[name] for name in names]).sum()
            (trainee.scaler.scale(loss) if trainee.scaler else loss).backward()  # type: ignore[no-untyped-call]
        parts += [] if after is None else [after]
        _add(found, sums)
    trainee.memory = torch.cat(parts, 1) if parts else None
    return _reduced(found, world), int(totals[0])


def _update(trainee: Trainee, factor: float) -> None:
    for optimiser in trainee.optimisers:
        for group in optimiser.param_groups:
            group["lr"] = group["peak"] * factor
        if trainee.scaler is None:
            optimiser.step()
        else:
            trainee.scaler.step(optimiser)
        optimiser.zero_grad(set_to_none=True)
    if trainee.scaler is not None:
        trainee.scaler.update()


def _batches(prepared: Prepared, world: World) -> list[Batch]:
    """As many batches as the process with the most has."""
    missing = world.most(len(prepared.batches)) - len(prepared.batches)
    return [*prepared.batches, *[prepared.blank] * missing]


def _on(
    batch: Batch, device: torch.device, memory: Tensor | None, before: Sequence[Tensor]
) -> Batch:
    """The batch on a device, with the memory of its rows: those after the batches before."""
    given = batch.input
    values: dict[str, Any] = {
        name: value.to(device, non_blocking=True)
        for name, value in given._asdict().items()
        if isinstance(value, Tensor)
    }
    if memory is not None:
        first = sum(part.shape[1] for part in before)
        values["memory"] = memory[:, first : first + len(given.starts) - 1]
    targets = {
        name: {key: value.to(device, non_blocking=True) for key, value in columns.items()}
        for name, columns in batch.targets.items()
    }
    return Batch(given._replace(**values), targets)


def _add(found: dict[str, dict[str, Tensor]], sums: Mapping[str, Mapping[str, Tensor]]) -> None:
    for name, one in sums.items():
        mine = found.setdefault(name, {})
        for what, value in one.items():
            value = value.detach().double()
            mine[what] = mine[what] + value if what in mine else value


def _reduced(found: dict[str, dict[str, Tensor]], world: World) -> dict[str, dict[str, Tensor]]:
    """The sums over all processes, in one exchange."""
    places = [(name, what) for name in sorted(found) for what in sorted(found[name])]
    if not places:
        return found
    values = world.total(torch.stack([found[name][what] for name, what in places]))
    out: dict[str, dict[str, Tensor]] = {}
    for (name, what), value in zip(places, values, strict=True):
        out.setdefault(name, {})[what] = value
    return out


def _read(found: dict[str, dict[str, Tensor]]) -> Measured:
    """The sums as numbers, in one transfer."""
    places = [(name, what) for name, sums in found.items() for what in sums]
    if not places:
        return {}
    values = torch.stack([found[name][what] for name, what in places]).tolist()
    out: Measured = {}
    for (name, what), value in zip(places, values, strict=True):
        out.setdefault(name, {})[what] = value
    return out


def _check(sums: Measured, number: int) -> None:
    for name, one in sums.items():
        if not math.isfinite(one["loss"]):
            raise DivergedError(
                f"step {number}: the loss of {name} is {one['loss']}; nothing was updated."
                " Lower optimiser.rate, lengthen schedule.warmup or set optimiser.clip=1"
            )

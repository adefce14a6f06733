"""The one loop: a generator that yields after every step; the caller records, saves and stops.

Sums are divided by the targets of the whole step, over all micro-batches and processes, before
the backward pass, so that without dropout no split of a step changes its loss or its gradients.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clozelab.contracts import Batch
from clozelab.errors import UserError
from clozelab.keys import key, mix
from clozelab.training.memory import raising_one, room_for
from clozelab.training.timing import Coming, Work
from clozelab.training.updates import clip
from clozelab.training.world import World

Measured = dict[str, dict[str, float]]  # by objective: its sums


class DivergedError(UserError):
    """A loss that is no number; what was learned last is worth nothing."""


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
    waited: float = 0.0  # seconds, for the feed, while the step before was under way
    slack: float = 0.0  # seconds, for the device when the step was read
    busy: float | None = None  # seconds that the device worked on it; None on a CPU
    starved: float = 0.0  # seconds in which other processes had the cores of a CPU
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
    replays: bool = False  # the model is replayed from CUDA graphs


class _Sums(NamedTuple):
    """Every objective's sums over all processes, in one tensor."""

    places: list[tuple[str, str]]  # objective and sum
    values: Tensor

    def named(self, values: Sequence[float]) -> Measured:
        """The values, read, in their places."""
        out: Measured = {}
        for (name, what), value in zip(self.places, values, strict=True):
            out.setdefault(name, {})[what] = value
        return out


class _Made(NamedTuple):
    """What the gradients of a step came with."""

    sums: _Sums
    tokens: int
    memory: Tensor | None


@dataclass(frozen=True)
class _Taken:
    """A step that the device may still be at."""

    number: int
    made: _Made
    coming: Coming  # its sums, then the gradient's norm
    rate: float
    scaled: bool  # a scaler has skipped the update if the norm is no number
    work: Work
    after: object

    def read(self, since: float) -> Step:
        """Wait for it and look at what came out."""
        asked = time.perf_counter()
        *values, norm = self.coming.read()
        sums, tokens = self.made.sums.named(values), self.made.tokens
        now = time.perf_counter()
        _check(sums, self.number, norm=0.0 if self.scaled else norm)
        return Step(
            self.number,
            sums,
            norm,
            self.rate,
            tokens,
            seconds=now - since,
            waited=self.work.waited,
            slack=now - asked,
            busy=self.work.busy(),
            starved=min(self.work.starved(), now - since),
            after=self.after,
        )


def train(trainee: Trainee, feed: Iterable[Prepared], world: World) -> Iterator[Step]:
    """Take a step for each prepared one; a loss that is no number raises `DivergedError`.

    At every yield the weights are those after the step. So that a GPU never waits, a step is read
    only when the gradients of the next are under way, where `_overlaps` allows it.
    """
    trainee.model.zero_grad(set_to_none=True)
    taken: _Taken | None = None
    last = time.perf_counter()
    for prepared, waited in _sent_ahead(iter(feed), world.device):
        if taken and not _overlaps(prepared, world):
            yield taken.read(last)
            taken, last = None, time.perf_counter()
        work = Work(world.device, waited)
        made, full = None, ""
        try:
            with work, raising_one():
                made = _gradients(trainee, prepared, world)
        except torch.OutOfMemoryError as error:
            full = str(error) or "out of memory"  # its traceback would hold what filled the memory
        if taken:
            yield taken.read(last)
            last = time.perf_counter()
        if full:
            raise torch.OutOfMemoryError(full)
        assert made is not None
        with work, room_for("the moments of the optimiser", world.device):
            taken = _update(trainee, prepared, made, work)
    if taken:
        yield taken.read(last)


@torch.no_grad()
def measure(model: nn.Module, feed: Iterable[Prepared], world: World) -> Measured:
    """Every objective's sums over some batches, nothing dropped out and nothing learned."""
    model.eval()
    found: dict[str, dict[str, Tensor]] = {}
    memory: Tensor | None = None
    for prepared in feed:
        memory = None if prepared.fresh else memory
        parts: list[Tensor] = []
        for batch in _batches(_sent(prepared, world.device), world):
            sums, after = model(_remembering(batch, memory, parts))
            parts += [] if after is None else [after]
            _add(found, sums)
        memory = _kept(parts, prepared)
    world.rest(model)
    sums = _reduced(found, world)
    return sums.named(sums.values.tolist())


def _gradients(trainee: Trainee, prepared: Prepared, world: World) -> _Made:
    """The gradients of a step, left in the parameters, and its sums over all processes."""
    trainee.model.train()
    memory = None if prepared.fresh else trainee.memory
    names = sorted(prepared.counts)
    tokens, *labels = world.totals([prepared.tokens, *(prepared.counts[name] for name in names)])
    counts = dict(zip(names, labels, strict=True))
    # Wrappers average gradients over the processes: the factor makes a sum of it.
    scale = {n: prepared.weights[n] * world.size / max(counts[n], 1) for n in names}
    found: dict[str, dict[str, Tensor]] = {}
    parts: list[Tensor] = []
    batches = _batches(prepared, world)
    draws = mix(key(trainee.seed, "dropout", prepared.number), world.rank)
    if trainee.replays and len(batches) > 1:
        # A graph writes every batch's gradients to one place: they add up in another.
        for parameter in trainee.model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    for number, batch in enumerate(batches):
        torch.manual_seed(int(mix(draws, number)) >> 1)
        with world.accumulate(trainee.model, number == len(batches) - 1):
            sums, after = trainee.model(_remembering(batch, memory, parts))
            loss = torch.stack([sums[name]["loss"] * scale[name] for name in names]).sum()
            (trainee.scaler.scale(loss) if trainee.scaler else loss).backward()  # type: ignore[no-untyped-call]
        parts += [] if after is None else [after]
        _add(found, sums)
    return _Made(_reduced(found, world), tokens, _kept(parts, prepared))


def _overlaps(prepared: Prepared, world: World) -> bool:
    """Whether a step's gradients may be begun before the step before is read.

    Several processes wait for one another's counts anyhow; and they differ in their batches, while
    what the caller does at a yield has to come at the same place in all of them.
    """
    return world.device.type == "cuda" and world.size == 1 and len(prepared.batches) == 1


def _update(trainee: Trainee, prepared: Prepared, made: _Made, work: Work) -> _Taken:
    """Clip and learn; nothing is waited for."""
    for optimiser in trainee.optimisers if trainee.scaler else ():
        trainee.scaler.unscale_(optimiser)  # type: ignore[union-attr]
    norm = clip(trainee.model.parameters(), trainee.clip)
    coming = Coming(torch.cat([made.sums.values, norm.detach().double().reshape(1)]))
    for optimiser in trainee.optimisers:
        for group in optimiser.param_groups:
            group["lr"] = group["peak"] * prepared.factor
        if trainee.scaler is None:
            optimiser.step()
        else:
            trainee.scaler.step(optimiser)
        optimiser.zero_grad(set_to_none=True)
    if trainee.scaler is not None:
        trainee.scaler.update()
    trainee.memory = made.memory
    rate = trainee.optimisers[0].param_groups[0]["lr"]
    scaled = trainee.scaler is not None
    return _Taken(prepared.number + 1, made, coming, rate, scaled, work, prepared.after)


def _batches(prepared: Prepared, world: World) -> list[Batch]:
    """As many batches as the process with the most has."""
    missing = world.most(len(prepared.batches)) - len(prepared.batches)
    if not missing:
        return list(prepared.batches)
    return [*prepared.batches, *[moved(prepared.blank, world.device)] * missing]


def _sent_ahead(feed: Iterator[Prepared], device: torch.device) -> Iterator[tuple[Prepared, float]]:
    """The feed's steps, each sent to the device while the one before is under way.

    With each, the seconds that it was waited for.
    """
    asked = time.perf_counter()
    while True:
        with raising_one():
            coming = next(feed, None)
        if coming is None:
            return
        waited = time.perf_counter() - asked
        yield _sent(coming, device), waited
        asked = time.perf_counter()


def _sent(prepared: Prepared, device: torch.device) -> Prepared:
    """The batches of a step on their way to the device; it does not wait for them."""
    if device.type == "cpu":
        return prepared
    return replace(prepared, batches=[moved(batch, device) for batch in prepared.batches])


def moved(batch: Batch, device: torch.device) -> Batch:
    """The batch on its way to a device."""
    given = batch.input
    values: dict[str, Any] = {
        name: value.to(device, non_blocking=True)
        for name, value in given._asdict().items()
        if isinstance(value, Tensor)
    }
    targets = {
        name: {key: value.to(device, non_blocking=True) for key, value in columns.items()}
        for name, columns in batch.targets.items()
    }
    return Batch(given._replace(**values), targets)


def _remembering(batch: Batch, memory: Tensor | None, before: Sequence[Tensor]) -> Batch:
    """The batch with the memory of its rows: those after the rows of the batches before."""
    if memory is None:
        return batch
    first = sum(part.shape[1] for part in before)
    mine = memory[:, first : first + len(batch.input.starts) - 1]
    if not mine.shape[1]:  # a blank batch comes after all rows
        return batch
    return batch._replace(input=batch.input._replace(memory=mine))


def _kept(parts: list[Tensor], prepared: Prepared) -> Tensor | None:
    """The memory of this process's rows; what blank batches left behind is none."""
    mine = parts[: len(prepared.batches)]
    return torch.cat(mine, 1) if mine else None


def _add(found: dict[str, dict[str, Tensor]], sums: Mapping[str, Mapping[str, Tensor]]) -> None:
    for name, one in sums.items():
        mine = found.setdefault(name, {})
        for what, value in one.items():
            value = value.detach().double()
            mine[what] = mine[what] + value if what in mine else value


def _reduced(found: dict[str, dict[str, Tensor]], world: World) -> _Sums:
    """The sums over all processes, in one exchange."""
    places = [(name, what) for name in sorted(found) for what in sorted(found[name])]
    if not places:
        return _Sums([], torch.zeros(0, dtype=torch.float64, device=world.device))
    values = torch.stack([found[name][what] for name, what in places])
    return _Sums(places, world.total(values))


def _check(sums: Measured, number: int, *, norm: float) -> None:
    """Refuse what is no number, gradients too: a checkpoint of that step would be worth nothing."""
    found = {f"the loss of {name}": one["loss"] for name, one in sums.items()}
    for what, value in {**found, "the gradient's norm": norm}.items():
        if not math.isfinite(value):
            raise DivergedError(
                f"step {number}: {what} is {value}; lower optimiser.rate, lengthen"
                " schedule.warmup or set optimiser.clip=1"
            )

"""The training loop: a generator that yields after every step; the caller logs, saves and stops.

Sums are divided by the targets of the whole step, over all micro-batches and processes, before
the backward pass, so that without dropout no split of a step changes its loss or its gradients.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clozelab.contracts import Batch
from clozelab.errors import UserError
from clozelab.keys import key, mix
from clozelab.training.memory import raising_one, room_for
from clozelab.training.packing import moved
from clozelab.training.timing import AsyncScalars, StepTimer
from clozelab.training.updates import WeightMean, clip
from clozelab.training.world import World

Measured = dict[str, dict[str, float]]  # by objective: its sums


class DivergedError(UserError):
    """A loss, a gradient or what a model gives is not finite: its last weights are useless."""


@dataclass(frozen=True)
class Prepared:
    """The micro-batches of this process in one step, and the settings of that step."""

    number: int  # steps done before this one
    batches: Sequence[Batch]
    # Without a target, for a process that has fewer batches than another; None if it is alone.
    blank: Batch | None
    counts: Mapping[str, int]  # labels of each objective in these batches
    tokens: int
    factor: float = 0.0  # of the peak rates
    weights: Mapping[str, float] = field(default_factory=dict)  # of the objectives
    share_of_mean: float = 0.0  # of the weights after this step, among those averaged so far
    last: bool = False  # the run ends with this step
    fresh: bool = False  # the text does not go on from the step before
    after: object = None  # where the feed stands afterwards, for a checkpoint


@dataclass(frozen=True)
class Step:
    """One finished step."""

    number: int  # steps done, this one included
    sums: Measured  # over all processes
    norm: float  # of the gradient, before clipping
    learning_rate: float
    tokens: int
    seconds: float
    waited: float = 0.0  # seconds, for the feed, while the step before was under way
    slack: float = 0.0  # seconds, for the device when the step was read
    busy: float | None = None  # seconds that the device worked on it; None on a CPU
    starved: float = 0.0  # seconds in which other processes had the cores of a CPU
    after: object = None


@dataclass
class TrainState:
    """What training changes: the weights, the optimisers' state, the memory of a stream."""

    model: nn.Module  # as `World.wrap` gave it
    optimisers: list[torch.optim.Optimizer]
    clip: float
    seed: int
    scaler: torch.amp.GradScaler | None = None
    memory: Tensor | None = None  # [layers, rows of this process, M, W]
    replays: bool = False  # the model is replayed from CUDA graphs
    mean: WeightMean | None = None  # of the weights after the last steps

    def stateful(self) -> list[torch.optim.Optimizer]:
        """What has a state for each parameter."""
        return [*self.optimisers, *([] if self.mean is None else [self.mean])]


class _Sums(NamedTuple):
    """Every objective's sums over all processes, in one tensor."""

    names: list[tuple[str, str]]  # objective and sum
    values: Tensor

    def named(self, values: Sequence[float]) -> Measured:
        """The values of these sums, by objective and sum."""
        out: Measured = {}
        for (name, what), value in zip(self.names, values, strict=True):
            out.setdefault(name, {})[what] = value
        return out


class _Gradients(NamedTuple):
    """The results of a step's backward passes; the gradients themselves are in the parameters."""

    sums: _Sums
    tokens: int
    memory: Tensor | None


@dataclass(frozen=True)
class _PendingStep:
    """A step that the device may still be computing."""

    number: int
    gradients: _Gradients
    scalars: AsyncScalars  # its sums, then the gradient's norm
    learning_rate: float
    scaled: bool  # a scaler has skipped the update if the norm is not finite
    timer: StepTimer
    after: object

    def read(self, since: float) -> Step:
        """Wait for the device, check the results and return the finished step."""
        began = time.perf_counter()
        *values, norm = self.scalars.read()
        sums, tokens = self.gradients.sums.named(values), self.gradients.tokens
        now = time.perf_counter()
        check_finite(sums, self.number, norm=0.0 if self.scaled else norm)
        return Step(
            self.number,
            sums,
            norm,
            self.learning_rate,
            tokens,
            seconds=now - since,
            waited=self.timer.waited,
            slack=now - began,
            busy=self.timer.busy(),
            starved=min(self.timer.starved(), now - since),
            after=self.after,
        )


def train(state: TrainState, feed: Iterable[Prepared], world: World) -> Iterator[Step]:
    """Train on each prepared step; a loss that is not finite raises `DivergedError`.

    At every yield the weights are those after the step. So that a GPU never waits, a step is read
    only when the gradients of the next are under way, where `_overlaps` allows it.
    """
    state.model.zero_grad(set_to_none=True)
    pending: _PendingStep | None = None
    last = time.perf_counter()
    for prepared, waited in _prefetch(iter(feed), world.device):
        if pending and not _overlaps(prepared, world):
            yield pending.read(last)
            pending, last = None, time.perf_counter()
        timer = StepTimer(world.device, waited)
        gradients, out_of_memory = None, ""
        try:
            with timer, raising_one():
                gradients = _compute_gradients(state, prepared, world)
        except torch.OutOfMemoryError as error:
            out_of_memory = str(error)  # the traceback keeps tensors alive
        if pending:
            yield pending.read(last)
            last = time.perf_counter()
        if out_of_memory:
            raise torch.OutOfMemoryError(out_of_memory)
        assert gradients is not None
        with timer, room_for("the moments of the optimiser", world.device):
            pending = _update(state, prepared, gradients, timer)
    if pending:
        yield pending.read(last)


@torch.no_grad()
def follow_measure(
    model: nn.Module, feed: Iterable[Prepared], world: World
) -> Generator[float, None, Measured]:
    """Every objective's sums over the feed's batches, without dropout and without training.

    Yields how many of the feed's steps are done.
    """
    model.eval()
    totals: dict[str, dict[str, Tensor]] = {}
    memory: Tensor | None = None
    for prepared in feed:
        memory = None if prepared.fresh else memory
        memories: list[Tensor] = []
        batches = _with_blanks(_to_device(prepared, world.device), world)
        for done, batch in enumerate(batches, 1):
            sums, next_memory = model(_with_memory(batch, memory, memories))
            memories += [] if next_memory is None else [next_memory]
            _add(totals, sums)
            yield prepared.number + done / len(batches)
        memory = _join_memories(memories, prepared)
    world.reshard(model)
    sums = _reduce_sums(totals, world)
    return sums.named(sums.values.tolist())


def _compute_gradients(state: TrainState, prepared: Prepared, world: World) -> _Gradients:
    """Add the gradients of a step to the parameters; returns its sums over all processes."""
    state.model.train()
    memory = None if prepared.fresh else state.memory
    names = sorted(prepared.counts)
    tokens, *labels = world.sum_counts(
        [prepared.tokens, *(prepared.counts[name] for name in names)]
    )
    counts = dict(zip(names, labels, strict=True))
    # DDP and FSDP average gradients over the processes: times `world.size` that is their sum.
    scale = {n: prepared.weights[n] * world.size / max(counts[n], 1) for n in names}
    totals: dict[str, dict[str, Tensor]] = {}
    memories: list[Tensor] = []
    batches = _with_blanks(prepared, world)
    draws = mix(key(state.seed, "dropout", prepared.number), world.rank)
    if state.replays and len(batches) > 1:
        # A replayed graph writes the gradients of every batch to the same memory: add them up here.
        for parameter in state.model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    for number, batch in enumerate(batches):
        _seed(int(mix(draws, number)) >> 1, world.device)
        with world.accumulate(state.model, number == len(batches) - 1):
            sums, next_memory = state.model(_with_memory(batch, memory, memories))
            loss = torch.stack([sums[name]["loss"] * scale[name] for name in names]).sum()
            (state.scaler.scale(loss) if state.scaler else loss).backward()  # type: ignore[no-untyped-call]
        memories += [] if next_memory is None else [next_memory]
        _add(totals, sums)
    return _Gradients(_reduce_sums(totals, world), tokens, _join_memories(memories, prepared))


def _seed(number: int, device: torch.device) -> None:
    """Seed dropout; on a CPU without the lazy calls that torch queues for absent GPUs."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(number)
    else:
        torch.manual_seed(number)


def _overlaps(prepared: Prepared, world: World) -> bool:
    """Whether a step's gradients may be started before the results of the last step are read.

    Several processes wait for each other's counts anyway, and have different numbers of batches,
    while the caller must do what it does at a yield at the same point in all of them.
    """
    return world.device.type == "cuda" and world.size == 1 and len(prepared.batches) == 1


def _update(
    state: TrainState, prepared: Prepared, gradients: _Gradients, timer: StepTimer
) -> _PendingStep:
    """Clip the gradients and update the weights, without waiting for the device."""
    for optimiser in state.optimisers if state.scaler else ():
        state.scaler.unscale_(optimiser)  # type: ignore[union-attr]
    norm = clip(state.model.parameters(), state.clip)
    # A scaler checks the gradients of one optimiser at a time: here all of them step, or none.
    steps = state.scaler is None or bool(torch.isfinite(norm))
    scalars = AsyncScalars(torch.cat([gradients.sums.values, norm.detach().double().reshape(1)]))
    for optimiser in state.optimisers:
        for group in optimiser.param_groups:
            group["lr"] = group["peak"] * prepared.factor
        if steps:
            optimiser.step() if state.scaler is None else state.scaler.step(optimiser)
        optimiser.zero_grad(set_to_none=True)
    if state.mean is not None and prepared.share_of_mean:
        state.mean.add(prepared.share_of_mean, last=prepared.last)
    if state.scaler is not None:
        state.scaler.update()
    state.memory = gradients.memory
    # The recipe's learning rate: Adam's, which comes after Muon, without the decay of lower layers.
    rate = max(group["lr"] for group in state.optimisers[-1].param_groups)
    scaled = state.scaler is not None
    return _PendingStep(
        prepared.number + 1, gradients, scalars, rate, scaled, timer, prepared.after
    )


def _with_blanks(prepared: Prepared, world: World) -> list[Batch]:
    """This process's batches, and blank ones up to the largest number of any process."""
    missing = world.all_reduce_max(len(prepared.batches)) - len(prepared.batches)
    if not missing:
        return list(prepared.batches)
    assert prepared.blank is not None, "a process among several has a blank batch"
    return [*prepared.batches, *[moved(prepared.blank, world.device)] * missing]


def _prefetch(feed: Iterator[Prepared], device: torch.device) -> Iterator[tuple[Prepared, float]]:
    """Yield the feed's steps, each copied to the device while the last one is being computed.

    Each comes with the seconds that the loop waited for it.
    """
    began = time.perf_counter()
    while True:
        with raising_one():
            prepared = next(feed, None)
        if prepared is None:
            return
        waited = time.perf_counter() - began
        yield _to_device(prepared, device), waited
        began = time.perf_counter()


def _to_device(prepared: Prepared, device: torch.device) -> Prepared:
    """The step with its batches copied to the device, asynchronously."""
    if device.type == "cpu":
        return prepared
    return replace(prepared, batches=[moved(batch, device) for batch in prepared.batches])


def _with_memory(batch: Batch, memory: Tensor | None, earlier: Sequence[Tensor]) -> Batch:
    """The batch with the memory of its rows, which come after those of the earlier batches."""
    if memory is None:
        return batch
    first = sum(part.shape[1] for part in earlier)
    rows = memory[:, first : first + len(batch.input.cu_seqlens) - 1]
    if not rows.shape[1]:  # a blank batch comes after all rows
        return batch
    return batch._replace(input=batch.input._replace(memory=rows))


def _join_memories(memories: list[Tensor], prepared: Prepared) -> Tensor | None:
    """The memory of this process's rows; that of blank batches is left out."""
    real = memories[: len(prepared.batches)]
    return torch.cat(real, 1) if real else None


def _add(totals: dict[str, dict[str, Tensor]], sums: Mapping[str, Mapping[str, Tensor]]) -> None:
    for name, values in sums.items():
        total = totals.setdefault(name, {})
        for what, value in values.items():
            # A copy: a replayed graph writes the sums of the next batch to the same memory.
            value = value.detach().to(torch.float64, copy=True)
            total[what] = total[what] + value if what in total else value


def _reduce_sums(totals: dict[str, dict[str, Tensor]], world: World) -> _Sums:
    """The sums over all processes, by one all-reduce."""
    names = [(name, what) for name in sorted(totals) for what in sorted(totals[name])]
    if not names:
        return _Sums([], torch.zeros(0, dtype=torch.float64, device=world.device))
    values = torch.stack([totals[name][what] for name, what in names])
    return _Sums(names, world.all_reduce_sum(values))


def check_finite(sums: Measured, number: int, *, norm: float = 0.0, of: str = "") -> None:
    """Raise `DivergedError` if a loss or the norm is not finite: such weights must not be saved."""
    losses = {f"the {of}loss of {name}": values["loss"] for name, values in sums.items()}
    for what, value in {**losses, "the gradient's norm": norm}.items():
        if not math.isfinite(value):
            raise DivergedError(
                f"step {number}: {what} is {value}; lower learning_rate, lengthen warmup or set"
                " clip=1"
            )

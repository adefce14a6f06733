"""Measure every row: its contenders take turns on one machine, and medians are taken.

A generator of events, as other runs are; the result of a row is a table of plain values for the
record.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from math import ceil
from statistics import median
from typing import Any

import torch

from clozelab.benching.ours import Lap, MemoryShare, Ours
from clozelab.benching.rows import ROUNDS, TURN, BenchRequest, BenchRow, recipe_of, rows, text
from clozelab.benching.theirs import Theirs, Trained, check, exported
from clozelab.config.recipe import to_toml
from clozelab.errors import UserError
from clozelab.pretraining.job import PretrainJob
from clozelab.runs import machine as machines
from clozelab.runs.directory import machine_facts
from clozelab.runs.events import Said
from clozelab.training.world import World, join

Peer = Callable[[], Theirs | Trained]  # builds a contender
_WARM = 3  # steps to estimate the time of one


@dataclass(frozen=True)
class Turn:
    """A turn is done, and how many of the row's turns are."""

    row: int
    rows: int
    what: str
    done: int
    turns: int


@dataclass(frozen=True)
class Finished:
    """The record of all rows."""

    record: dict[str, Any]


def bench(request: BenchRequest) -> Iterator[Turn | Said | Finished]:
    """Measure a request row by row; the last event has the record of all."""
    check(request.against)
    with join(request.machine.device) as world:
        if world.size > 1:
            raise UserError("bench measures a single process; run it without torchrun")
        device = world.device.type
        if not request.data:
            yield Said("building a corpus from the embedded text")
        records: list[dict[str, Any]] = []
        with text(request) as stores:
            table = rows(request, device)
            recipes = [recipe_of(row, request, stores[0][0], device=device) for row in table]
            for number, (row, recipe) in enumerate(zip(table, recipes, strict=True)):
                trial = _Trial(row, PretrainJob(recipe, stores), request=request, world=world)
                try:
                    for done, what in enumerate(trial.turns(), 1):
                        yield Turn(number, len(table), what, done, trial.total)
                except torch.OutOfMemoryError:
                    pass  # leaves the handler, which keeps tensors alive
                else:
                    records.append(trial.record())
                    continue
                sequences = recipe.schedule.batch_size
                sentence = (
                    f"{recipe.name}: out of memory with {sequences} sequences a step; use fewer:"
                    f" --sequences {max(1, sequences // 2)}"
                )
                if number == len(table) - 1 and not records:
                    raise UserError(sentence)
                yield Said(sentence)
            data = [{"fingerprint": corpus.manifest["fingerprint"]} for corpus, _ in stores]
        yield Finished({"machine": _facts(request, world.device), "data": data, "rows": records})


class _Trial:
    """One row: its contenders, their turns and results."""

    def __init__(
        self, row: BenchRow, job: PretrainJob, *, request: BenchRequest, world: World
    ) -> None:
        self.row, self.job, self.recipe, self.world = row, job, job.recipe, world
        self.machine, self.steps = request.machine, request.steps_a_turn
        self.notes: list[str] = []
        self.peers = self._peers() if request.against else {}
        self.total = (ROUNDS + 1) * (1 + len(self.peers)) + ROUNDS
        names = ("clozelab", *self.peers)
        self.memory = {name: MemoryShare(world.device) for name in names}
        self.first: dict[str, tuple[float, float | None]] = {}  # seconds, and the loss
        self.laps: dict[str, list[Lap]] = {name: [] for name in (*names, "again")}

    def turns(self) -> Iterator[str]:
        """Take the turns, and yield the name of each contender."""
        if self.machine.compiles(self.world.device, self.recipe):
            torch._dynamo.reset()
        ours = self._begin("clozelab", lambda: Ours(self.job, self.machine, self.world))
        yield "clozelab"
        self.began, self.graphs = ours.trainer.began(0), ours.trainer.train_state.replays
        peers = {}
        for name, build in self.peers.items():
            peers[name] = self._begin(name, build, ours)
            yield name
        # Without a given number of steps, a short turn tells how many are long enough.
        steps = self.steps or max(1, ceil(TURN / (ours.fed(_WARM).seconds / _WARM)))
        for _ in range(ROUNDS):
            with self.memory["clozelab"]:
                self.laps["clozelab"].append(ours.fed(steps))
            yield "clozelab"
            for name, peer in peers.items():
                with self.memory[name]:
                    self.laps[name].append(peer.lap(ours.prepared))
                yield name
            self.laps["again"].append(ours.again())
            yield "the feed"

    def record(self) -> dict[str, Any]:
        """The row as plain values."""
        recipe, began = self.recipe, self.began
        encoder: Any = recipe.encoder
        peak = began.peak or machines.product(self.world.device, began.precision)
        peers = {name: self._measured(name, peak) for name in self.memory}
        ours = peers.pop("clozelab")
        ours["feed_share"] = _speed_ratio(self.laps["clozelab"], self.laps["again"])
        for name, peer in peers.items():
            peer["ratio"] = {"speed": _speed_ratio(self.laps["clozelab"], self.laps[name])}
            if peer["peak_memory_gib"]:
                peer["ratio"]["memory"] = ours["peak_memory_gib"] / peer["peak_memory_gib"]
        return {
            "what": {
                "recipe": recipe.name,
                "size": self.row.size or f"{encoder.layers}x{encoder.hidden_size}",
                "length": recipe.blocks.length,
                "dropout": encoder.dropout,
                "sequences": recipe.schedule.batch_size,
                "vocabulary": recipe.tokenizer.vocabulary,
                "parameters": began.parameters,
                "precision": began.precision,
                "micro_tokens": began.micro_tokens,
                "flops_a_token": began.flops_a_token,
                "peak_flops": peak,
            },
            "clozelab": ours,
            "peers": peers,
            "notes": self.notes,
            "recipe": to_toml(recipe),
            "kernels": self.machine.kernels is not False,
            "graphs": self.graphs,
        }

    def _begin(self, name: str, build: Callable[[], Any], ours: Ours | None = None) -> Any:
        """A contender after its first step, timed with its construction."""
        gc.collect()
        with self.memory[name]:
            began = time.perf_counter()
            contender = build()
            lap = contender.fed(0) if ours is None else contender.lap(ours.prepared)
            self.first[name] = time.perf_counter() - began, lap.loss
        return contender

    def _measured(self, name: str, peak: float) -> dict[str, Any]:
        """One contender's numbers."""
        laps, (seconds, loss) = self.laps[name], self.first[name]
        speed = median(lap.tokens / lap.seconds for lap in laps)
        return {
            "tokens_a_second": speed,
            "useful_share": speed * self.began.flops_a_token / peak,
            "peak_memory_gib": self.memory[name].gib,
            "first_step_seconds": seconds,
            "first_loss": loss,
            "turns": [{"tokens": lap.tokens, "seconds": lap.seconds} for lap in laps],
        }

    def _peers(self) -> dict[str, Peer]:
        """The functions that build each peer, by name."""
        try:
            model = exported(self.job)
        except UserError as error:
            self.notes.append(f"{self.recipe.name}: transformers has no such model ({error})")
            return {}
        heads = sorted({name.split(".")[1] for name in model.left if name.startswith("heads.")})
        if heads:
            self.notes.append(f"{self.recipe.name}: transformers does without {', '.join(heads)}")
        device = self.world.device
        dtype = machines.PRECISIONS[self.machine.precision_on(device)]
        theirs = partial(Theirs, model, device=device, dtype=dtype)
        peers: dict[str, Peer] = {"transformers": partial(theirs, compiled=False)}
        if device.type == "cuda":
            peers["transformers compiled"] = partial(theirs, compiled=True)
        elif not model.config["architectures"][0].endswith("ForMaskedLM"):
            pass  # the Trainer's collator supports neither pairs nor permutations
        elif find_spec("accelerate") is None:
            self.notes.append("no Trainer: it needs accelerate; pip install 'clozelab[bench]'")
        else:
            peers["Trainer"] = partial(Trained, model, self.job.stores[0][0], device=device)
        return peers


def _speed_ratio(laps: list[Lap], others: list[Lap]) -> float:
    """The ratio of speeds: the median over pairs of successive turns."""
    pairs = zip(laps, others, strict=True)
    return median((a.tokens / a.seconds) / (b.tokens / b.seconds) for a, b in pairs)


def _facts(request: BenchRequest, device: torch.device) -> dict[str, Any]:
    """The machine and versions of the measurement."""
    facts = {**machine_facts(), **machines.facts(device), "workers": request.machine.threads}
    if request.against:
        import transformers

        facts["transformers"] = transformers.__version__
    return facts

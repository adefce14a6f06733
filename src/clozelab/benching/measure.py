"""Measure: every row's contenders take turns on one machine, and medians are kept.

A generator of events, as other runs are; what a row came to is a table of plain values, which a
record is written from.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil
from statistics import median
from typing import Any

import torch

from clozelab.benching.laps import Lap, Share
from clozelab.benching.ours import Ours
from clozelab.benching.rows import ROUNDS, TURN, Order, Row, recipe_of, rows, text
from clozelab.benching.theirs import Theirs, check, exported
from clozelab.benching.trainer import Trained
from clozelab.config import recipe as recipes
from clozelab.config.recipe import Recipe
from clozelab.errors import UserError
from clozelab.models.interop.exporting import Exported
from clozelab.pretraining.job import PretrainJob
from clozelab.runs import machine as machines
from clozelab.runs.directory import machine_facts
from clozelab.runs.events import Said
from clozelab.text.store.corpus import Store
from clozelab.training.world import World, join

Made = Callable[[], Theirs | Trained]
_WARM = 3  # steps that show how long one takes


@dataclass(frozen=True)
class Turn:
    """A turn is done; of a row's turns so many."""

    row: int
    rows: int
    what: str
    done: int
    turns: int


@dataclass(frozen=True)
class Finished:
    """The record of all rows."""

    record: dict[str, Any]


def bench(order: Order) -> Iterator[Turn | Said | Finished]:
    """Measure an order, row by row; the last event has everything."""
    check(order.against)
    with join(order.machine.device) as world:
        if world.size > 1:
            raise UserError("bench measures one process; run it without torchrun")
        device = world.device.type
        if not order.data:
            yield Said("building a corpus of the embedded text")
        with text(order) as stores:
            asked = rows(order, device)
            made = [(row, recipe_of(row, order, stores[0][0], device=device)) for row in asked]
            found = []
            for number, (row, recipe) in enumerate(made):
                trial = _Trial(row, recipe, stores, order=order, world=world)
                full = False
                try:
                    for what, done in trial.turns():
                        yield Turn(number, len(made), what, done, trial.total)
                except torch.OutOfMemoryError:
                    full = True  # what filled the memory is held by the error until it is forgotten
                if not full:
                    found.append(trial.told())
                    continue
                many = recipe.schedule.sequences
                told = (
                    f"{recipe.name}: out of memory with {many} sequences a step; use fewer:"
                    f" --sequences {max(1, many // 2)}"
                )
                if number == len(made) - 1 and not found:
                    raise UserError(told)
                yield Said(told)
            data = [{"fingerprint": one.manifest["fingerprint"]} for one, _ in stores]
        yield Finished({"machine": _facts(order, world.device), "data": data, "rows": found})


class _Trial:
    """One row: its contenders, their turns, what came out."""

    def __init__(
        self, row: Row, recipe: Recipe, stores: list[Store], *, order: Order, world: World
    ) -> None:
        self.row, self.recipe, self.order, self.world = row, recipe, order, world
        self.job = PretrainJob(recipe, stores)
        self.notes: list[str] = []
        self.peers = self._peers() if order.against else {}
        self.total = (ROUNDS + 1) * (1 + len(self.peers)) + ROUNDS
        names = ("clozelab", *self.peers)
        self.shares = {name: Share(world.device) for name in names}
        self.first: dict[str, tuple[float, float | None]] = {}  # seconds, and the loss
        self.laps: dict[str, list[Lap]] = {name: [] for name in (*names, "again")}

    def turns(self) -> Iterator[tuple[str, int]]:
        """Take them, each told of when it is done."""
        if self.order.machine.compiles(self.world.device, self.recipe):
            torch._dynamo.reset()
        done = 0
        ours = self._begin("clozelab", lambda: Ours(self.job, self.order.machine, self.world))
        yield "clozelab", (done := done + 1)
        self.began = ours.trainer.began(0)
        peers = {}
        for name, make in self.peers.items():
            peers[name] = self._begin(name, make, ours)
            yield name, (done := done + 1)
        steps = self.order.lap or _enough(ours)
        for _ in range(ROUNDS):
            self._turn("clozelab", lambda: ours.fed(steps))
            yield "clozelab", (done := done + 1)
            for name, peer in peers.items():
                self._turn(name, lambda peer=peer: peer.lap(ours.prepared))  # type: ignore[misc]
                yield name, (done := done + 1)
            self.laps["again"].append(ours.again())
            yield "the feed", (done := done + 1)

    def told(self) -> dict[str, Any]:
        """The row as plain values."""
        recipe, began = self.recipe, self.began
        encoder: Any = recipe.encoder
        peak = began.peak or machines.product(self.world.device, began.precision)
        told = {name: self._told(name, peak) for name in self.shares}
        mine = told.pop("clozelab")
        mine["feed_share"] = _beside(self.laps["clozelab"], self.laps["again"])
        for name, one in told.items():
            one["ratio"] = {"speed": _beside(self.laps["clozelab"], self.laps[name])}
            if one["peak_memory_gib"]:
                one["ratio"]["memory"] = mine["peak_memory_gib"] / one["peak_memory_gib"]
        return {
            "what": {
                "recipe": recipe.name,
                "size": self.row.size or f"{encoder.layers}x{encoder.width}",
                "length": recipe.blocks.length,
                "dropout": encoder.dropout,
                "sequences": recipe.schedule.sequences,
                "vocabulary": recipe.tokenizer.vocabulary,
                "parameters": began.parameters,
                "precision": began.precision,
                "micro_tokens": began.micro_tokens,
                "flops_a_token": began.flops_a_token,
                "peak_flops": peak,
            },
            "clozelab": mine,
            "peers": told,
            "notes": self.notes,
            "recipe": recipes.to_toml(recipe),
            "kernels": self.order.machine.kernels is not False,
        }

    def _begin(self, name: str, make: Callable[[], Any], ours: Ours | None = None) -> Any:
        """A contender after its first step, timed from before it was built."""
        gc.collect()
        with self.shares[name]:
            began = time.perf_counter()
            made = make()
            lap = made.fed(0) if ours is None else made.lap(ours.prepared)
            self.first[name] = time.perf_counter() - began, lap.loss
        return made

    def _turn(self, name: str, lap: Callable[[], Lap]) -> None:
        with self.shares[name]:
            self.laps[name].append(lap())

    def _told(self, name: str, peak: float) -> dict[str, Any]:
        """One contender's numbers."""
        laps, (seconds, loss) = self.laps[name], self.first[name]
        rates = [lap.tokens / lap.seconds for lap in laps]
        return {
            "tokens_a_second": median(rates),
            "useful_share": median(rates) * self.began.flops_a_token / peak,
            "peak_memory_gib": self.shares[name].gib,
            "first_step_seconds": seconds,
            "first_loss": loss,
            "turns": [{"tokens": lap.tokens, "seconds": lap.seconds} for lap in laps],
        }

    def _peers(self) -> dict[str, Made]:
        """How to begin each peer, by its name."""
        try:
            model = exported(self.job)
        except UserError as error:
            self.notes.append(f"{self.recipe.name}: transformers has no such model ({error})")
            return {}
        heads = sorted({name.split(".")[1] for name in model.left if name.startswith("heads.")})
        if heads:
            self.notes.append(f"{self.recipe.name}: transformers does without {', '.join(heads)}")
        made: dict[str, Made] = {"transformers": lambda: self._theirs(model, compiled=False)}
        if self.world.device.type == "cuda":
            made["transformers compiled"] = lambda: self._theirs(model, compiled=True)
        elif not model.config["architectures"][0].endswith("ForMaskedLM"):
            pass  # the Trainer's own collator knows no pairs and no orders
        elif find_spec("accelerate") is None:
            self.notes.append("no Trainer: it needs accelerate; pip install 'clozelab[bench]'")
        else:
            corpus, device = self.job.stores[0][0], self.world.device
            made["Trainer"] = lambda: Trained(model, corpus, device=device)
        return made

    def _theirs(self, model: Exported, *, compiled: bool) -> Theirs:
        device = self.world.device
        dtype = machines.PRECISIONS[self.order.machine.precision_on(device)]
        return Theirs(model, device=device, dtype=dtype, compiled=compiled)


def _enough(ours: Ours) -> int:
    """The steps of a turn that is long enough, by a short one."""
    lap = ours.fed(_WARM)
    return max(1, ceil(TURN / (lap.seconds / _WARM)))


def _beside(some: list[Lap], others: list[Lap]) -> float:
    """How much faster the one is than the other: the median over turns that lie side by side."""
    pairs = zip(some, others, strict=True)
    return median((a.tokens / a.seconds) / (b.tokens / b.seconds) for a, b in pairs)


def _facts(order: Order, device: torch.device) -> dict[str, Any]:
    """Where and with what it was measured."""
    found = {**machine_facts(), **machines.facts(device), "workers": order.machine.threads}
    if order.against:
        import transformers

        found["transformers"] = transformers.__version__
    return found

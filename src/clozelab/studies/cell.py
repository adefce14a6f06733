"""One cell of a study: pretrain a variant with a seed, fine-tune it on every task, measure it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clozelab.errors import UserError
from clozelab.files import replacing, write_text
from clozelab.finetuning import finetune
from clozelab.finetuning.request import Order as TaskOrder
from clozelab.pretraining import starting
from clozelab.pretraining.pretrain import pretrain, resume
from clozelab.runs.directory import MEASURED, Run, read_json
from clozelab.runs.events import Ended, Event
from clozelab.runs.machine import Machine
from clozelab.runs.session import SaveOptions
from clozelab.studies.measures import measured
from clozelab.studies.pace import clear
from clozelab.studies.request import Cell, Request

FAILED = "failed.json"
TASKS = "tasks"
LIKE = "like.txt"  # the variant whose weights a cell has
PRETRAINING = "pretraining"
_LOG = ("recipe.toml", "machine.toml", "metrics.jsonl", "result.json")


@dataclass(frozen=True)
class Order:
    """All that a process needs to know to do a cell, or to go on with one."""

    request: Request
    cell: Cell
    out: str
    steps: int
    machine: Machine
    saving: SaveOptions
    keep_models: bool = False  # those fine-tuned, once their scores are known

    @property
    def place(self) -> Path:
        """Its folder."""
        return self.cell.place(Path(self.out))

    def beside(self, variant: str) -> Path:
        """The folder of another variant's cell of the same seed."""
        return Cell(variant, self.cell.seed).place(Path(self.out))


@dataclass(frozen=True)
class Happened:
    """An event of a cell, in its pretraining or on a task."""

    cell: str
    stage: str
    event: Event


def run(order: Order) -> Iterator[Happened]:
    """Do what is left of a cell; after an end that is not whole nothing follows."""
    (order.place / FAILED).unlink(missing_ok=True)
    stages: list[tuple[str, Iterator[Event]]] = [(PRETRAINING, _pretrained(order))]
    stages += [(task, _tuned(order, task)) for task in order.request.tasks()]
    for stage, events in stages:
        for event in events:
            yield Happened(order.cell.name, stage, event)
            if isinstance(event, Ended) and not event.whole:
                return
            if isinstance(event, Ended) and event.signal:  # it came while the last step was taken
                raise KeyboardInterrupt(event.signal)
        clear()
    if not _is_measured(order):
        told = measured(
            order.request,
            order.cell,
            model(order),
            place=order.place,
            blocks=order.saving.evaluate_blocks,
            device=order.machine.device,
        )
        write_text(order.place / MEASURED, json.dumps(told, indent=1) + "\n")


def done(order: Order) -> bool:
    """Whether nothing is left of a cell."""
    place = order.place
    tasks = [place / TASKS / task / "result.json" for task in order.request.tasks()]
    return all(file.exists() for file in (place / "result.json", *tasks)) and _is_measured(order)


def _is_measured(order: Order) -> bool:
    """Whether the study's measures are known, also those that were asked for later."""
    told = read_json(order.place / MEASURED)
    return {*order.request.study.measures} <= {*told.get("measures", told.get("scores", ()))}


def model(order: Order) -> Path:
    """Where the weights of a cell are: its own run, or that of its like, left out now or not."""
    like = order.place / LIKE
    if like.exists():
        return order.beside(like.read_text(encoding="utf-8").strip())
    twin = order.request.twin(order.cell.variant)
    return order.place if twin is None else order.beside(twin)


def _pretrained(order: Order) -> Iterator[Event]:
    """Pretrain, or go on with it, or take what another variant has learned already."""
    place, request, variant = order.place, order.request, order.cell.variant
    lean = request.leans.get(variant)
    if lean is not None and Run(order.beside(lean)).result() is None:
        raise UserError(f"{order.cell.name}: needs the run of {lean}, which is not done")
    if Run(place).result() is not None:
        return
    if (twin := request.twin(variant)) is not None:
        place.mkdir(parents=True, exist_ok=True)
        write_text(place / LIKE, f"{twin}\n")
        for name in _LOG:  # the result last, by which the cell is done
            with replacing(place / name) as stream:
                stream.write((model(order) / name).read_bytes())
        return
    data, saving, machine = request.stores(variant), order.saving, order.machine
    if Run(place).recipe_file.exists():
        begun = starting.resumed(place, data=data)
        yield from resume(begun, place, machine=machine, saving=saving)
        return
    recipe, budget = request.recipe(variant), f"{order.steps}steps"
    teacher, seed = request.study.variant(variant).teacher, order.cell.seed
    if teacher is None:
        task = starting.fresh(recipe, data=data, seed=seed, budget=budget)
    else:
        where = str(order.beside(teacher))
        task = starting.taught(recipe, where, data=data, seed=seed, budget=budget, sized=True)
    yield from pretrain(task, place, machine=machine, saving=saving)


def _tuned(order: Order, task: str) -> Iterator[Event]:
    """Fine-tune on a task with the cell's own seed; its weights go once their scores are known."""
    folder = order.place / TASKS / task
    if Run(folder).result() is None:
        yield from _tuning(order, task, folder)
    if not order.keep_models and Run(folder).result() is not None:
        for weights in folder.glob("*/checkpoints"):  # also those that a kill left
            shutil.rmtree(weights)


def _tuning(order: Order, task: str, folder: Path) -> Iterator[Event]:
    request = order.request
    given = TaskOrder(
        str(model(order)),
        request.tasks()[task],
        protocol=request.protocol(order.cell.variant),
        settings=request.settings(order.cell.variant, task),
        seed=order.cell.seed,
    )
    plan = finetune.planned(given)
    for happened in finetune.follow(plan, folder, machine=order.machine, saving=SaveOptions()):
        yield happened.event

"""Tasks: those that go by name, and how a model is fitted to one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clozelab.api.training import machine_of
from clozelab.api.watching import View, Watch, copying, noticed, resumable, stop_after
from clozelab.errors import UserError
from clozelab.nearest import remedy
from clozelab.options import (
    ColumnNames,
    CopyTo,
    Few,
    Grid,
    LocalFolder,
    ModelPlace,
    Place,
    Settings,
    command,
    option,
)
from clozelab.remote.access import is_url, shown
from clozelab.runs.directory import Run
from clozelab.runs.options import MachineOptions, SaveOptions, TrackOptions

if TYPE_CHECKING:
    from clozelab.finetuning.files.named import Named
    from clozelab.finetuning.finetune import Happened
    from clozelab.finetuning.request import FinetuneRequest


@dataclass(frozen=True)
class TaskFiles:
    """Where the examples of tasks are."""

    task_data: Place | None = option("folder with the data of known tasks (CLOZELAB_DATA)")
    columns: ColumnNames = option(
        "columns of your own files: first, second, label, … by name or number",
        (),
        metavar="ROLE=COLUMN",
    )


@command
def tasks(name: str | None = None) -> dict[str, Named]:
    """List the known tasks and where their files belong.

    Args:
        name: show one task in full
    """
    from clozelab.finetuning.files.named import NAMED

    if name is not None and name not in NAMED:
        raise UserError(f"task {name}: is unknown; {remedy(name, NAMED)}")
    return dict(NAMED) if name is None else {name: NAMED[name]}


@command
def finetune(
    model: ModelPlace,
    task: str,
    *,
    out: LocalFolder | None = None,
    copy_to: CopyTo | None = None,
    train: Place | None = None,
    dev: Place | None = None,
    protocol: Place | None = None,
    set: Settings = (),
    after: str | None = None,
    teacher: Place | None = None,
    fresh: bool = False,
    seeds: Few = 1,
    seed: int = 0,
    grid: Grid | None = None,
    at_once: Few = 1,
    files: TaskFiles,
    tracking: TrackOptions,
    machine: MachineOptions,
    watch: Watch,
) -> Run:
    """Fine-tune a model on a task, with several seeds or a grid; one folder has all runs.

    Args:
        task: a known task (see clozelab tasks), or a kind for your own files: classify, regress,
            pairs, tag, answer, choose, coreference
        out (DIR): the folder to make (MODEL-TASK)
        train (FILE): training set, .tsv .csv .jsonl .parquet … or hf:NAME
        dev (FILE): dev set, on which the best model is chosen
        protocol (NAME): a protocol's name or TOML file (that of the model's recipe)
        set (KEY=VALUE): change a value of the protocol
        after (TASK): fine-tune on this task first
        teacher (RUN): also distil from this fine-tuned model
        fresh: start from random weights instead of the model's
        seeds: number of runs with different seeds (1)
        seed: the first seed (0)
        grid (KEY=A,B): run every combination; without values, the protocol's grid
        at_once: runs at the same time (1)
    """
    from clozelab.finetuning.request import Data, FinetuneRequest

    if out is None and is_url(model):
        raise UserError(f"{shown(model)}: is at a URL; name the folder to make with --out DIR")
    place = Path(out or f"{model.rstrip('/')}-{task}")
    request = FinetuneRequest(
        model,
        Data(task, root=files.task_data, train=train, dev=dev, columns=tuple(files.columns)),
        protocol=protocol,
        settings=tuple(set),
        seed=seed,
        fresh=fresh,
        teacher=teacher,
    )
    request.data.check()  # before torch, which takes seconds to load

    from clozelab.training.world import is_distributed

    saving = SaveOptions(track=tracking.track, tags=tracking.tags)
    on: dict[str, Any] = {"machine": machine_of(machine), "saving": saving, "watch": watch}
    if after is not None:  # which random weights, if asked for, came before
        if not place.name:
            raise UserError(
                f"--out {place}: has no name to call the folder of --after by; name another folder"
            )
        if is_distributed():
            raise UserError(
                f"--after needs a single process; under torchrun fine-tune on {after} first,"
                " then name that run as the model"
            )
        earlier = place.with_name(f"{place.name}-after-{after}")
        data = Data(after, root=files.task_data)
        _tune(replace(request, data=data, teacher=None, settings=()), earlier, **on)
        request = replace(request, model=str(earlier), fresh=False)
    how: dict[str, Any] = {"grid": grid, "seeds": seeds, "at_once": at_once, "copy_to": copy_to}
    return _tune(request, place, **how, **on)


def _tune(
    request: FinetuneRequest,
    place: Path,
    *,
    grid: Any = None,
    seeds: int = 1,
    at_once: int = 1,
    copy_to: str | None = None,
    saving: SaveOptions,
    machine: Any,
    watch: Watch,
) -> Run:
    """Train every trial, and draw their events until all are done."""
    from clozelab.finetuning.finetune import follow, planned
    from clozelab.runs.events import Ended

    plan = planned(request, grid=grid, seeds=seeds, out=place)
    running = follow(plan, place, machine=machine, saving=saving, at_once=at_once)
    trials = [trial.name for trial in plan.requests()]
    several = len(trials) > 1
    with copying(place, copy_to, watch) as update, resumable(), watch.bars() as bars:
        view = View(bars, watch)
        done = sum(Run(place / trial).result() is not None for trial in trials)
        count: dict[str, Any] = {"total": len(trials), "completed": done, "visible": several}
        runs = bars.add_task("runs", status="", **count)

        def show(happened: Happened) -> None:
            view.show_stage(happened.event, happened.trial, name=several)
            if isinstance(happened.event, Ended):
                bars.advance(runs)

        watch.follow(noticed(running, update), show)
    result = Run(place).result()
    if result is not None:
        watch.say(f"{place}: the best run is {result['best']}")
    stop_after(place, view.ended.signal if view.ended else 0)
    return Run(place)

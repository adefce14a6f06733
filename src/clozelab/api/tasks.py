"""Tasks: fit a model to one, and score it; measure a pretrained model on held-out text."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clozelab.api.models import opened
from clozelab.api.training import machine_of
from clozelab.api.watching import View, Watch, resumable, stop_after
from clozelab.errors import UserError
from clozelab.nearest import remedy
from clozelab.options import (
    Few,
    ModelLike,
    ModelPlace,
    Overwrite,
    Place,
    Settings,
    command,
    located,
    option,
)
from clozelab.runs.directory import Run
from clozelab.runs.options import Device, MachineOptions, SaveOptions

if TYPE_CHECKING:
    from clozelab.finetuning.files.named import Named
    from clozelab.finetuning.finetune import Happened
    from clozelab.finetuning.request import FinetuneRequest

Scores = dict[str, dict[str, float]]


@dataclass(frozen=True)
class TaskFiles:
    """Where the examples of tasks are."""

    task_data: Place | None = option("where known tasks lie (CLOZELAB_DATA)")
    columns: Settings = option(
        "of one's own files: first, second, label, … by name or number", (), metavar="ROLE=COLUMN"
    )


@command
def tasks(name: str | None = None) -> dict[str, Named]:
    """List the tasks that go by name, and where their files should lie.

    Args:
        name: one of them, in full
    """
    from clozelab.finetuning.files.named import NAMED

    if name is not None and name not in NAMED:
        raise UserError(f"task {name}: there is no such; {remedy(name, NAMED)}")
    return dict(NAMED) if name is None else {name: NAMED[name]}


@command
def finetune(
    model: ModelPlace,
    task: str,
    *,
    out: Place | None = None,
    train: Place | None = None,
    dev: Place | None = None,
    protocol: Place | None = None,
    set: Settings = (),
    after: str | None = None,
    teacher: Place | None = None,
    fresh: bool = False,
    seeds: Few = 1,
    seed: int = 0,
    grid: Settings | None = None,
    at_once: Few = 1,
    files: TaskFiles,
    machine: MachineOptions,
    watch: Watch,
) -> Run:
    """Fit a model to a task, with seeds and grids; the run returned is the folder of them all.

    Args:
        task: a known task (see clozelab tasks), or for one's own files: classify, regress, pairs,
            tag, answer, choose, coreference
        out (DIR): the folder to make (MODEL-TASK)
        train (FILE): .tsv .csv .jsonl .parquet … or hf:NAME
        dev (FILE): by which the best model is chosen
        protocol (NAME): or a TOML file (that of the model's recipe)
        set (KEY=VALUE): change the protocol once
        after (TASK): fit it to this task first
        teacher (RUN): learn from this fine-tuned model as well
        fresh: random weights in the model's place
        seeds: how many runs (1)
        seed: the first one's (0)
        grid (KEY=A,B): every combination; none given: the protocol's
        at_once: side by side (1)
    """
    from clozelab.finetuning.request import Data, FinetuneRequest

    place = Path(out or f"{model.rstrip('/')}-{task}")
    columns = tuple(files.columns)
    request = FinetuneRequest(
        model,
        Data(task, root=files.task_data, train=train, dev=dev, columns=columns),
        protocol=protocol,
        settings=tuple(set),
        seed=seed,
        fresh=fresh,
        teacher=teacher,
    )
    request.data.check()  # before torch, which takes seconds to load

    from clozelab.training.world import is_distributed

    on: dict[str, Any] = {"machine": machine_of(machine), "watch": watch}
    if after is not None:  # which random weights, if asked for, came before
        if is_distributed():
            raise UserError(
                f"--after is for one process: under torchrun fit the model to {after} first, then"
                " name that run"
            )
        earlier = place.with_name(f"{place.name}-after-{after}")
        data = Data(after, root=files.task_data)
        _tune(replace(request, data=data, teacher=None, settings=()), earlier, **on)
        request = replace(request, model=str(earlier), fresh=False)
    return _tune(request, place, grid=grid, seeds=seeds, at_once=at_once, **on)


def _tune(
    request: FinetuneRequest,
    place: Path,
    *,
    grid: Any = None,
    seeds: int = 1,
    at_once: int = 1,
    machine: Any,
    watch: Watch,
) -> Run:
    """Train every trial, and draw their events until all are done."""
    from clozelab.finetuning.finetune import follow, planned
    from clozelab.runs.events import Ended

    plan = planned(request, grid=grid, seeds=seeds, out=place)
    running = follow(plan, place, machine=machine, saving=SaveOptions(), at_once=at_once)
    trials = [order.name for order in plan.orders()]
    several = len(trials) > 1
    with resumable(running), watch.bars() as bars:
        view = View(bars, watch)
        done = sum(Run(place / trial).result() is not None for trial in trials)
        count: dict[str, Any] = {"total": len(trials), "completed": done, "visible": several}
        runs = bars.add_task("runs", status="", **count)

        def show(happened: Happened) -> None:
            view.show_stage(happened.event, happened.trial, name=several)
            if isinstance(happened.event, Ended):
                bars.advance(runs)

        watch.follow(running, show)
    result = Run(place).result()
    if result is not None:
        watch.say(f"{place}: the best is {result['best']}")
    stop_after(place, view.ended.signal if view.ended else 0)
    return Run(place)


@command
def evaluate(
    model: ModelLike,
    task: Place | None = None,
    *,
    split: str = "dev",
    data: Place | None = None,
    pairs: Literal["next", "order"] | None = None,
    masks: str | None = None,
    blocks: int = 1024,
    out: Place | None = None,
    overwrite: Overwrite = False,
    device: Device | None = None,
    files: TaskFiles,
    watch: Watch,
) -> Scores:
    """Measure a fine-tuned model's scores, or a pretrained one's losses on held-out text.

    Args:
        task: a known task or a labelled file
        split: of the task, if it has labels (dev)
        data (CORPUS): measure losses on its held-out text
        pairs: ask a pair objective about next sentences, or about their order
        masks (RECIPE): hide what that recipe would (its own)
        blocks: how many blocks (1,024)
        out (FILE.json): record what came out, digests of the data, the commit
    """
    from clozelab.files import check_output, write_text
    from clozelab.runs.directory import machine_facts

    if (task is None) == (data is None):
        raise UserError(
            "evaluate needs a task or a labelled file for a fine-tuned model, or --data CORPUS for"
            " a pretrained one"
        )
    if out is not None:
        check_output(Path(out), overwrite=overwrite)
    facts: dict[str, Any] = {"model": located(model, "model")}
    if task is not None:
        _check_task(task, files)
        examples: dict[str, Any] = {
            "root": files.task_data,
            "columns": files.columns,
            "part": split,
        }
        loaded, facts["task"] = opened(model, watch), task

        from clozelab.finetuning.predict import data_of, score

        if out is not None:
            facts["digests"] = data_of(loaded, task, **examples).digests(part=split)
        facts["scores"] = results = score(loaded, task, **examples, device=device)
    else:
        from clozelab.text.store.corpus import open_stores

        ((corpus, _),) = open_stores([str(data)])  # before torch, which takes seconds to load

        from clozelab.pretraining.held_out import evaluate
        from clozelab.runs.events import means

        how: dict[str, Any] = {"pairs": pairs, "masks": masks, "blocks": blocks}
        store = {"path": data, "fingerprint": corpus.manifest["fingerprint"]}
        results = means(evaluate(facts["model"], str(data), **how, device=device))
        facts |= {**how, "data": store, "held_out": results}
    if out is not None:
        record = {"machine": machine_facts(), **facts}
        write_text(Path(out), json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return results


def _check_task(task: str, files: TaskFiles) -> None:
    """Refuse a task or a file that is not there, before torch is loaded."""
    from clozelab.finetuning.files.hub import is_hub
    from clozelab.finetuning.files.named import NAMED
    from clozelab.finetuning.files.tables import existing
    from clozelab.finetuning.request import Data

    if task in NAMED:
        Data(task, root=files.task_data).check()
    elif not is_hub(task) and existing(Path(task)) is None:
        raise UserError(
            f"{task}: is neither a file here nor a known task; check the path, or see clozelab"
            " tasks"
        )

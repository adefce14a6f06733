"""One cell of a study: pretrain a variant with a seed, fine-tune it on every task, measure it."""

from __future__ import annotations

import json
import shutil
import traceback
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from clozelab.errors import UserError
from clozelab.files import replacing, write_text
from clozelab.finetuning import finetune
from clozelab.finetuning.request import FinetuneRequest
from clozelab.pretraining import starting
from clozelab.pretraining.pretrain import pretrain, resume
from clozelab.runs.directory import MEASURED, Run, json_or_empty, runs_by_seed
from clozelab.runs.events import Ended, Event
from clozelab.runs.machine import Machine
from clozelab.runs.options import SaveOptions
from clozelab.runs.processes import kept_workers
from clozelab.runs.warm import clear
from clozelab.studies.measures import Measuring, measurable, measured
from clozelab.studies.request import Cell, StudyRequest
from clozelab.training.loop import DivergedError

FAILED = "failed.json"
TASKS = "tasks"
LIKE = "like.txt"  # names the variant whose pretraining a cell has: a shared one, or its own
PRETRAINING = "pretraining"
_RECORD_FILES = ("recipe.toml", "machine.toml", "metrics.jsonl", "result.json")


@dataclass(frozen=True)
class SideBySide:
    """How a cell's fine-tunings run at the same time, each in a process of its own."""

    count: int
    threads: int  # of each process
    machine: Machine


@dataclass(frozen=True)
class CellJob:
    """The arguments to run or continue a cell, in any process."""

    request: StudyRequest
    cell: Cell
    out: str  # the folder of the study
    budget: str  # of its pretraining, as --budget has it
    machine: Machine
    saving: SaveOptions
    keep_models: bool = False  # keep fine-tuned weights after their scores are known
    tunings: SideBySide | None = None  # None: one after another

    @property
    def folder(self) -> Path:
        """The folder of the cell."""
        return self.folder_of(self.cell.variant)

    def folder_of(self, variant: str) -> Path:
        """The folder of a variant's cell with the same seed."""
        return Cell(variant, self.cell.seed).folder(Path(self.out))


@dataclass(frozen=True)
class CellEvent:
    """An event of a cell, in its pretraining or on a task."""

    cell: str
    stage: str
    event: Event


def run_cell(job: CellJob) -> Iterator[CellEvent]:
    """Run what is left of a cell; a stage that is interrupted ends it."""
    (job.folder / FAILED).unlink(missing_ok=True)
    with closing(_stages(job)) as events:
        for stage, event in events:
            yield CellEvent(job.cell.name, stage, event)
            if isinstance(event, Ended) and not event.whole:
                return
            if isinstance(event, Ended) and event.signal:  # interrupted during the last step
                raise KeyboardInterrupt(event.signal)
    if not _is_measured(job):
        values = measured(
            Measuring(job.request, job.cell, model_folder(job), job.folder, job.machine.device)
        )
        write_text(job.folder / MEASURED, json.dumps(values, indent=1) + "\n")


def _stages(job: CellJob) -> Generator[tuple[str, Event], None, None]:
    """Pretrain and fine-tune; each event comes with the name of its stage."""
    for event in _pretrain(job):
        yield PRETRAINING, event
    clear()
    if job.tunings is not None:
        yield from _finetune_side_by_side(job, job.tunings)
        return
    for task in job.request.tasks():
        for event in _finetune(job, task):
            yield task, event
        clear()


def is_done(job: CellJob) -> bool:
    """Whether a cell is pretrained, fine-tuned and measured."""
    folder = job.folder
    tasks = [folder / TASKS / task / "result.json" for task in job.request.tasks()]
    return all(file.exists() for file in (folder / "result.json", *tasks)) and _is_measured(job)


def _is_measured(job: CellJob) -> bool:
    """Whether all measures are known, also those added later."""
    values = json_or_empty(job.folder / MEASURED)
    return {*measurable(job.request)} <= {*values.get("measures", values.get("scores", ()))}


def model_folder(job: CellJob) -> Path:
    """The run with the weights of a cell: its own, or that whose pretraining it shares."""
    return job.folder_of(_pretrained_by(job))


def _pretrained_by(job: CellJob) -> str:
    """The variant whose pretraining a cell has: its own, or that with which it shares it."""
    like = job.folder / LIKE
    if like.exists():
        return like.read_text(encoding="utf-8").strip()
    return job.request.shares_pretraining_with(job.cell.variant) or job.cell.variant


def record_failure(job: CellJob, error: BaseException) -> str:
    """Write why a cell failed, and return the message."""
    message = str(error) or type(error).__name__
    job.folder.mkdir(parents=True, exist_ok=True)
    record = {
        "error": message,
        "diverged": isinstance(error, DivergedError),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "trace": "".join(traceback.format_exception(error))[-10_000:],
    }
    write_text(job.folder / FAILED, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return message


def failure(job: CellJob) -> str | None:
    """Why a cell failed, if it did."""
    file = job.folder / FAILED
    return str(json_or_empty(file).get("error", "")) if file.exists() else None


def cell_result(job: CellJob, *, flops_a_token: float | None) -> dict[str, Any]:
    """The scores and the cost of a cell, for result.json."""
    run, variant = Run(job.folder), job.cell.variant
    result = run.result() or {}
    tokens = result.get("tokens", 0)
    tuned = {
        task: one
        for task in job.request.tasks()
        if (one := Run(job.folder / TASKS / task).result()) is not None
    }
    return {
        "variant": variant,
        "seed": job.cell.seed,
        "scores": _scores(job, tuned),
        "constant": {
            f"{task}.{name}": score
            for task, one in tuned.items()
            for name, score in one.get("constant", {}).items()
        },
        "tokens": tokens,
        "steps": result.get("steps", 0),
        "seconds": result.get("seconds", 0.0),
        "tuning_seconds": float(sum(map(_tuning_seconds, job.folder.glob(f"{TASKS}/*")))),
        "flops": None if flops_a_token is None else tokens * flops_a_token,
        "parameters": sum(run.recipe().parameters().values()) if run.recipe_file.exists() else None,
        "pretrained_by": _pretrained_by(job),
        "failed": failure(job),
        **_divergence(job),
    }


def _tuning_seconds(folder: Path) -> float:
    """The seconds of all fine-tunings on a task; its own result lacks them in old records."""
    whole = (Run(folder).result() or {}).get("seconds")
    if whole is not None:
        return float(whole)
    seeds = [run.result() or {} for run in runs_by_seed(folder).values()]
    return float(sum(seed.get("seconds", 0.0) for seed in seeds))


def _divergence(job: CellJob) -> dict[str, bool]:
    """Whether a failed cell diverged; empty if only its message tells, as in old records."""
    record = json_or_empty(job.folder / FAILED)
    return {"diverged": record["diverged"]} if "diverged" in record else {}


def _scores(job: CellJob, tuned: Mapping[str, Any]) -> dict[str, float]:
    """The scores by task and metric, from the results of the tasks, then the measures."""
    scores: dict[str, float] = {}
    for task, result in tuned.items():
        scores |= tuning_scores(task, finetune.tunings_of(result), job.request.study.measures)
    return scores | dict(json_or_empty(job.folder / MEASURED).get("scores", {}))


def tuning_scores(
    task: str, tunings: Sequence[Mapping[str, float]], measures: Sequence[str]
) -> dict[str, float]:
    """The mean of each score over the fine-tunings of one encoder, and the requested extremes."""
    scores: dict[str, float] = {}
    for metric in dict.fromkeys(name for tuning in tunings for name in tuning):
        values = [tuning[metric] for tuning in tunings if metric in tuning]
        name = f"{task}.{metric}"
        kinds = {"": fmean(values)}
        if len(values) > 1:
            kinds |= {"best.": max(values), "worst.": min(values), "spread.": stdev(values)}
        scores |= {f"{k}{name}": v for k, v in kinds.items() if not k or f"{k}{name}" in measures}
    return scores


def _pretrain(job: CellJob) -> Iterator[Event]:
    """Pretrain, resume, or copy the record of a variant that shares its pretraining."""
    folder, request, variant = job.folder, job.request, job.cell.variant
    needed = request.depends_on.get(variant)
    if needed is not None and Run(job.folder_of(needed)).result() is None:
        raise UserError(f"{job.cell.name}: needs the run of {needed}, which is not done")
    if Run(folder).result() is not None:
        return
    if (other := _shared_variant(job)) is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / LIKE, f"{other}\n")
        for name in _RECORD_FILES:  # the result last, since it marks the run as done
            with replacing(folder / name) as stream:
                stream.write((model_folder(job) / name).read_bytes())
        return
    yield from _pretrain_alone(job)
    if request.shares_pretraining_with(variant) and Run(folder).result() is not None:
        write_text(folder / LIKE, f"{variant}\n")


def _shared_variant(job: CellJob) -> str | None:
    """The variant whose pretraining a cell takes over; None if it has to pretrain itself.

    So it has to if the weights are missing: those of a recorded cell may be on another machine.
    """
    other = job.request.shares_pretraining_with(job.cell.variant)
    begun = Run(job.folder).recipe_file.exists() and not (job.folder / LIKE).exists()
    missing = other is None or not Run(job.folder_of(other)).checkpoints.exists()
    return None if begun or missing else other


def _pretrain_alone(job: CellJob) -> Iterator[Event]:
    """Pretrain or resume."""
    folder, request, variant = job.folder, job.request, job.cell.variant
    data, saving, machine = request.stores(variant), job.saving, job.machine
    if Run(folder).recipe_file.exists():
        task = starting.resumed(folder, data=data)
        yield from resume(task, folder, machine=machine, saving=saving)
        return
    recipe, budget = request.recipe(variant), job.budget
    teacher, seed = request.study.variant(variant).teacher, request.seed(job.cell)
    if teacher is None:
        task = starting.fresh(recipe, data=data, seed=seed, budget=budget)
    else:
        model = str(job.folder_of(teacher))
        task = starting.taught(recipe, model, data=data, seed=seed, budget=budget, sized=True)
    yield from pretrain(task, folder, machine=machine, saving=saving)


def _finetune(job: CellJob, task: str) -> Iterator[Event]:
    """Fine-tune on a task with the seed of the cell."""
    folder = job.folder / TASKS / task
    if Run(folder).result() is None:
        plan = _tuning_plan(job, task)
        for happened in finetune.follow(plan, folder, machine=job.machine, saving=SaveOptions()):
            yield happened.event
    _drop_weights(job)


def _finetune_side_by_side(
    job: CellJob, tunings: SideBySide
) -> Generator[tuple[str, Event], None, None]:
    """Fine-tune on all tasks, several fine-tunings at a time."""
    folders = {task: job.folder / TASKS / task for task in job.request.tasks()}
    plans = {
        folder: _tuning_plan(job, task)
        for task, folder in folders.items()
        if Run(folder).result() is None
    }
    processes = kept_workers(threads=tunings.threads)  # serve all cells of this process
    running = finetune.side_by_side(
        plans, processes, machine=tunings.machine, saving=SaveOptions(), at_once=tunings.count
    )
    with closing(running) as events:
        for folder, happened in events:
            _drop_weights(job)
            yield f"{folder.name}/{happened.trial}".rstrip("/"), happened.event
    _drop_weights(job)


def _tuning_plan(job: CellJob, task: str) -> finetune.FinetunePlan:
    """The plan of the fine-tunings of a cell's encoder on a task."""
    request, variant = job.request, job.cell.variant
    tuning = FinetuneRequest(
        str(model_folder(job)),
        request.tasks()[task],
        protocol=request.protocol(variant),
        settings=request.settings(variant, task),
        seed=request.seed(job.cell) * request.study.tunings,
    )
    return finetune.planned(tuning, seeds=request.study.tunings)


def _drop_weights(job: CellJob) -> None:
    """Drop the fine-tuned weights of tasks whose scores are known."""
    for task in () if job.keep_models else job.request.tasks():
        folder = job.folder / TASKS / task
        if Run(folder).result() is not None:
            for weights in folder.glob("*/checkpoints"):  # also those that a killed process left
                shutil.rmtree(weights)

"""Tasks: fit a model to one, apply it, score it; measure a pretrained model on held-out text."""

from __future__ import annotations

import json as json_
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clozelab.api.models import opened
from clozelab.api.predictions import PassageAnswer, Predictions
from clozelab.api.texts import examples as examples_of
from clozelab.api.texts import read_text, sound
from clozelab.api.training import machine_of
from clozelab.api.watching import View, Watch, resumable, stop_after
from clozelab.errors import UserError
from clozelab.interrupts import Stopped
from clozelab.options import Few, ModelLike, Place, Settings, Text, Texts, command, option
from clozelab.runs.directory import Run
from clozelab.runs.options import Device, MachineOptions, SaveOptions

if TYPE_CHECKING:
    from clozelab.finetuning.files.splits import TaskSplits
    from clozelab.finetuning.finetune import Happened, Plan
    from clozelab.finetuning.kinds import TaskKind
    from clozelab.finetuning.request import FinetuneRequest
    from clozelab.runs.machine import Machine


@dataclass(frozen=True)
class TaskFiles:
    """Where the examples of tasks are."""

    task_data: Place | None = option("where known tasks lie (CLOZELAB_DATA)")
    columns: Settings = option(
        "of one's own files: first, second, label, … by name or number", (), metavar="ROLE=COLUMN"
    )


@command
def finetune(
    model: Place,
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
        model: a run, a Hugging Face directory or a hub name
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
    own = tuple(files.columns)
    data = Data(task, root=files.task_data, train=train, dev=dev, columns=own)
    order = FinetuneRequest(
        model,
        data,
        protocol=protocol,
        settings=tuple(set),
        seed=seed,
        fresh=fresh,
        teacher=teacher,
    )
    order.data.check()  # before torch, which takes seconds to load

    from clozelab.finetuning.finetune import follow, planned

    on = machine_of(machine)
    if after is not None:  # which random weights, if asked for, came before
        earlier = replace(order, data=Data(after, root=files.task_data), teacher=None, settings=())
        order = replace(order, model=_first(earlier, place, on, watch), fresh=False)
    plan = planned(order, grid=grid, seeds=seeds, out=place)
    running = follow(plan, place, machine=on, saving=SaveOptions(), at_once=at_once)
    _watch(running, plan, place, watch)
    return Run(place)


def _first(order: FinetuneRequest, place: Path, machine: Machine, watch: Watch) -> str:
    """Fit the model to an earlier task, once; where it then is."""
    from clozelab.finetuning.finetune import follow, planned
    from clozelab.training.world import is_distributed

    task = order.data.task
    if is_distributed():
        raise UserError(
            f"--after is for one process: under torchrun fit the model to {task} first, then name"
            " that run"
        )
    before = place.with_name(f"{place.name}-after-{task}")
    plan = planned(order, out=before)
    _watch(follow(plan, before, machine=machine, saving=SaveOptions()), plan, before, watch)
    return str(before)


def _watch(running: Iterator[Happened], plan: Plan, place: Path, watch: Watch) -> None:
    """Draw the trials' events until all are done."""
    from clozelab.runs.events import Began, Ended, Said

    many, heard, sign = len(plan.orders()), set[str](), 0
    with resumable(running), watch.bars() as bars:
        done = many - sum(1 for one in plan.orders() if Run(place / one.name).result() is None)
        trials = bars.add_task("runs", total=many, completed=done, status="") if many > 1 else None
        view: View | None = None
        for happened in running:
            watch.tell(happened)
            event = happened.event
            if isinstance(event, Ended):
                if not event.whole:
                    raise Stopped(
                        f"stopped after step {event.step:,} of {happened.trial}, which is saved;"
                        " run the same command again to go on",
                        signal=event.signal,
                    )
                if view is not None and view.task is not None:
                    bars.remove_task(view.task)
                view, sign = None, event.signal
                if trials is not None:
                    bars.advance(trials)
            elif isinstance(event, Said) and event.text in heard:
                continue  # what is so of the model or the data is so in every run
            else:
                heard |= {event.text} if isinstance(event, Said) else set()
                if isinstance(event, Began) and many > 1:
                    watch.say(happened.trial)
                view = view or View(bars, watch)
                view.show(event)
    result = Run(place).result()
    if result is not None:
        watch.say(f"{place}: the best is {result['best']}")
    stop_after(place, sign)


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
    overwrite: bool = False,
    device: Device | None = None,
    files: TaskFiles,
    watch: Watch,
) -> dict[str, dict[str, float]]:
    """Measure a fine-tuned model's scores, or a pretrained one's losses on held-out text.

    Args:
        model: a run, a Hugging Face directory or a hub name
        task: a known task or a labelled file
        split: of the task, if it has labels (dev)
        data (CORPUS): measure losses on its held-out text
        pairs: ask a pair objective about next sentences, or about their order
        masks (RECIPE): hide what that recipe would (its own)
        blocks: how many blocks (1,024)
        out (FILE.json): record what came out, digests of the data, the commit
        overwrite: replace the file if it is there
        device: where to compute (a GPU, if there is one)
    """
    if (task is None) == (data is None):
        raise UserError(
            "evaluate needs a task or a labelled file for a fine-tuned model, or --data CORPUS for"
            " a pretrained one"
        )
    from clozelab.files import check_output, write_text
    from clozelab.runs.directory import machine_facts

    place = None if out is None else Path(out)

    def check() -> None:
        if place is not None:
            check_output(place, overwrite=overwrite)

    facts: dict[str, Any]
    where = _place(model)
    if task is not None:
        _check_task(task, files)
        check()
        from clozelab.finetuning.predict import data_of, score

        given = opened(model, watch)
        examples: dict[str, Any] = {"root": files.task_data, "columns": files.columns}
        examples["part"] = split
        digests = data_of(given, task, **examples).digests(part=split) if place else {}
        found = score(given, task, **examples, device=device)
        facts = {"model": where, "task": task, "digests": digests, "scores": found}
    else:
        from clozelab.text.store.corpus import open_stores

        assert data is not None
        ((corpus, _),) = open_stores([data])  # before torch, which takes seconds to load
        check()
        from clozelab.pretraining.evaluate import evaluate
        from clozelab.runs.events import means

        how: dict[str, Any] = {"pairs": pairs, "masks": masks, "blocks": blocks}
        found = means(evaluate(where, data, **how, device=device))
        store = {"path": data, "fingerprint": corpus.manifest["fingerprint"]}
        facts = {"model": where, **how, "data": store, "held_out": found}
    if place is not None:
        record = {"machine": machine_facts(), **facts}
        write_text(place, json_.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return found


def _check_task(task: str, files: TaskFiles) -> None:
    """Refuse a task or a file that is not there, before torch is loaded."""
    from clozelab.finetuning.files.hub import is_hub
    from clozelab.finetuning.files.lines import found as found_file
    from clozelab.finetuning.files.named import NAMED
    from clozelab.finetuning.request import Data

    if task in NAMED:
        Data(task, root=files.task_data).check()
    elif not is_hub(task) and found_file(Path(task)) is None:
        raise UserError(
            f"{task}: is neither a file here nor a known task; check the path, or see clozelab"
            " tasks"
        )


@command
def predict(
    model: ModelLike,
    *,
    text: Texts = (),
    file: Place | None = None,
    task: str | None = None,
    split: str | None = None,
    out: Place | None = None,
    overwrite: bool = False,
    json: bool = False,
    device: Device | None = None,
    files: TaskFiles,
    watch: Watch,
) -> Predictions:
    """Ask a fine-tuned model about texts; to write a benchmark's submission, name the task.

    Args:
        model: a fine-tuned run
        text: a text; twice for a pair
        file: .txt with a text a line (a tab between two), or a table (standard input)
        task: a known task, for a submission
        split: of the task (test)
        out: a file, or with a task the folder of the submission
        overwrite: replace the file if it is there
        json: JSON lines with every probability
        device: where to compute (a GPU, if there is one)
    """
    from clozelab.files import check_output, write_text
    from clozelab.finetuning.request import Data

    if task is not None:
        if out is None:
            raise UserError("--task writes a submission: name its folder by --out DIR")
        if text or file is not None or json:
            raise UserError("--task brings its own texts and format: leave the others out")
        found = Data(task, root=files.task_data).found()
        return _submitted(model, found, split or "test", Path(out), overwrite, device, watch)
    if split is not None:
        raise UserError("--split is one of a known task's: name that by --task, or leave it out")
    if out is not None:
        check_output(Path(out), overwrite=overwrite)
    if file not in (None, "-"):
        Data("", test=file).check()  # before a model is opened
    if not text and file is None and sys.stdin.isatty():
        watch.say("texts, one a line, until Ctrl-D:")
    given = opened(model, watch)
    examples = examples_of(given, text, file=file, columns=files.columns)
    predictions = _predicted(given, examples, device, watch)
    if out is not None:
        write_text(Path(out), "".join(f"{line}\n" for line in predictions.lines(as_json=json)))
        watch.say(out)
    return predictions


def _predicted(given: Any, examples: list[Any], device: str | None, watch: Watch) -> Predictions:
    from clozelab.finetuning.predict import fine_tuned, follow

    work: Any = follow(given, examples, device=device)
    kind = type(fine_tuned(given)[0].kind)
    return Predictions(watch.drain(work, "predicting", len(examples)), examples, kind)


def _submitted(
    model: Any,
    found: TaskSplits,
    split: str,
    folder: Path,
    overwrite: bool,
    device: str | None,
    watch: Watch,
) -> Predictions:
    """Write the file that a benchmark takes."""
    from clozelab.finetuning.files.submission import check_submission, write_submission

    check_submission(found, split, folder=folder, overwrite=overwrite)

    from clozelab.finetuning.predict import fine_tuned

    given = opened(model, watch)
    task, _ = fine_tuned(given)
    _check_alike(_place(model), task.kind, found)
    predictions = _predicted(given, found.read(split), device, watch)
    written = write_submission(found, split, predictions=predictions, folder=folder)
    watch.say(f"{written}: {len(predictions):,} predictions")
    return predictions


def _check_alike(model: str, kind: TaskKind, found: TaskSplits) -> None:
    """Refuse a model whose answers are none to the task's questions."""
    if found.kind != kind.name:
        raise UserError(
            f"--task {found.name}: is to {found.kind}, and {model} was tuned to {kind.name}; name a"
            " model that was tuned on it"
        )
    if {*found.labels} != {*kind.label_names}:
        raise UserError(
            f"--task {found.name}: has the labels {', '.join(found.labels)}, not those of {model};"
            " name a model that was tuned on it"
        )


@command
def answer(
    model: ModelLike,
    *,
    question: Text,
    passage: Text,
    top: int = 3,
    device: Device | None = None,
    watch: Watch,
) -> PassageAnswer:
    """Answer a question from a passage.

    Args:
        model: a run fine-tuned to answer
        question: the question
        passage: the text, or - for standard input
        top: candidates to show (3)
        device: where to compute (a GPU, if there is one)
    """
    from clozelab.finetuning.predict import fine_tuned, predict

    if top < 1:
        raise UserError(f"--top {top}: at least 1")
    question, passage = sound(question, "--question"), read_text(passage, "--passage")
    for name, one in (("question", question), ("passage", passage)):
        if not one.strip():
            raise UserError(f"--{name}: is empty; give a text")
    given = opened(model, watch)
    task, _ = fine_tuned(given)
    if not task.kind.answers_questions:
        raise UserError(
            f"{_place(model)}: was tuned to {task.kind.name}, not to answer; use clozelab predict"
        )
    (found,) = predict(given, [(question, passage)], device=device)
    return PassageAnswer(passage, found, top)


def _place(model: Any) -> str:
    """Where a model is, as it was named."""
    return model if isinstance(model, str) else str(model.place)

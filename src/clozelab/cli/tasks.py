"""Commands on tasks: tasks, finetune, evaluate, predict, answer."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.markup import escape

from clozelab.cli.console import err, out
from clozelab.cli.models import loaded
from clozelab.cli.streams import read_text, sound
from clozelab.cli.training import View, machine_of, progress, resumable, speaks, stop_after
from clozelab.errors import UserError
from clozelab.interrupts import Stopped

if TYPE_CHECKING:
    from clozelab.finetuning.files.splits import Found
    from clozelab.finetuning.finetune import Happened, Plan
    from clozelab.finetuning.kinds import TaskKind
    from clozelab.finetuning.request import Order
    from clozelab.models.load import Loaded


def listing(arguments: argparse.Namespace) -> None:
    """Show the tasks that go by name."""
    from clozelab.cli.views.tasks import described, table
    from clozelab.finetuning.files.named import NAMED

    if arguments.name is None:
        out.print(table(NAMED))
    else:
        out.print(described(arguments.name))


def finetune(arguments: argparse.Namespace) -> None:
    """Fit a model to a task."""
    place = Path(arguments.out or f"{arguments.model.rstrip('/')}-{arguments.task}")
    order = _order(arguments, arguments.model)
    order.data.check()  # before torch, which takes seconds to load

    from clozelab.finetuning.finetune import follow, planned
    from clozelab.runs.session import SaveOptions

    if arguments.after is not None:  # which random weights, if asked for, came before
        order = replace(order, model=_first(arguments, place), fresh=False)
    plan = planned(order, grid=arguments.grid, seeds=arguments.seeds, out=place)
    machine, saving = machine_of(arguments), SaveOptions()
    running = follow(plan, place, machine=machine, saving=saving, at_once=arguments.at_once)
    _watch(running, plan, place)


def _first(arguments: argparse.Namespace, place: Path) -> str:
    """Fit the model to an earlier task, once; where it then is."""
    from clozelab.finetuning.finetune import follow, planned
    from clozelab.finetuning.request import Data
    from clozelab.runs.session import SaveOptions
    from clozelab.training.world import is_distributed

    if is_distributed():
        raise UserError(
            f"--after is for one process: under torchrun fit the model to {arguments.after} first,"
            " then name that run"
        )
    before = place.with_name(f"{place.name}-after-{arguments.after}")
    order = _order(arguments, arguments.model)
    order = replace(order, data=Data(arguments.after, root=arguments.task_data), teacher=None)
    plan = planned(replace(order, settings=()), out=before)
    running = follow(plan, before, machine=machine_of(arguments), saving=SaveOptions())
    _watch(running, plan, before)
    return str(before)


def _order(arguments: argparse.Namespace, model: str) -> Order:
    from clozelab.finetuning.request import Data, Order

    data = Data(
        arguments.task,
        root=arguments.task_data,
        train=arguments.train,
        dev=arguments.dev,
        columns=tuple(arguments.columns),
    )
    return Order(
        model,
        data,
        protocol=arguments.protocol,
        settings=tuple(arguments.set),
        seed=arguments.seed,
        fresh=arguments.fresh,
        teacher=arguments.teacher,
    )


def _watch(running: Iterator[Happened], plan: Plan, place: Path) -> None:
    """Draw the trials' events until all are done, then the table of their scores."""
    from clozelab.cli.views.scores import table
    from clozelab.runs.directory import Run
    from clozelab.runs.events import Began, Ended, Said

    many, heard, sign = len(plan.orders()), set[str](), 0
    with resumable(running), progress() as bars:
        done = many - sum(1 for one in plan.orders() if Run(place / one.name).result() is None)
        trials = bars.add_task("runs", total=many, completed=done, told="") if many > 1 else None
        view: View | None = None
        for happened in running:
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
            elif speaks():
                heard |= {event.text} if isinstance(event, Said) else set()
                if isinstance(event, Began) and many > 1:
                    err.print(escape(happened.trial))
                view = view or View(bars)
                view.show(event)
    result = Run(place).result()
    if speaks() and result is not None:
        out.print(table(result))
        err.print(escape(f"{place}: the best is {result['best']}"))
    stop_after(place, sign)


def evaluate(arguments: argparse.Namespace) -> None:
    """Score a fine-tuned model, or measure a pretrained one on held-out text."""
    if (arguments.task is None) == (arguments.data is None):
        raise UserError(
            "evaluate needs a task or a labelled file for a fine-tuned model, or --data CORPUS for"
            " a pretrained one"
        )
    _losses(arguments) if arguments.data is not None else _scores(arguments)


def _scores(arguments: argparse.Namespace) -> None:
    from clozelab.cli.views.scores import scores
    from clozelab.files import check_output, write_text
    from clozelab.finetuning.files.hub import is_hub
    from clozelab.finetuning.files.lines import found as found_file
    from clozelab.finetuning.files.named import NAMED
    from clozelab.finetuning.request import Data
    from clozelab.runs.directory import machine_facts

    what = arguments.task
    if what in NAMED:
        Data(what, root=arguments.task_data).check()
    elif not is_hub(what) and found_file(Path(what)) is None:
        raise UserError(
            f"{what}: is neither a file here nor a known task; check the path, or see clozelab"
            " tasks"
        )
    if arguments.out is not None:
        check_output(Path(arguments.out), overwrite=arguments.overwrite)

    from clozelab.finetuning.predict import data_of, score

    given, part = loaded(arguments.model), arguments.split
    where = {"root": arguments.task_data, "columns": arguments.columns, "part": part}
    with err.status("scoring", spinner="line"):
        digests = data_of(given, what, **where).digests(part=part) if arguments.out else {}
        found = score(given, what, **where, device=arguments.device)
    out.print(scores(found))
    if arguments.out is not None:
        record = {
            "machine": machine_facts(),
            "model": arguments.model,
            "task": what,
            "digests": digests,
            "scores": found,
        }
        write_text(Path(arguments.out), json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def _losses(arguments: argparse.Namespace) -> None:
    from clozelab.cli.views.losses import table
    from clozelab.files import check_output, write_text
    from clozelab.runs.directory import machine_facts
    from clozelab.text.store.corpus import open_stores

    ((corpus, _),) = open_stores([arguments.data])  # before torch, which takes seconds to load
    if arguments.out is not None:
        check_output(Path(arguments.out), overwrite=arguments.overwrite)

    from clozelab.pretraining.evaluate import evaluate
    from clozelab.runs.events import means

    sums = evaluate(
        arguments.model,
        arguments.data,
        pairs=arguments.pairs,
        masks=arguments.masks,
        blocks=arguments.blocks,
        device=arguments.device,
    )
    out.print(table(means(sums)))
    if arguments.out is not None:
        record = {
            "machine": machine_facts(),
            **{name: getattr(arguments, name) for name in ("model", "pairs", "masks", "blocks")},
            "data": {"path": arguments.data, "fingerprint": corpus.manifest["fingerprint"]},
            "held_out": means(sums),
        }
        write_text(Path(arguments.out), json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def predict(arguments: argparse.Namespace) -> None:
    """Say what a fine-tuned model says of texts."""
    from clozelab.cli.texts import check_file
    from clozelab.cli.texts import examples as examples_of
    from clozelab.cli.views.predictions import lines, shown
    from clozelab.files import check_output

    if arguments.task is not None:
        _submit(arguments)
        return
    if arguments.split is not None:
        raise UserError("--split is one of a known task's: name that by --task, or leave it out")
    if arguments.out is not None:
        check_output(Path(arguments.out), overwrite=arguments.overwrite)
    check_file(arguments)
    from clozelab.finetuning.predict import fine_tuned

    given = loaded(arguments.model)
    examples = examples_of(arguments, given)
    predictions = _followed(arguments, given, examples)
    kind = type(fine_tuned(given)[0].kind)
    if out.is_terminal and arguments.out is None and not arguments.json:
        out.print(shown(kind, examples, predictions))
        return
    with _written(arguments.out) as file:
        for line in lines(kind, examples, predictions, as_json=arguments.json):
            print(line, file=file)


def _submit(arguments: argparse.Namespace) -> None:
    """Write the file that a benchmark takes."""
    from clozelab.finetuning.files.submission import check_submission, write_submission
    from clozelab.finetuning.request import Data

    if arguments.out is None:
        raise UserError("--task writes a submission: name its folder by --out DIR")
    if arguments.text or arguments.file is not None or arguments.json:
        raise UserError("--task brings its own texts and format: leave the others out")
    found = Data(arguments.task, root=arguments.task_data).found()
    split, folder = arguments.split or "test", Path(arguments.out)
    check_submission(found, split, folder=folder, overwrite=arguments.overwrite)

    from clozelab.finetuning.predict import fine_tuned

    given = loaded(arguments.model)
    task, _ = fine_tuned(given)
    _check_alike(arguments, task.kind, found)
    said = _followed(arguments, given, found.read(split))
    written = write_submission(found, split, predictions=said, folder=folder)
    err.print(escape(f"{written}: {len(said):,} predictions"))


def _check_alike(arguments: argparse.Namespace, kind: TaskKind, found: Found) -> None:
    """Refuse a model whose answers are none to the task's questions."""
    if found.kind != kind.name:
        raise UserError(
            f"--task {arguments.task}: is to {found.kind}, and {arguments.model} was tuned to"
            f" {kind.name}; name a model that was tuned on it"
        )
    if {*found.labels} != {*kind.label_names}:
        raise UserError(
            f"--task {arguments.task}: has the labels {', '.join(found.labels)}, not those of"
            f" {arguments.model}; name a model that was tuned on it"
        )


def _followed(arguments: argparse.Namespace, given: Loaded, examples: list[Any]) -> list[Any]:
    """The predictions, a bar drawn meanwhile."""
    from rich.progress import Progress

    from clozelab.finetuning.predict import follow

    following: Generator[tuple[int, int], None, list[Any]]
    following = follow(given, examples, device=arguments.device)
    with Progress(console=err, disable=not err.is_terminal, transient=True) as bars:
        task = bars.add_task("predicting", total=None)
        while True:
            try:
                done, many = next(following)
                bars.update(task, completed=done, total=many)
            except StopIteration as ended:
                found: list[Any] = ended.value
                return found


@contextmanager
def _written(place: str | None) -> Iterator[TextIO]:
    """Where predictions go: to a file, which appears whole, or to standard output."""
    if place is None:
        with suppress(BrokenPipeError):  # its reader has seen enough
            yield sys.stdout
        return
    from clozelab.files import write_text

    kept = StringIO()
    yield kept
    write_text(Path(place), kept.getvalue())
    err.print(escape(place))


def answer(arguments: argparse.Namespace) -> None:
    """Answer a question from a passage."""
    from clozelab.cli.views.predictions import answered
    from clozelab.finetuning.predict import fine_tuned, predict

    if arguments.top < 1:
        raise UserError(f"--top {arguments.top}: at least 1")
    question = sound(arguments.question, "--question")
    passage = read_text(arguments.passage, "--passage")
    for name, text in (("question", question), ("passage", passage)):
        if not text.strip():
            raise UserError(f"--{name}: is empty; give a text")
    given = loaded(arguments.model)
    task, _ = fine_tuned(given)
    if not task.kind.answers_questions:
        raise UserError(
            f"{arguments.model}: was tuned to {task.kind.name}, not to answer; use clozelab predict"
        )
    (found,) = predict(given, [(question, passage)], device=arguments.device)
    out.print(answered(found, passage, top=arguments.top), soft_wrap=not out.is_terminal)

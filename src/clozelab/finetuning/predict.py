"""Apply a fine-tuned model: texts, or a file of them, → what it says of each."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clozelab.errors import UserError
from clozelab.finetuning.evaluator import Evaluator
from clozelab.finetuning.files.columns import Asked
from clozelab.finetuning.files.named import NAMED
from clozelab.finetuning.files.splits import Found
from clozelab.finetuning.kinds import TaskKind
from clozelab.finetuning.request import Data
from clozelab.finetuning.task import TunedTask
from clozelab.finetuning.tuned import Tuned
from clozelab.models.load import Loaded
from clozelab.models.reader import TaskReader
from clozelab.runs.events import drained
from clozelab.training.world import join

_TOKENS = 16_384  # at a time


def predict(given: Loaded, inputs: Sequence[Any], *, device: str | None = None) -> list[Any]:
    """What the model says of each input.

    An input is a text or a pair of texts (classify, regress), a sentence or its words (tag), a
    question and its passage (answer), a text and its continuations (choose), or a document in
    sentences of words (coreference).
    """
    task, _ = fine_tuned(given)
    examples = [example(task.kind, value, number) for number, value in enumerate(inputs)]
    return drained(follow(given, examples, device=device))


def follow(
    given: Loaded, examples: Sequence[Any], *, device: str | None = None
) -> Generator[tuple[int, int], None, list[Any]]:
    """As `predict`, of examples, yielding how much is done out of how much."""
    task, model = fine_tuned(given)
    kind = task.kind.suited(examples, imported=task.imported)
    evaluator = Evaluator.of(kind, examples, reader_of(given, task))
    total = len(evaluator.tokenized.groups) - 1
    with join(device) as world:
        model = model.to(world.device)
        following = evaluator.follow(model, world.device, tokens=_TOKENS)
        while True:
            try:
                yield next(following), total
            except StopIteration as done:
                predictions: list[Any] = done.value
                return predictions


def score(
    given: Loaded,
    what: str,
    *,
    root: str | None = None,
    columns: Sequence[str] = (),
    part: str = "dev",
    device: str | None = None,
) -> dict[str, dict[str, float]]:
    """A fine-tuned model's scores on a part of a known task, or on a labelled file.

    A task may have several dev sets; `part` names them all. `columns` are those of the files that
    the model was tuned on, unless others are given.
    """
    task, _ = fine_tuned(given)
    data = data_of(given, what, root=root, columns=columns, part=part)
    found = data.found()
    if found.kind != task.kind.name:
        raise UserError(
            f"{what}: is a task to {found.kind}, and {given.place} was tuned to {task.kind.name}"
        )
    splits = [name for name in found.splits if name.startswith(part)]
    if not splits:
        raise UserError(
            f"{what}: has no {part} set with labels, only {', '.join(found.splits)}; clozelab"
            f" predict {given.place} --task {what} --out DIR writes its submission"
        )
    scores: dict[str, dict[str, float]] = {}
    for split in splits:
        examples = found.read(split)
        predictions = drained(follow(given, examples, device=device))
        scores[split] = _judging(task.kind, found).score(predictions, examples)
    return scores


def data_of(
    given: Loaded,
    what: str,
    *,
    root: str | None = None,
    columns: Sequence[str] = (),
    part: str = "dev",
) -> Data:
    """Where the examples are that `score` reads of a known task, or of a labelled file."""
    task, _ = fine_tuned(given)
    if what in NAMED:
        return Data(what, root=root)
    if part != "dev":
        raise UserError(f"--split {part}: is of a known task, and {what} is a file; leave it out")
    columns = tuple(columns) or task.columns
    labels = task.kind.label_names
    return Data(_word(task, what, columns), dev=what, columns=columns, labels=labels)


def _judging(kind: Any, found: Found) -> TaskKind:
    """The kind with the official metrics of the task it is judged by."""
    official = {name: found.settings[name] for name in kind.scoring if name in found.settings}
    judging: TaskKind = replace(kind, **official)
    return judging


def tabled(given: Loaded, file: str, *, columns: Sequence[str] = ()) -> list[Any]:
    """The examples of a table, whose labels need not be there; its columns as in `score`."""
    task, _ = fine_tuned(given)
    columns = tuple(columns) or task.columns
    return Data(_word(task, file, columns), test=file, columns=columns).found().read("test")


def _word(task: TunedTask, file: str, columns: Sequence[str]) -> str:
    """What a task of one's own files is called."""
    named = {word.partition("=")[0]: word.partition("=")[2] for word in columns}
    return task.kind.word(Path(file), Asked(columns=named), imported=task.imported)


def fine_tuned(given: Loaded) -> tuple[TunedTask, Tuned]:
    """The task and the model; refused if it was never tuned on one."""
    if given.task is None or not isinstance(given.model, Tuned):
        raise UserError(
            f"{given.place}: was not fine-tuned, so there is nothing it can say of a text; use"
            f" clozelab finetune {given.place} TASK --out DIR first"
        )
    return given.task, given.model


def reader_of(given: Loaded, task: TunedTask) -> TaskReader:
    """The reader for blocks as long as those the model was tuned on."""
    return given.reader(given.block_length(task.tuning.length))


def example(kind: TaskKind, given: Any, number: int) -> Any:
    """An input as an example of that kind, its label not known."""
    try:
        return kind.example(given, str(number))
    except (TypeError, ValueError, AttributeError):
        raise UserError(
            f"input {number}: is {given!r:.80}, and the model takes {kind.takes().words}"
        ) from None

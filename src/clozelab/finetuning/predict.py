"""Apply a fine-tuned model to texts, or to a file of them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.finetuning.evaluator import Evaluator
from clozelab.finetuning.files.columns import ReadOptions
from clozelab.finetuning.files.named import NAMED
from clozelab.finetuning.files.splits import TaskSplits
from clozelab.finetuning.kinds import TaskKind
from clozelab.finetuning.request import Data, columns_of
from clozelab.finetuning.task import TunedTask
from clozelab.finetuning.tuned import Tuned
from clozelab.models.model import Model
from clozelab.models.reader import TaskReader
from clozelab.remote.cache import local_file
from clozelab.runs.events import drained
from clozelab.training.memory import FORWARD_TOKENS
from clozelab.training.world import join


def predict(loaded: Model, inputs: Sequence[Any], *, device: str | None = None) -> list[Any]:
    """The prediction for each input.

    An input is a text or a pair of texts (classify, regress), a sentence or its words (tag), a
    question and its passage (answer), a text and its continuations (choose), or a document in
    sentences of words (coreference).
    """
    task, _ = fine_tuned(loaded)
    examples = [example(task.kind, value, number) for number, value in enumerate(inputs)]
    return drained(follow(loaded, examples, device=device))


def follow(
    loaded: Model,
    examples: Sequence[Any],
    *,
    device: str | None = None,
    counts: Counts | None = None,
) -> Generator[tuple[int, int], None, list[Any]]:
    """As `predict` for examples, yielding how much is done and how much there is.

    What was truncated is added to `counts`.
    """
    task, model = fine_tuned(loaded)
    kind = task.kind.suited(examples, imported=task.imported)
    evaluator = Evaluator.of(kind, examples, reader_of(loaded, task))
    if counts is not None:
        counts.merge(evaluator.tokenized.counts)
    with join(device) as world:
        model = model.to(world.device)
        return (yield from evaluator.follow(model, world.device, tokens=FORWARD_TOKENS))


def follow_score(
    loaded: Model,
    data: Data,
    *,
    part: str = "dev",
    device: str | None = None,
    place: str | None = None,
    counts: Counts | None = None,
) -> Generator[tuple[int, int], None, dict[str, dict[str, float]]]:
    """Score on a part of a known task or on a labelled file, yielding how much is done.

    A task may have several dev sets; `part` names them all. `place` is that of the model in errors.
    What was truncated is added to `counts`.
    """
    task, _ = fine_tuned(loaded)
    what, place = data.dev or data.task, place or loaded.place
    files = data.splits()
    check_suits(loaded, files, task=what, model=place)
    splits = [name for name in files.splits if name.startswith(part)]
    if not splits:
        raise UserError(
            f"{what}: has no {part} set with labels, only {', '.join(files.splits)}; clozelab"
            f" predict {place} --task {what} --out DIR writes its submission"
        )
    kind: Any = task.kind
    official = {name: files.settings[name] for name in kind.scoring if name in files.settings}
    judging: TaskKind = replace(kind, **official)
    scores: dict[str, dict[str, float]] = {}
    for split in splits:
        examples = files.read(split)
        predictions = yield from follow(loaded, examples, device=device, counts=counts)
        scores[split] = judging.score(predictions, examples)
    return scores


def check_suits(
    loaded: Model, splits: TaskSplits, *, task: str, model: str, exactly: bool = False
) -> None:
    """Refuse a model that was fine-tuned for another kind of task, other labels or other texts.

    The model may know more labels than the task has, unless it must know `exactly` those. Errors
    call the two `task` and `model`.
    """
    tuned, _ = fine_tuned(loaded)
    part: Any = splits.part
    asked, kind = part(**splits.settings), tuned.kind
    labels, known = {*asked.label_names}, {*kind.label_names}
    if splits.kind != kind.name:
        problem = f"is of kind {splits.kind}, but {model} was fine-tuned for {kind.name}"
    elif labels - known or (exactly and labels != known):
        problem = f"has the labels {', '.join(asked.label_names)}, not those of {model}"
    elif not tuned.imported and asked.takes() != kind.takes():
        problem = f"has {asked.takes().words} in an example, but {model} takes {kind.takes().words}"
    else:
        return
    raise UserError(f"{task}: {problem}; name a model that was fine-tuned on it")


def data_of(
    loaded: Model,
    what: str,
    *,
    root: str | None = None,
    columns: Sequence[str] = (),
    part: str = "dev",
) -> Data:
    """The data to score on: those of a known task, or a labelled file.

    `columns` are those of the files that the model was tuned on, unless others are given.
    """
    task, _ = fine_tuned(loaded)
    if what in NAMED:
        return Data(what, root=root)
    if part != "dev":
        raise UserError(f"--split {part}: is for known tasks, but {what} is a file; leave it out")
    columns = tuple(columns) or task.columns
    labels = task.kind.label_names
    return Data(_word(task, what, columns), dev=what, columns=columns, labels=labels)


def tabled(loaded: Model, file: str, *, columns: Sequence[str] = ()) -> list[Any]:
    """The examples of a table, with or without labels; `columns` as in `data_of`."""
    task, _ = fine_tuned(loaded)
    columns = tuple(columns) or task.columns
    return Data(_word(task, file, columns), test=file, columns=columns).splits().read("test")


def _word(task: TunedTask, file: str, columns: Sequence[str]) -> str:
    """The word for the task of a user's own file."""
    options = ReadOptions(columns=columns_of(columns))
    return task.kind.word(local_file(file), options, imported=task.imported)


def fine_tuned(loaded: Model) -> tuple[TunedTask, Tuned]:
    """The task and the model; one that was not fine-tuned is refused."""
    if loaded.task is None or not isinstance(loaded.module, Tuned):
        raise UserError(
            f"{loaded.place}: was not fine-tuned, so it cannot predict labels; use clozelab"
            f" finetune {loaded.place} TASK --out DIR first"
        )
    return loaded.task, loaded.module


def reader_of(loaded: Model, task: TunedTask) -> TaskReader:
    """The reader for blocks as long as those the model was tuned on."""
    return loaded.reader(
        loaded.block_length(task.tuning.length), special_tokens=task.special_tokens
    )


def example(kind: TaskKind, value: Any, number: int) -> Any:
    """An input as an unlabelled example of that kind."""
    try:
        return kind.example(value, str(number))
    except (TypeError, ValueError, AttributeError):
        raise UserError(
            f"input {number}: is {value!r:.80}, but the model takes {kind.takes().words}"
        ) from None

"""Apply a fine-tuned model: texts, or a file of them, → what it says of each."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from clozelab.contracts import UserError
from clozelab.encoder import Transformer
from clozelab.runs.events import drained
from clozelab.runs.judging import Judge
from clozelab.runs.lessons import Data
from clozelab.runs.load import Loaded
from clozelab.runs.reader import TaskReader
from clozelab.runs.taskfile import Assignment
from clozelab.runs.tuned import Tuned
from clozelab.tasks import Kind
from clozelab.tasks.examples import Choice, Document, Question, Sentences, Tagged
from clozelab.training.world import join

_TOKENS = 16_384  # at a time


def predict(given: Loaded, inputs: Sequence[Any], *, device: str | None = None) -> list[Any]:
    """What the model says of each input.

    An input is a text or a pair of texts (classify, regress), a sentence or its words (tag), a
    question and its passage (answer), a text and its continuations (choose), or a document in
    sentences of words (coreference).
    """
    task, _ = fine_tuned(given)
    examples = [example(task.kind, one, number) for number, one in enumerate(inputs)]
    return drained(follow(given, examples, device=device))


def follow(
    given: Loaded, examples: Sequence[Any], *, device: str | None = None
) -> Generator[tuple[int, int], None, list[Any]]:
    """As `predict`, of examples, yielding how much is done out of how much."""
    task, model = fine_tuned(given)
    judge = Judge.of(task.kind, examples, reader_of(given, task))
    many = len(judge.laid.groups) - 1
    with join(device) as world:
        model = model.to(world.device)
        following = judge.follow(model, world.device, tokens=_TOKENS)
        while True:
            try:
                yield next(following), many
            except StopIteration as done:
                found: list[Any] = done.value
                return found


def score(
    given: Loaded,
    what: str,
    *,
    root: str | None = None,
    columns: Sequence[str] = (),
    device: str | None = None,
) -> dict[str, dict[str, float]]:
    """A fine-tuned model's scores on a known task's dev sets, or on a labelled file."""
    task, _ = fine_tuned(given)
    if Path(what).exists():
        kind: Any = task.kind
        labels = getattr(kind, "labels", getattr(kind, "tags", ()))
        data = Data(_word(kind), dev=what, columns=tuple(columns), labels=labels)
    else:
        data = Data(what, root=root)
    found = data.found()
    if found.kind != task.kind.name:
        raise UserError(
            f"{what}: is a task to {found.kind}, and {given.place} was tuned to {task.kind.name}"
        )
    scores: dict[str, dict[str, float]] = {}
    judged: Any = task.kind
    for split in (name for name in found.splits if name.startswith("dev")):
        examples = found.read(split)
        predictions = drained(follow(given, examples, device=device))
        scores[split] = judged.score(predictions, examples)
    return scores


def tabled(given: Loaded, file: str, *, columns: Sequence[str] = ()) -> list[Any]:
    """The examples of a table, whose labels need not be there."""
    task, _ = fine_tuned(given)
    return Data(_word(task.kind), test=file, columns=tuple(columns)).found().read("test")


def _word(kind: Any) -> str:
    """What a task of one's own files is called."""
    return "pairs" if kind.name == "classify" and kind.pair else str(kind.name)


def fine_tuned(given: Loaded) -> tuple[Assignment, Tuned]:
    """The task and the model; refused if it was never tuned on one."""
    if given.task is None or not isinstance(given.model, Tuned):
        raise UserError(
            f"{given.place}: was not fine-tuned, so there is nothing it can say of a text; use"
            f" clozelab finetune {given.place} TASK --out DIR first"
        )
    return given.task, given.model


def reader_of(given: Loaded, task: Assignment) -> TaskReader:
    """The reader for blocks as long as those the model was tuned on."""
    encoder, length = given.recipe.encoder, task.tuning.length
    if isinstance(encoder, Transformer):
        length = min(length, encoder.positions, given.recipe.blocks.length)
    return TaskReader(given.recipe, given.tokenizer, length)


def example(kind: Kind, given: Any, number: int) -> Any:
    """An input as an example of that kind, its label not known."""
    name = str(number)
    if kind.name in ("classify", "regress"):
        first, second = (given, None) if isinstance(given, str) else given
        return Sentences(name, first, second)
    if kind.name == "tag":
        return Tagged(name, tuple(given.split() if isinstance(given, str) else given))
    if kind.name == "answer":
        question, passage = given
        return Question(name, question, passage)
    if kind.name == "choose":
        first, seconds = given
        return Choice(name, first, tuple(seconds))
    return Document(name, tuple(tuple(sentence) for sentence in given))

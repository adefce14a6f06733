"""Predictions: ask a fine-tuned model about texts, or write a benchmark's submission."""

from __future__ import annotations

import json as json_
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clozelab.api.models import opened
from clozelab.api.tasks import TaskFiles
from clozelab.api.texts import (
    count_empty,
    lines_of,
    read_text,
    refuse_empty,
    refuse_existing,
    shown_name,
    sound,
    write_lines,
)
from clozelab.api.watching import Watch
from clozelab.errors import UserError
from clozelab.nearest import counted
from clozelab.options import ModelLike, Overwrite, Place, Text, Texts, command, located
from clozelab.runs.options import Device

if TYPE_CHECKING:
    from clozelab.finetuning.examples import Span
    from clozelab.finetuning.kinds import TaskKind
    from clozelab.models.model import Model

_ENDS = re.compile("[\t\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")  # of a field or of a line


class Predictions(list[Any]):
    """What a fine-tuned model says of each of some examples."""

    def __init__(self, predictions: list[Any], examples: list[Any], kind: type[TaskKind]) -> None:
        super().__init__(predictions)
        self.examples, self.kind = examples, kind

    def lines(self, *, as_json: bool = False) -> Iterator[str]:
        """A line a prediction: fields with tabs between them, or JSON with probabilities."""
        for example, prediction in zip(self.examples, self, strict=True):
            if as_json:
                record = {**self._asked(example), **_named(prediction)}
                yield json_.dumps(record, ensure_ascii=False)
            else:
                fields = self.kind.fields(example, prediction)
                yield "\t".join(_ENDS.sub(" ", field) for field in fields)

    def _asked(self, example: Any) -> dict[str, Any]:
        """What the model was asked: the example without its label, a text alone by that word."""
        gold = self.kind.gold
        fields = {name: part for name, part in example._asdict().items() if name not in gold}
        if "second" in fields and fields["second"] is None:
            return {"id": fields["id"], "text": fields["first"]}
        return fields


def _named(value: Any) -> Any:
    """A prediction with the names of its fields, as JSON has it."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _named(part) for name, part in value._asdict().items()}
    return [_named(part) for part in value] if isinstance(value, tuple) else value


@dataclass(frozen=True, repr=False)
class PassageAnswer:
    """The answer to a question, with its rivals, and the passage that it is from."""

    passage: str
    span: Span
    top: int

    @property
    def text(self) -> str:
        """The answer; empty where the passage does not say."""
        return self.span.text

    def __repr__(self) -> str:
        rivals = self.span.best[: self.top]
        lines = [f"{each.probability:.1%} at {each.start:,}: {each.text}" for each in rivals]
        return "\n".join([self.text or "the passage does not say", *lines])


@command
def predict(
    model: ModelLike,
    *,
    text: Texts | None = None,
    file: Place | None = None,
    task: str | None = None,
    split: str | None = None,
    out: Place | None = None,
    overwrite: Overwrite = False,
    json: bool = False,
    device: Device | None = None,
    files: TaskFiles,
    watch: Watch,
) -> Predictions:
    """Predict with a fine-tuned model; with --task, write a benchmark's submission.

    Args:
        model: a fine-tuned run
        text: a text; give it twice for a pair
        file: a .txt file with one text per line (a tab between the two of a pair), or a table
            (standard input)
        task: a known task to write a submission for
        split: split of the task (test)
        out: the file to write, or with --task the folder of the submission
        json: print JSON lines with every probability
    """
    from clozelab.finetuning.request import Data

    if task is not None:
        if out is None:
            raise UserError("--task writes a submission; name its folder with --out DIR")
        if text is not None or file is not None or json:
            raise UserError(
                "--task has its own texts and format; leave out --text, --file and --json"
            )
        from clozelab.finetuning.files.splits import check_submission, write_submission

        data = Data(task, root=files.task_data, columns=tuple(files.columns))
        splits, folder, split = data.splits(), Path(out), split or "test"
        check_submission(splits, split, folder=folder, overwrite=overwrite)
        loaded, named = opened(model, watch), located(model, "model")

        from clozelab.finetuning.predict import check_suits

        check_suits(loaded, splits, task=f"--task {task}", model=named, exactly=True)
        predictions = _predicted(loaded, splits.read(split), device, watch)
        written = write_submission(splits, split, predictions=predictions, folder=folder)
        watch.say(f"{written}: {len(predictions):,} predictions")
        return predictions
    if split is not None:
        raise UserError("--split is for known tasks; name the task with --task, or leave it out")
    refuse_existing(out, overwrite=overwrite)
    if file not in (None, "-"):
        Data("", test=file).check()  # before a model is opened
    if text is None and file is None and sys.stdin.isatty():
        watch.say("enter texts, one per line, then Ctrl-D:")
    loaded = opened(model, watch)
    examples = _examples(loaded, text, file=file or "-", columns=files.columns, watch=watch)
    predictions = _predicted(loaded, examples, device, watch)
    if out is not None:
        write_lines(out, predictions.lines(as_json=json))
        watch.say(out)
    return predictions


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
        model: a run fine-tuned on a question-answering task
        question: the question
        passage: the text, or - for standard input
        top: candidates to show (3)
    """
    from clozelab.finetuning.predict import fine_tuned, predict

    if top < 1:
        raise UserError(f"--top {top}: must be at least 1")
    question, passage = sound(question, "--question"), read_text(passage, "--passage")
    refuse_empty([question], "--question")
    refuse_empty([passage], "--passage")
    loaded = opened(model, watch)
    kind = fine_tuned(loaded)[0].kind
    if not kind.answers_questions:
        place = located(model, "model")
        raise UserError(
            f"{place}: was fine-tuned for {kind.name}, not answer; use clozelab predict"
        )
    (span,) = predict(loaded, [(question, passage)], device=device)
    return PassageAnswer(passage, span, top)


def _predicted(loaded: Model, examples: list[Any], device: str | None, watch: Watch) -> Predictions:
    from clozelab.contracts import Counts
    from clozelab.finetuning.predict import fine_tuned, follow

    counts = Counts()
    work: Any = follow(loaded, examples, device=device, counts=counts)
    kind = type(fine_tuned(loaded)[0].kind)
    predictions = Predictions(watch.drain(work, "predicting", len(examples)), examples, kind)
    watch.warn(*counts.lines())
    return predictions


def _examples(
    loaded: Model, text: Sequence[str] | None, *, file: str, columns: Sequence[str], watch: Watch
) -> list[Any]:
    """The texts given, those of a table, or one a line of a file or of standard input."""
    from clozelab.finetuning.predict import example, fine_tuned, tabled

    task, _ = fine_tuned(loaded)
    if text is not None and file != "-":
        raise UserError("--file and --text cannot be combined; give one of them")
    if text is None and file != "-" and not file.endswith(".txt"):
        if Path(file).is_dir() and not task.kind.reads_folders:
            raise UserError(f"--file {file}: is a folder; name a file")
        return [task.kind.unlabelled(row) for row in tabled(loaded, file, columns=columns)]
    if columns:
        raise UserError("--columns names the columns of a table; leave it out with plain texts")
    least, most, words = task.kind.takes(imported=task.imported)
    if text is not None:  # each an example, or all of them one where the kind takes several
        texts = [sound(each, "--text") for each in text]
        if texts:
            refuse_empty(texts, "--text")
        rows = [texts] if most > 1 and texts else [[each] for each in texts]
        places = ["--text"] * len(rows)
        too_few, too_many = "give --text for each", "leave the others out"
    else:
        rows = list(task.kind.rows(lines_of(file)))
        places = [f"{shown_name(file)}:{number}" for number in range(1, len(rows) + 1)]
        too_few, too_many = "put a tab between the texts", "remove the tab, which separates texts"
    for row, place in zip(rows, places, strict=True):
        if not least <= len(row) <= most:
            what, fix = f"has {counted(len(row), 'text')}", too_many if len(row) > most else too_few
            if not "".join(row).strip():
                what, fix = "is empty", "remove the line"
            raise UserError(f"{place}: {what}, but the model takes {words}; {fix}")
    if text is None:
        count_empty(["".join(row) for row in rows], file, watch)
    return [example(task.kind, task.kind.joined(row), n) for n, row in enumerate(rows, 1)]

"""Which of several texts continues another (BERT §4.4: SWAG; RoBERTa §4.3, ALBERT A.2: RACE)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from clozelab.contracts import Counts, Reader, Row, Targets
from clozelab.errors import UserError
from clozelab.finetuning.examples import Choice, Floats, Picked, likelihoods
from clozelab.finetuning.files.choices import choices
from clozelab.finetuning.files.columns import Asked, Source
from clozelab.finetuning.files.named import Setting
from clozelab.finetuning.kinds.kind import (
    TaskKind,
    Texts,
    check_known,
    check_metrics,
)
from clozelab.finetuning.kinds.summaries import CUT, Activation, Pool, check_head, head_parameters
from clozelab.finetuning.tokenized import TokenizedExamples, stacked
from clozelab.packed import offsets

if TYPE_CHECKING:
    from clozelab.finetuning.heads.summary import SummaryHead

METRICS = ("accuracy",)


@dataclass(frozen=True)
class Choose(TaskKind):
    """At most `choices` continuations an example, each scored beside the first text by itself.

    A continuation keeps its last `limit` tokens, for that is where RACE's answers are; the first
    text keeps what then fits of its beginning. The rest is as in `Classify`.
    """

    name: ClassVar[str] = "choose"
    from_examples: ClassVar[tuple[str, ...]] = ("choices",)
    outputs: ClassVar[tuple[str, ...]] = ("choices",)
    reads_folders: ClassVar[bool] = True  # RACE's

    choices: int = 4  # SWAG's and RACE's
    metrics: tuple[str, ...] = METRICS
    limit: int = 128
    summary: Activation = "tanh"
    pool: Pool = "mark"
    drop_first: bool = False
    bias: bool = True
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_head(self)
        check_metrics(self.metrics, METRICS)
        if self.choices < 2:
            raise UserError(f"choices = {self.choices}: must be at least 2")
        if self.limit < 1:
            raise UserError(f"limit = {self.limit}: must be at least 1, for instance 128")

    @classmethod
    def read(
        cls, source: Source, asked: Asked, *, settings: Mapping[str, Setting], counts: Counts
    ) -> list[Choice]:
        """Rows of a table, or RACE's articles."""
        return choices(source, asked, counts=counts)

    @classmethod
    def example(cls, given: Any, name: str) -> Choice:
        """A text and its continuations."""
        first, seconds = given
        return Choice(name, first, tuple(seconds))

    @classmethod
    def joined(cls, texts: Sequence[str]) -> Any:
        """The first text, and the others."""
        return texts[0], texts[1:]

    def takes(self, *, imported: bool = False) -> Texts:
        """A text and two others or more."""
        return Texts(3, sys.maxsize, "a text and its continuations")

    @classmethod
    def derive(cls, examples: Sequence[Choice], *, labels: tuple[str, ...]) -> dict[str, Setting]:
        """As many choices as the example with the most has."""
        return {"choices": max(len(example.seconds) for example in examples)}

    def suited(self, examples: Sequence[Choice], *, imported: bool = False) -> Choose:
        """With as many choices as these examples have."""
        most = max([self.choices, *(len(example.seconds) for example in examples)])
        return replace(self, choices=most)

    def tokenize(
        self, examples: Sequence[Choice], reader: Reader, *, training: bool = False
    ) -> TokenizedExamples:
        """A group an example: a block and a slot for each continuation.

        The last block has the slots of the continuations that are missing, so that a group always
        has `choices`; its first slot has the label.
        """
        for example in examples:
            self._check(example)
        first = reader.pieces([example.first for example in examples])
        second = reader.pieces([text for example in examples for text in example.seconds])
        groups = offsets([len(example.seconds) for example in examples])
        room = reader.length - reader.marks(2)
        rows: list[Row] = []
        counts = Counts()
        for number, example in enumerate(examples):
            texts = range(int(groups[number]), int(groups[number + 1]))
            cuts = [self._cut(first.text(number), second.text(text), room) for text in texts]
            short = [second.text(text) != b for text, (_, b) in zip(texts, cuts, strict=True)]
            counts.add(CUT, example.id, int(any(a != first.text(number) for a, _ in cuts)))
            counts.add("choices cut to fit", example.id, sum(short))
            rows += [reader.lay(first.part(a), second.part(b)) for a, b in cuts]
        sizes = np.ones(len(rows), dtype=np.int64)
        sizes[groups[1:] - 1] += self.choices - np.diff(groups)
        labels = np.full((len(examples), self.choices), Targets.IGNORED)
        labels[:, 0] = [_label(example) for example in examples]
        there = np.arange(self.choices) < np.diff(groups)[:, None]
        columns = {
            "at": np.repeat(np.array([row.mark for row in rows], dtype=np.int64), sizes),
            "there": there.reshape(-1).astype(np.int64),
            "labels": labels.reshape(-1),
        }
        return stacked(rows, Targets(offsets(sizes), columns), groups=groups, counts=counts)

    def build(self, width: int) -> SummaryHead:
        """The head with fresh weights."""
        from clozelab.finetuning.heads.summary import SummaryHead

        return SummaryHead(self, width, 1, choices=self.choices)

    def parameters(self, width: int) -> dict[str, int]:
        """Parameters of the head, by part."""
        return head_parameters(self, width, 1)

    def decode(
        self, tokenized: TokenizedExamples, outputs: list[Floats], examples: Sequence[Choice]
    ) -> list[Picked]:
        """The likeliest continuation of each example."""
        predictions = []
        for rows, example in zip(outputs, examples, strict=True):
            probabilities = likelihoods(rows[: len(example.seconds), 0])
            best = int(probabilities.argmax())
            predictions.append(Picked(best, tuple(probabilities.tolist())))
        return predictions

    def score(self, predictions: Sequence[Picked], examples: Sequence[Choice]) -> dict[str, float]:
        """The metrics over the examples whose continuation is known."""
        from clozelab.finetuning.metrics import classes

        known = [
            (str(example.label), str(prediction.label))
            for prediction, example in zip(predictions, examples, strict=True)
            if example.label is not None
        ]
        check_known(known)
        gold, predicted = [pair[0] for pair in known], [pair[1] for pair in known]
        return {"accuracy": classes.accuracy(gold, predicted)}

    @classmethod
    def fields(cls, example: Choice, prediction: Picked) -> list[str]:
        """Which continuation, how likely it is, and its text."""
        probability = max(prediction.probabilities)
        return [str(prediction.label), f"{probability:.4f}", example.seconds[prediction.label]]

    @classmethod
    def texts(cls, example: Choice) -> list[str]:
        """The text with each of its continuations."""
        return [f"{example.first} {second}" for second in example.seconds]

    @property
    def two_texts(self) -> bool:
        """Always."""
        return True

    def _cut(self, first: slice, second: slice, room: int) -> tuple[slice, slice]:
        """The tokens of a text and of its continuation that fit."""
        begin = max(second.start, second.stop - min(self.limit, room))
        rest = room - (second.stop - begin)
        return slice(first.start, min(first.stop, first.start + rest)), slice(begin, second.stop)

    def _check(self, example: Choice) -> None:
        count = len(example.seconds)
        if not 1 <= count <= self.choices:
            raise UserError(
                f"example {example.id} has {count} choices and the task takes 1 to {self.choices}:"
                " leave it out, or make the task with more choices"
            )
        if example.label is not None and not 0 <= example.label < count:
            raise UserError(
                f"example {example.id}: choice {example.label} is said to be right, but there are"
                f" {count}, counted from 0; fix it"
            )


def _label(example: Choice) -> int:
    return Targets.IGNORED if example.label is None else example.label

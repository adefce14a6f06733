"""Which of several texts continues another (BERT §4.4: SWAG; RoBERTa §4.3, ALBERT A.2: RACE)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated, Any, ClassVar

import numpy as np

from clozelab.contracts import Counts, Reader, Row, Targets
from clozelab.errors import UserError
from clozelab.finetuning.examples import (
    Choice,
    Floats,
    Picked,
    TokenizedExamples,
    likelihoods,
    place_of,
    stacked,
)
from clozelab.finetuning.files import choices as files
from clozelab.finetuning.files.named import Setting
from clozelab.finetuning.kinds.kind import CUT, SummaryKind, Texts, space, strings
from clozelab.finetuning.metrics.classes import accuracy
from clozelab.packed import offsets
from clozelab.ranges import at_least


@dataclass(frozen=True)
class Choose(SummaryKind):
    """Continuations of a text, each scored together with it in a block of its own.

    A continuation keeps its last `limit` tokens, since RACE's answers are there; the first text
    keeps as much of its beginning as then fits.
    """

    name: ClassVar[str] = "choose"
    from_examples: ClassVar[tuple[str, ...]] = ("choices",)
    outputs: ClassVar[tuple[str, ...]] = ("choices",)
    inputs: ClassVar[Texts] = Texts(3, sys.maxsize, "a text and its continuations")
    reads_folders: ClassVar[bool] = True  # RACE's
    known_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)

    choices: Annotated[int, at_least(2)] = 4  # the most of an example; 4 in SWAG and RACE
    metrics: tuple[str, ...] = ("accuracy",)
    limit: Annotated[int, at_least(1, "must be at least 1, for instance 128")] = 128

    read = staticmethod(files.choices)

    @classmethod
    def example(cls, value: Any, name: str) -> Choice:
        """A text and its continuations."""
        first, seconds = value
        (text,) = strings([first])
        return Choice(name, text, strings(seconds))

    @classmethod
    def joined(cls, texts: Sequence[str]) -> Any:
        """The first text, and the others."""
        return texts[0], texts[1:]

    @classmethod
    def derive(cls, examples: Sequence[Choice], *, labels: tuple[str, ...]) -> dict[str, Setting]:
        """The largest number of choices of an example."""
        return {"choices": max(len(example.seconds) for example in examples)}

    def suited(self, examples: Sequence[Choice], *, imported: bool = False) -> Choose:
        """The kind with as many choices as these examples have."""
        most = max([self.choices, *(len(example.seconds) for example in examples)])
        return replace(self, choices=most)

    def tokenize(
        self, examples: Sequence[Choice], reader: Reader, *, training: bool = False
    ) -> TokenizedExamples:
        """Examples as groups of blocks, with a block and a slot for each continuation.

        The last block also has the slots of missing continuations, so that a group always has
        `choices` slots; the first slot has the label.
        """
        groups = offsets([self._count_choices(example) for example in examples])
        first = reader.pieces([example.first for example in examples])
        second = reader.pieces([text for example in examples for text in example.seconds])
        room = space(reader, 2)
        rows: list[Row] = []
        counts = Counts()
        for number, example in enumerate(examples):
            full = first.text(number)
            texts = [second.text(text) for text in range(groups[number], groups[number + 1])]
            cuts = [self._truncate(full, text, room) for text in texts]
            shortened = [text != b for text, (_, b) in zip(texts, cuts, strict=True)]
            counts.add(CUT, place_of(example), int(any(a != full for a, _ in cuts)))
            counts.add("choices truncated to fit", place_of(example), sum(shortened))
            rows += [reader.with_special_tokens(first.part(a), second.part(b)) for a, b in cuts]
        sizes = np.ones(len(rows), dtype=np.int64)
        sizes[groups[1:] - 1] += self.choices - np.diff(groups)
        labels = np.full((len(examples), self.choices), Targets.IGNORED)
        known = [example.label for example in examples]
        labels[:, 0] = [Targets.IGNORED if label is None else label for label in known]
        exists = np.arange(self.choices) < np.diff(groups)[:, None]
        columns = {
            "at": np.repeat(np.array([row.mark for row in rows], dtype=np.int64), sizes),
            "exists": exists.reshape(-1).astype(np.int64),
            "labels": labels.reshape(-1),
        }
        return stacked(rows, Targets(offsets(sizes), columns), groups=groups, counts=counts)

    def decode(
        self, tokenized: TokenizedExamples, outputs: list[Floats], examples: Sequence[Choice]
    ) -> list[Picked]:
        """The likeliest continuation of each example."""
        predictions = []
        for rows, example in zip(outputs, examples, strict=True):
            probabilities = likelihoods(rows[: len(example.seconds), 0])
            predictions.append(Picked(int(probabilities.argmax()), tuple(probabilities.tolist())))
        return predictions

    def measure(self, metric: str, gold: list[int], predicted: list[int]) -> float:
        """Accuracy."""
        return accuracy(gold, predicted)

    def constant(self, examples: Sequence[Choice]) -> dict[str, float]:
        """The expected score of guessing."""
        known = [len(example.seconds) for example in examples if example.label is not None]
        guess = 100 * fmean(1 / count for count in known) if known else None
        return {} if guess is None else dict.fromkeys(self.metrics, guess)

    @classmethod
    def fields(cls, example: Choice, prediction: Picked) -> list[str]:
        """Which continuation, how likely it is, and its text."""
        probability = max(prediction.probabilities)
        return [str(prediction.label), f"{probability:.4f}", example.seconds[prediction.label]]

    @classmethod
    def texts(cls, example: Choice) -> list[str]:
        """The text with each of its continuations."""
        return [f"{example.first} {second}" for second in example.seconds]

    def _truncate(self, first: slice, second: slice, room: int) -> tuple[slice, slice]:
        """A text and its continuation truncated to `room` tokens."""
        begin = max(second.start, second.stop - min(self.limit, room))
        rest = room - (second.stop - begin)
        return slice(first.start, min(first.stop, first.start + rest)), slice(begin, second.stop)

    def _count_choices(self, example: Choice) -> int:
        """The number of continuations of an example; impossible numbers and labels are refused."""
        count = len(example.seconds)
        if not 1 <= count <= self.choices:
            raise UserError(
                f"{place_of(example)} has {count} choices but the task takes 1 to"
                f" {self.choices}; leave it out, or set up the task with more choices"
            )
        if example.label is not None and not 0 <= example.label < count:
            raise UserError(
                f"{place_of(example)}: choice {example.label} is labelled as right, but"
                f" there are {count}, counted from 0; fix it"
            )
        return count

"""One of several classes, or a number, for a text or a pair of texts (BERT §4.1: GLUE)."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from clozelab.contracts import Counts, Reader, Row, Targets
from clozelab.errors import UserError
from clozelab.finetuning.examples import (
    Class,
    Floats,
    Number,
    Sentences,
    TokenizedExamples,
    likelihoods,
    place_of,
    stacked,
)
from clozelab.finetuning.files.columns import ReadOptions, Source
from clozelab.finetuning.files.named import Setting
from clozelab.finetuning.files.sentences import has_pair, sentences
from clozelab.finetuning.kinds.kind import (
    CUT,
    Settings,
    SummaryKind,
    Texts,
    space,
    strings,
)
from clozelab.finetuning.metrics import classes, numbers


@dataclass(frozen=True, kw_only=True)
class SentenceKind(SummaryKind):
    """A kind whose examples are `Sentences`: one text, or with `pair` two."""

    from_examples: ClassVar[tuple[str, ...]] = ("labels", "pair")

    pair: bool = False

    @classmethod
    def read(
        cls, source: Source, options: ReadOptions, *, settings: Settings, counts: Counts
    ) -> list[Sentences]:
        """Rows of a table."""
        pair = bool(settings.get("pair"))
        return sentences(source, options, pair=pair, numeric=cls.numeric, counts=counts)

    @classmethod
    def example(cls, value: Any, name: str) -> Sentences:
        """A text, or two."""
        first, second = (value, None) if isinstance(value, str) else strings(value)
        return Sentences(name, first, second)

    def takes(self, *, imported: bool = False) -> Texts:
        """One text or two."""
        if imported:
            return Texts(1, 2, "one text or two")
        return Texts(2, 2, "two texts") if self.pair else self.inputs

    def suited(self, examples: Sequence[Sentences], *, imported: bool = False) -> Self:
        """The kind with pairs if the examples have them, for an imported model."""
        if not imported:
            return self
        return replace(self, pair=any(example.second is not None for example in examples))

    def tokenize(
        self, examples: Sequence[Sentences], reader: Reader, *, training: bool = False
    ) -> TokenizedExamples:
        """One block and one slot for each example."""
        rows, counts = self._rows(examples, reader)
        labels = [
            Targets.IGNORED if example.label is None else self.target(example)
            for example in examples
        ]
        columns = {
            "at": np.array([row.mark for row in rows], dtype=np.int64),
            "labels": np.array(labels, dtype=np.float64 if self.numeric else np.int64),
        }
        return stacked(rows, Targets(np.arange(len(rows) + 1), columns), counts=counts)

    @abstractmethod
    def target(self, example: Sentences) -> float:
        """The label of an example as a target of the head."""

    def _rows(self, examples: Sequence[Sentences], reader: Reader) -> tuple[list[Row], Counts]:
        """A block for each example of one text or two, truncated at their ends."""
        for example in examples:
            if (example.second is not None) != self.pair:
                has, takes = ("one text", "two") if self.pair else ("two texts", "one")
                raise UserError(
                    f"{place_of(example)} has {has} and the task takes {takes}:"
                    f" give {takes} in every example"
                )
        texts = [reader.pieces([example.first for example in examples])]
        if self.pair:
            texts.append(reader.pieces([example.second or "" for example in examples]))
        room = space(reader, len(texts))
        rows, counts = [], Counts()
        for number, example in enumerate(examples):
            parts = [pieces.text(number) for pieces in texts]
            sizes = [part.stop - part.start for part in parts]
            fit = _truncated_sizes(sizes, room)
            counts.add(CUT, place_of(example), int(fit != sizes))
            cut = [
                pieces.part(slice(part.start, part.start + size))
                for pieces, part, size in zip(texts, parts, fit, strict=True)
            ]
            rows.append(reader.with_special_tokens(*cut))
        return rows, counts

    @staticmethod
    def shown(example: Sentences) -> str:
        """The texts of an example on a line."""
        return example.first if example.second is None else f"{example.first} | {example.second}"


@dataclass(frozen=True)
class Classify(SentenceKind):
    """Classes by name; `positive` is the one whose F1 is computed."""

    name: ClassVar[str] = "classify"
    words: ClassVar[Mapping[str, Settings]] = {"classify": {"pair": False}, "pairs": {"pair": True}}
    label_field: ClassVar[str | None] = "labels"
    class_fields: ClassVar[tuple[str, ...]] = ("positive",)
    scoring: ClassVar[tuple[str, ...]] = ("metrics", "positive")
    outputs: ClassVar[tuple[str, ...]] = ("labels",)
    known_metrics: ClassVar[tuple[str, ...]] = ("accuracy", "f1", "macro_f1", "matthews")

    labels: tuple[str, ...]
    metrics: tuple[str, ...] = ("accuracy",)
    positive: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        has_positive = "f1" in self.metrics or self.positive is not None
        if has_positive and self.positive not in self.labels:
            raise UserError(
                f"positive = {self.positive!r}: F1 is that of one class, so name one of"
                f" {', '.join(self.labels)}, or ask for macro_f1"
            )

    @classmethod
    def stand_in(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        """Two classes."""
        positive = str(table.get("positive", "1"))
        return {"labels": [positive, f"not {positive}"], "positive": positive}

    def word(self, file: Path, options: ReadOptions, *, imported: bool = False) -> str:
        """By whether it has pairs; of an imported model, by the columns of the file."""
        pair = has_pair(file, options) if imported else self.pair
        return "pairs" if pair else self.name

    def target(self, example: Sentences) -> float:
        """The number of its class."""
        if example.label not in self.labels:
            raise UserError(
                f"{place_of(example)}: its label {example.label!r} is none of"
                f" {', '.join(self.labels)}; fix it, or name it among the labels"
            )
        return self.labels.index(str(example.label))

    def decode(
        self, tokenized: TokenizedExamples, outputs: list[Floats], examples: Sequence[Sentences]
    ) -> list[Class]:
        """The most probable class of each example."""
        likely = [likelihoods(rows[0]).tolist() for rows in outputs]
        by_name = [dict(zip(self.labels, row, strict=True)) for row in likely]
        return [Class(max(row, key=row.__getitem__), row) for row in by_name]

    def measure(self, metric: str, gold: list[str], predicted: list[str]) -> float:
        """The metric of that name; F1 is that of the positive class."""
        if metric == "f1":
            return classes.f1(gold, predicted, positive=str(self.positive))
        score: float = getattr(classes, metric)(gold, predicted)
        return score

    def constant(self, examples: Sequence[Sentences]) -> dict[str, float]:
        """The scores of the most frequent class."""
        gold = [str(example.label) for example in examples if example.label is not None]
        if not gold:
            return {}
        (majority, _), *_ = Counter(gold).most_common(1)
        return {name: self.measure(name, gold, [majority] * len(gold)) for name in self.metrics}

    @classmethod
    def fields(cls, example: Sentences, prediction: Class) -> list[str]:
        """The class, how likely it is, and the text."""
        probability = prediction.probabilities[prediction.label]
        return [prediction.label, f"{probability:.4f}", cls.shown(example)]


@dataclass(frozen=True)
class Regress(SentenceKind):
    """Numbers as the examples have them, never rescaled (STS-B), by squared error."""

    name: ClassVar[str] = "regress"
    numeric: ClassVar[bool] = True
    known_metrics: ClassVar[tuple[str, ...]] = ("pearson", "spearman")

    metrics: tuple[str, ...] = ("pearson", "spearman")

    @classmethod
    def file_settings(cls, source: Source, options: ReadOptions) -> dict[str, Setting]:
        """Pairs, by the columns."""
        return {"pair": has_pair(source, options)}

    def target(self, example: Sentences) -> float:
        """The number itself."""
        if not isinstance(example.label, int | float) or not isfinite(example.label):
            raise UserError(f"{place_of(example)}: {example.label!r} is not a number; give one")
        if example.label == Targets.IGNORED:
            # That value marks a missing label; the next float32 is used instead.
            return float(np.nextafter(np.float32(Targets.IGNORED), np.float32(0)))
        return float(example.label)

    def decode(
        self, tokenized: TokenizedExamples, outputs: list[Floats], examples: Sequence[Sentences]
    ) -> list[Number]:
        """The number of each example."""
        return [Number(float(rows[0, 0])) for rows in outputs]

    def measure(self, metric: str, gold: list[float], predicted: list[float]) -> float:
        """A correlation."""
        score: float = getattr(numbers, metric)(gold, predicted)
        return score

    def constant(self, examples: Sequence[Sentences]) -> dict[str, float]:
        """No correlation."""
        return dict.fromkeys(self.metrics, 0.0)

    @classmethod
    def fields(cls, example: Sentences, prediction: Number) -> list[str]:
        """The number and the text."""
        return [f"{prediction.value:.4f}", cls.shown(example)]


def _truncated_sizes(sizes: list[int], room: int) -> list[int]:
    """How much of one text or two to keep: the longer loses its last tokens, then both in turn.

    As in BERT's code, the second text loses the first of those.
    """
    if len(sizes) == 1:
        return [min(sizes[0], room)]
    first, second = sizes
    excess = max(0, first + second - room)
    from_longer = min(excess, abs(first - second))
    rest = excess - from_longer
    return [
        first - from_longer * (first > second) - rest // 2,
        second - from_longer * (second > first) - (rest + 1) // 2,
    ]

"""One of several classes for a text or a pair of texts (BERT §4.1: GLUE)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from clozelab.contracts import Counts, Reader, Targets
from clozelab.errors import UserError
from clozelab.finetuning.examples import Class, Floats, Sentences, likelihoods
from clozelab.finetuning.files.columns import Asked, Source
from clozelab.finetuning.files.named import Setting
from clozelab.finetuning.files.sentences import has_pair, sentences
from clozelab.finetuning.kinds.kind import (
    check_known,
    check_metrics,
    check_names,
    in_order,
)
from clozelab.finetuning.kinds.summaries import (
    Activation,
    Pool,
    SentenceKind,
    check_head,
    head_parameters,
    shown_texts,
    tokenize_texts,
)
from clozelab.finetuning.tokenized import TokenizedExamples, stacked

if TYPE_CHECKING:
    from clozelab.finetuning.heads.summary import SummaryHead

METRICS = ("accuracy", "f1", "macro_f1", "matthews")


@dataclass(frozen=True)
class Classify(SentenceKind):
    """Classes by name; `positive` is the one whose F1 is meant.

    `summary` is the activation after the dense layer ("none": there is no such layer), `pool` which
    vector stands for a block, `drop_first` drops out before that layer as well as after it.
    """

    name: ClassVar[str] = "classify"
    words: ClassVar[Mapping[str, Mapping[str, Setting]]] = {
        "classify": {"pair": False},
        "pairs": {"pair": True},
    }
    label_field: ClassVar[str | None] = "labels"
    scoring: ClassVar[tuple[str, ...]] = ("metrics", "positive")
    outputs: ClassVar[tuple[str, ...]] = ("labels",)

    labels: tuple[str, ...]
    pair: bool = False
    metrics: tuple[str, ...] = ("accuracy",)
    positive: str | None = None
    summary: Activation = "tanh"
    pool: Pool = "mark"
    drop_first: bool = False
    bias: bool = True
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_head(self)
        check_metrics(self.metrics, METRICS)
        check_names(self.labels, "labels")
        wanted = "f1" in self.metrics or self.positive is not None
        if wanted and self.positive not in self.labels:
            raise UserError(
                f"positive = {self.positive!r}: F1 is that of one class, so name one of"
                f" {', '.join(self.labels)}, or ask for macro_f1"
            )

    @classmethod
    def read(
        cls, source: Source, asked: Asked, *, settings: Mapping[str, Setting], counts: Counts
    ) -> list[Sentences]:
        """Rows of a table."""
        return sentences(source, asked, pair=bool(settings.get("pair")), counts=counts)

    @classmethod
    def labels_of(cls, examples: Sequence[Sentences]) -> tuple[str, ...]:
        """Every class."""
        return in_order(str(one.label) for one in examples if one.label is not None)

    @classmethod
    def stand_in(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        """Two classes."""
        positive = str(table.get("positive", "1"))
        return {"labels": [positive, f"not {positive}"], "positive": positive}

    def word(self, file: Path, asked: Asked, *, imported: bool = False) -> str:
        """By whether it has pairs; of an imported model, by the columns of the file."""
        pair = has_pair(file, asked) if imported else self.pair
        return "pairs" if pair else self.name

    def tokenize(
        self, examples: Sequence[Sentences], reader: Reader, *, training: bool = False
    ) -> TokenizedExamples:
        """One block and one slot an example."""
        rows, counts = tokenize_texts(examples, reader, pair=self.pair)
        columns = {
            "at": np.array([row.mark for row in rows], dtype=np.int64),
            "labels": np.array([self._number(example) for example in examples], dtype=np.int64),
        }
        return stacked(rows, Targets(np.arange(len(rows) + 1), columns), counts=counts)

    def build(self, width: int) -> SummaryHead:
        """The head with fresh weights."""
        from clozelab.finetuning.heads.summary import SummaryHead

        return SummaryHead(self, width, len(self.labels))

    def parameters(self, width: int) -> dict[str, int]:
        """Parameters of the head, by part."""
        return head_parameters(self, width, len(self.labels))

    def decode(
        self, tokenized: TokenizedExamples, outputs: list[Floats], examples: Sequence[Sentences]
    ) -> list[Class]:
        """The likeliest class of each example."""
        predictions = []
        for rows in outputs:
            probabilities = likelihoods(rows[0])
            by_name = dict(zip(self.labels, probabilities.tolist(), strict=True))
            predictions.append(Class(self.labels[int(probabilities.argmax())], by_name))
        return predictions

    def score(
        self, predictions: Sequence[Class], examples: Sequence[Sentences]
    ) -> dict[str, float]:
        """The metrics over the examples whose label is known."""
        known = [
            (str(example.label), prediction.label)
            for prediction, example in zip(predictions, examples, strict=True)
            if example.label is not None
        ]
        check_known(known)
        gold, predicted = [pair[0] for pair in known], [pair[1] for pair in known]
        return {name: self._measure(name, gold, predicted) for name in self.metrics}

    @classmethod
    def fields(cls, example: Sentences, prediction: Class) -> list[str]:
        """The class, how likely it is, and the text."""
        probability = prediction.probabilities[prediction.label]
        return [prediction.label, f"{probability:.4f}", shown_texts(example)]

    def _measure(self, name: str, gold: list[str], predicted: list[str]) -> float:
        from clozelab.finetuning.metrics import classes

        if name == "f1":
            assert self.positive is not None, "checked when made"
            return classes.f1(gold, predicted, positive=self.positive)
        measures = {
            "accuracy": classes.accuracy,
            "macro_f1": classes.macro_f1,
            "matthews": classes.matthews,
        }
        return measures[name](gold, predicted)

    def _number(self, example: Sentences) -> int:
        if example.label is None:
            return Targets.IGNORED
        if example.label not in self.labels:
            raise UserError(
                f"example {example.id}: its label {example.label!r} is none of"
                f" {', '.join(self.labels)}; fix it, or name it among the labels"
            )
        return self.labels.index(str(example.label))

"""One of several classes for a text or a pair of texts (BERT §4.1: GLUE)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from clozelab.errors import UserError
from clozelab.finetuning.examples import Class, Floats, Sentences, TokenizedExamples, likelihoods
from clozelab.finetuning.files.columns import ReadOptions
from clozelab.finetuning.files.sentences import has_pair
from clozelab.finetuning.kinds.kind import Settings, in_order
from clozelab.finetuning.kinds.summaries import SentenceKind, shown_texts
from clozelab.finetuning.metrics import classes

_MEASURES = {
    "accuracy": classes.accuracy,
    "macro_f1": classes.macro_f1,
    "matthews": classes.matthews,
}


@dataclass(frozen=True)
class Classify(SentenceKind):
    """Classes by name; `positive` is the one whose F1 is meant."""

    name: ClassVar[str] = "classify"
    words: ClassVar[Mapping[str, Settings]] = {"classify": {"pair": False}, "pairs": {"pair": True}}
    label_field: ClassVar[str | None] = "labels"
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
    def labels_of(cls, examples: Sequence[Sentences]) -> tuple[str, ...]:
        """Every class."""
        return in_order(str(example.label) for example in examples if example.label is not None)

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
                f"example {example.id}: its label {example.label!r} is none of"
                f" {', '.join(self.labels)}; fix it, or name it among the labels"
            )
        return self.labels.index(str(example.label))

    def build(self, width: int) -> Any:
        """The head with fresh weights."""
        from clozelab.finetuning.heads.summary import SummaryHead

        return SummaryHead(self, width, len(self.labels))

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

    def measure(self, metric: str, gold: list[str], predicted: list[str]) -> float:
        """By name, but for the F1 of the positive class."""
        if metric == "f1":
            return classes.f1(gold, predicted, positive=str(self.positive))
        return _MEASURES[metric](gold, predicted)

    @classmethod
    def fields(cls, example: Sentences, prediction: Class) -> list[str]:
        """The class, how likely it is, and the text."""
        probability = prediction.probabilities[prediction.label]
        return [prediction.label, f"{probability:.4f}", shown_texts(example)]

"""A number for a text or a pair of texts (BERT §4.1: STS-B), by squared error on its own scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from clozelab.contracts import Counts, Reader, Targets
from clozelab.errors import UserError
from clozelab.finetuning.examples import Floats, Number, Sentences
from clozelab.finetuning.files.columns import Asked, Source
from clozelab.finetuning.files.named import Setting
from clozelab.finetuning.files.sentences import has_pair, sentences
from clozelab.finetuning.kinds.kind import check_known, check_metrics
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

METRICS = ("pearson", "spearman")


@dataclass(frozen=True)
class Regress(SentenceKind):
    """Numbers as the examples have them, never rescaled; the rest is as in `Classify`."""

    name: ClassVar[str] = "regress"

    pair: bool = False
    metrics: tuple[str, ...] = METRICS
    summary: Activation = "tanh"
    pool: Pool = "mark"
    drop_first: bool = False
    bias: bool = True
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_head(self)
        check_metrics(self.metrics, METRICS)

    @classmethod
    def read(
        cls, source: Source, asked: Asked, *, settings: Mapping[str, Setting], counts: Counts
    ) -> list[Sentences]:
        """Rows of a table."""
        pair = bool(settings.get("pair"))
        return sentences(source, asked, pair=pair, numeric=True, counts=counts)

    @classmethod
    def file_settings(cls, source: Source, asked: Asked) -> dict[str, Setting]:
        """Pairs, by the columns."""
        return {"pair": has_pair(source, asked)}

    def tokenize(
        self, examples: Sequence[Sentences], reader: Reader, *, training: bool = False
    ) -> TokenizedExamples:
        """One block and one slot an example."""
        rows, counts = tokenize_texts(examples, reader, pair=self.pair)
        columns = {
            "at": np.array([row.mark for row in rows], dtype=np.int64),
            "labels": np.array([_number(example) for example in examples], dtype=np.float64),
        }
        return stacked(rows, Targets(np.arange(len(rows) + 1), columns), counts=counts)

    def build(self, width: int) -> SummaryHead:
        """The head with fresh weights."""
        from clozelab.finetuning.heads.summary import SummaryHead

        return SummaryHead(self, width, 1, numeric=True)

    def parameters(self, width: int) -> dict[str, int]:
        """Parameters of the head, by part."""
        return head_parameters(self, width, 1)

    def decode(
        self, tokenized: TokenizedExamples, outputs: list[Floats], examples: Sequence[Sentences]
    ) -> list[Number]:
        """The number of each example."""
        return [Number(float(rows[0, 0])) for rows in outputs]

    def score(
        self, predictions: Sequence[Number], examples: Sequence[Sentences]
    ) -> dict[str, float]:
        """The metrics over the examples whose number is known."""
        from clozelab.finetuning.metrics import numbers

        known = [
            (float(example.label), prediction.value)
            for prediction, example in zip(predictions, examples, strict=True)
            if example.label is not None
        ]
        check_known(known)
        gold, predicted = [pair[0] for pair in known], [pair[1] for pair in known]
        measures = {"pearson": numbers.pearson, "spearman": numbers.spearman}
        return {name: measures[name](gold, predicted) for name in self.metrics}

    @classmethod
    def fields(cls, example: Sentences, prediction: Number) -> list[str]:
        """The number and the text."""
        return [f"{prediction.value:.4f}", shown_texts(example)]


def _number(example: Sentences) -> float:
    if example.label is None:
        return float(Targets.IGNORED)
    if isinstance(example.label, str) or not isfinite(example.label):
        raise UserError(f"example {example.id}: {example.label!r} is not a number; give one")
    if example.label == Targets.IGNORED:
        # That value says that there is none: its neighbour in single precision stands for it.
        return float(np.nextafter(np.float32(Targets.IGNORED), np.float32(0)))
    return float(example.label)

"""A number for a text or a pair of texts (BERT §4.1: STS-B), by squared error on its own scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar

import numpy as np

from clozelab.contracts import Targets
from clozelab.errors import UserError
from clozelab.finetuning.examples import Floats, Number, Sentences, TokenizedExamples
from clozelab.finetuning.files.columns import ReadOptions, Source
from clozelab.finetuning.files.named import Setting
from clozelab.finetuning.files.sentences import has_pair
from clozelab.finetuning.kinds.summaries import SentenceKind, shown_texts
from clozelab.finetuning.metrics import numbers

_MEASURES = {"pearson": numbers.pearson, "spearman": numbers.spearman}


@dataclass(frozen=True)
class Regress(SentenceKind):
    """Numbers as the examples have them, never rescaled."""

    name: ClassVar[str] = "regress"
    numeric: ClassVar[bool] = True
    known_metrics: ClassVar[tuple[str, ...]] = tuple(_MEASURES)

    metrics: tuple[str, ...] = ("pearson", "spearman")

    @classmethod
    def file_settings(cls, source: Source, options: ReadOptions) -> dict[str, Setting]:
        """Pairs, by the columns."""
        return {"pair": has_pair(source, options)}

    def target(self, example: Sentences) -> float:
        """The number itself."""
        if not isinstance(example.label, int | float) or not isfinite(example.label):
            raise UserError(f"example {example.id}: {example.label!r} is not a number; give one")
        if example.label == Targets.IGNORED:
            # That value says that there is none: its neighbour in single precision stands for it.
            return float(np.nextafter(np.float32(Targets.IGNORED), np.float32(0)))
        return float(example.label)

    def build(self, width: int) -> Any:
        """The head with fresh weights."""
        from clozelab.finetuning.heads.summary import SummaryHead

        return SummaryHead(self, width, numeric=True)

    def decode(
        self, tokenized: TokenizedExamples, outputs: list[Floats], examples: Sequence[Sentences]
    ) -> list[Number]:
        """The number of each example."""
        return [Number(float(rows[0, 0])) for rows in outputs]

    def measure(self, metric: str, gold: list[float], predicted: list[float]) -> float:
        """A correlation."""
        return _MEASURES[metric](gold, predicted)

    @classmethod
    def fields(cls, example: Sentences, prediction: Number) -> list[str]:
        """The number and the text."""
        return [f"{prediction.value:.4f}", shown_texts(example)]

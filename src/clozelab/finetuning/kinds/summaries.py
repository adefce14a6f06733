"""What classify, regress and choose share: texts cut to fit, and a head on one vector a block.

The vector is BERT's (§3.2), that of the first token, through the dense layer of its pooler;
RoBERTa, DistilBERT, XLNet and GPT differ by an activation, a dropout or a bias.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from clozelab.contracts import Counts, Reader, Row, Targets
from clozelab.errors import UserError
from clozelab.finetuning.examples import Sentences, TokenizedExamples, stacked, trimmed
from clozelab.finetuning.files.columns import ReadOptions, Source
from clozelab.finetuning.files.sentences import sentences
from clozelab.finetuning.kinds.kind import Settings, TaskKind, Texts
from clozelab.ranges import BelowOne

CUT = "texts cut to fit"


@dataclass(frozen=True, kw_only=True)
class SummaryKind(TaskKind):
    """A kind whose head reads one vector a block."""

    summary: Literal["tanh", "relu", "none"] = "tanh"  # after the dense layer; none: no such layer
    pool: Literal["mark", "mean"] = "mark"  # which vector stands for a block
    drop_first: bool = False  # drop out before the dense layer as well as after it
    bias: bool = True
    dropout: BelowOne = 0.1


@dataclass(frozen=True, kw_only=True)
class SentenceKind(SummaryKind):
    """A kind whose examples are `Sentences`: one text, or with `pair` two."""

    from_examples: ClassVar[tuple[str, ...]] = ("labels", "pair")
    numeric: ClassVar[bool] = False  # whether labels are numbers

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
        first, second = (value, None) if isinstance(value, str) else value
        return Sentences(name, first, second)

    def takes(self, *, imported: bool = False) -> Texts:
        """One text or two."""
        if imported:
            return Texts(1, 2, "one text or two")
        return Texts(2, 2, "two texts") if self.pair else self.inputs

    def suited(self, examples: Sequence[Sentences], *, imported: bool = False) -> Self:
        """Of an imported model, pairs where the examples are."""
        if not imported:
            return self
        return replace(self, pair=any(example.second is not None for example in examples))

    def tokenize(
        self, examples: Sequence[Sentences], reader: Reader, *, training: bool = False
    ) -> TokenizedExamples:
        """One block and one slot an example."""
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
        """The label of an example as the head learns it."""

    def _rows(self, examples: Sequence[Sentences], reader: Reader) -> tuple[list[Row], Counts]:
        """One text a block, or two, cut at their ends where they are too long."""
        self._check_texts(examples)
        first = reader.pieces([example.first for example in examples])
        second = None
        if self.pair:
            second = reader.pieces([example.second or "" for example in examples])
        room = reader.length - reader.marks(2 if self.pair else 1)
        rows, counts = [], Counts()
        for number, example in enumerate(examples):
            a = first.text(number)
            b = second.text(number) if second else slice(0, 0)
            sizes = a.stop - a.start, b.stop - b.start
            fit = trimmed(*sizes, room)
            counts.add(CUT, example.id, int(fit != sizes))
            rest = second.part(slice(b.start, b.start + fit[1])) if second else None
            rows.append(reader.lay(first.part(slice(a.start, a.start + fit[0])), rest))
        return rows, counts

    def _check_texts(self, examples: Sequence[Sentences]) -> None:
        for example in examples:
            if (example.second is not None) != self.pair:
                has, takes = ("one text", "two") if self.pair else ("two texts", "one")
                raise UserError(
                    f"example {example.id} has {has} and the task takes {takes}:"
                    f" give {takes} in every example"
                )


def shown_texts(example: Sentences) -> str:
    """The texts of an example on a line."""
    return example.first if example.second is None else f"{example.first} | {example.second}"

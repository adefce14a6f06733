"""What classify, regress and choose share: texts cut to fit, and a head on one vector a block.

The vector is BERT's (§3.2), that of the first token, through the dense layer of its pooler;
RoBERTa, DistilBERT, XLNet and GPT differ by an activation, a dropout or a bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeAlias

from clozelab.contracts import Counts, Reader, Row
from clozelab.errors import UserError
from clozelab.finetuning.examples import Sentences
from clozelab.finetuning.kinds.kind import TaskKind, Texts, check_dropout
from clozelab.finetuning.tokenized import trimmed

if TYPE_CHECKING:
    from clozelab.finetuning.kinds.choose import Choose
    from clozelab.finetuning.kinds.classify import Classify
    from clozelab.finetuning.kinds.regress import Regress

    Summarised: TypeAlias = Classify | Regress | Choose

Activation = Literal["tanh", "relu", "none"]
Pool = Literal["mark", "mean"]
CUT = "texts cut to fit"


class SentenceKind(TaskKind, Protocol):
    """A kind whose examples are `Sentences`: one text, or with `pair` two."""

    from_examples: ClassVar[tuple[str, ...]] = ("labels", "pair")
    pair: bool

    @classmethod
    def example(cls, given: Any, name: str) -> Sentences:
        """A text, or two."""
        first, second = (given, None) if isinstance(given, str) else given
        return Sentences(name, first, second)

    def takes(self, *, imported: bool = False) -> Texts:
        """One text or two."""
        if imported:
            return Texts(1, 2, "one text or two")
        return Texts(2, 2, "two texts") if self.pair else Texts(1, 1, "one text")

    def suited(self, examples: Sequence[Sentences], *, imported: bool = False) -> Self:
        """Of an imported model, pairs where the examples are."""
        if not imported:
            return self
        part: Any = self
        suited: Self = replace(part, pair=any(one.second is not None for one in examples))
        return suited

    @classmethod
    def texts(cls, example: Sentences) -> list[str]:
        """Both texts."""
        return [f"{example.first} {example.second or ''}"]

    @property
    def two_texts(self) -> bool:
        """With `pair`."""
        return self.pair


def shown_texts(example: Sentences) -> str:
    """The texts of an example on a line."""
    return example.first if example.second is None else f"{example.first} | {example.second}"


def check_head(kind: Summarised) -> None:
    """Refuse settings that no head has."""
    if kind.summary not in ("tanh", "relu", "none"):
        raise UserError(f'summary = "{kind.summary}": must be "tanh", "relu" or "none"')
    if kind.pool not in ("mark", "mean"):
        raise UserError(f'pool = "{kind.pool}": must be "mark" or "mean"')
    check_dropout(kind.dropout)


def head_parameters(kind: Summarised, width: int, outputs: int) -> dict[str, int]:
    """Parameters of a `SummaryHead`, by part."""
    dense = {} if kind.summary == "none" else {"dense": width * width + width}
    return {**dense, "classifier": width * outputs + outputs * kind.bias}


def tokenize_texts(
    examples: Sequence[Sentences], reader: Reader, *, pair: bool
) -> tuple[list[Row], Counts]:
    """One text a block, or two, cut at their ends where they are too long."""
    _check_texts(examples, pair)
    first = reader.pieces([example.first for example in examples])
    second = reader.pieces([example.second or "" for example in examples]) if pair else None
    room = reader.length - reader.marks(2 if pair else 1)
    rows, counts = [], Counts()
    for number, example in enumerate(examples):
        a = first.text(number)
        b = second.text(number) if second else slice(0, 0)
        sizes = a.stop - a.start, b.stop - b.start
        kept = trimmed(*sizes, room)
        counts.add(CUT, example.id, int(kept != sizes))
        rest = second.part(slice(b.start, b.start + kept[1])) if second else None
        rows.append(reader.lay(first.part(slice(a.start, a.start + kept[0])), rest))
    return rows, counts


def _check_texts(examples: Sequence[Sentences], pair: bool) -> None:
    for example in examples:
        if (example.second is not None) != pair:
            has, takes = ("one text", "two") if pair else ("two texts", "one")
            raise UserError(
                f"example {example.id} has {has} and the task takes {takes}:"
                f" give {takes} in every example"
            )

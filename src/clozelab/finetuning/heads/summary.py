"""One vector per block, a dense layer and a classifier: the head of classify, regress and choose.

And the head of tag, a linear layer on the vector of each word's first piece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from clozelab.contracts import Encoded, Input, Sums, Targets
from clozelab.finetuning.heads.head import (
    ABSENT,
    Columns,
    Head,
    Transform,
    block_means,
    block_of,
    classified,
    squared_errors,
    upcast,
)
from clozelab.layers import Linear, activate, drop, initialise

if TYPE_CHECKING:
    from clozelab.finetuning.kinds.kind import SummaryKind


class SummaryHead(Head):
    """A logit for each label at each slot; without labels one, a number or the score of a choice,
    of which `choices` slots make one distribution.
    """

    def __init__(self, kind: SummaryKind, width: int) -> None:
        super().__init__()
        self.dense = None if kind.summary == "none" else Linear(width, width)
        self.transform = Transform(width) if kind.transform else nn.Identity()
        self.classifier = Linear(width, max(1, len(kind.label_names)), bias=kind.bias)
        self.kind, self.choices = kind, getattr(kind, "choices", 0)
        initialise(self, width)

    def logits(self, encoded: Encoded, inputs: Input, targets: Columns) -> tuple[Tensor, ...]:
        """[K, outputs], or [K / choices, choices] with missing choices masked."""
        scores = self.predict(encoded, inputs, targets)
        if not self.choices:
            return (scores,)
        exists = self._grouped(targets["exists"]) > 0
        return (self._grouped(scores[:, 0]).where(exists, ABSENT),)

    def loss(self, logits: tuple[Tensor, ...], targets: Columns) -> Sums:
        """The sums of cross-entropy, or of squared errors for numbers."""
        if self.kind.numeric:
            return squared_errors(logits[0][:, 0], targets["labels"])
        return classified(logits[0], self._labels(targets))

    def labelled(self, targets: Columns) -> Tensor:
        """Which rows of the logits have a label."""
        return self._labels(targets) != Targets.IGNORED

    def predict(self, encoded: Encoded, inputs: Input, targets: Columns) -> Tensor:
        """[K, outputs] the score of each class, the number, or the score of a choice."""
        kind, at = self.kind, targets["at"]
        if kind.pool == "mark":
            x = encoded.hidden_states.index_select(0, at)
        else:
            x = block_means(encoded.hidden_states, inputs).index_select(0, block_of(inputs, at))
        if self.dense is not None and kind.summary != "none":
            x = self.dense(drop(x, kind.dropout if kind.drop_first else 0.0, self.training))
            x = activate(x, kind.summary)
        return upcast(self.classifier(drop(self.transform(x), kind.dropout, self.training)))

    def _labels(self, targets: Columns) -> Tensor:
        """The label of each row of the logits; that of a group is at its first slot."""
        labels = targets["labels"]
        return self._grouped(labels)[:, 0] if self.choices else labels

    def _grouped(self, slots: Tensor) -> Tensor:
        """[K / choices, choices] the slots by group; dummies at the end may not fill one."""
        groups = len(slots) // self.choices
        return slots[: groups * self.choices].view(groups, self.choices)


class TagHead(Head):
    """A score for each tag at each slot (BERT §5.3, without a CRF)."""

    def __init__(self, width: int, tags: int, *, dropout: float, transform: bool = False) -> None:
        super().__init__()
        self.transform = Transform(width) if transform else nn.Identity()
        self.classifier = Linear(width, tags)
        self.dropout = dropout
        initialise(self, width)

    def predict(self, encoded: Encoded, inputs: Input, targets: Columns) -> Tensor:
        """[K, tags] the score of each tag."""
        states = self.transform(encoded.hidden_states.index_select(0, targets["at"]))
        return upcast(self.classifier(drop(states, self.dropout, self.training)))

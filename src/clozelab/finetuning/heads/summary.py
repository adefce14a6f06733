"""One vector a block, a dense layer and a classifier: the head of classify, regress and choose.

And its like for tags, a linear layer on the vector of each word's first piece.
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
    """A logit for each label at each slot, or one where there are no labels: a number, or the
    score of a choice; then `choices` slots are one choice between them.
    """

    def __init__(self, kind: SummaryKind, width: int) -> None:
        super().__init__()
        self.dense = None if kind.summary == "none" else Linear(width, width)
        self.transform = Transform(width) if kind.transform else nn.Identity()
        self.classifier = Linear(width, max(1, len(kind.label_names)), bias=kind.bias)
        self.kind, self.choices = kind, getattr(kind, "choices", 0)
        initialise(self, width)

    def logits(self, encoded: Encoded, inputs: Input, targets: Columns) -> tuple[Tensor, ...]:
        """[K, outputs], or [K / choices, choices]: a choice that is not there is never taken."""
        scores = self.predict(encoded, inputs, targets)
        if not self.choices:
            return (scores,)
        exists = self._grouped(targets["exists"]) > 0
        return (self._grouped(scores[:, 0]).where(exists, ABSENT),)

    def loss(self, logits: tuple[Tensor, ...], targets: Columns) -> Sums:
        """Cross-entropy, or of numbers the squared error."""
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
        """The label of each row of the logits; a group's stands at its first slot."""
        labels = targets["labels"]
        return self._grouped(labels)[:, 0] if self.choices else labels

    def _grouped(self, slots: Tensor) -> Tensor:
        """[K / choices, choices]; idle slots at the end may not fill a group."""
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

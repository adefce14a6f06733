"""One vector a block, a dense layer and a classifier: the head of classify, regress and choose."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn

from clozelab.contracts import Encoded, Input, Sums
from clozelab.finetuning.heads.blocks import block_of, means
from clozelab.finetuning.heads.losses import ABSENT, classified, labelled, measured, wide
from clozelab.layers import Linear, drop, initialise

if TYPE_CHECKING:
    from clozelab.finetuning.kinds.summaries import Summarised


class SummaryHead(nn.Module):
    """`outputs` logits a slot; with `choices`, so many slots are one choice between them.

    `numeric`: the output is a number, and its loss the squared error.
    """

    rows: ClassVar[Literal["slots", "tokens", "group"]] = "slots"

    def __init__(
        self,
        kind: Summarised,
        width: int,
        outputs: int,
        *,
        choices: int = 0,
        numeric: bool = False,
    ) -> None:
        super().__init__()
        self.dense = None if kind.summary == "none" else Linear(width, width)
        self.classifier = Linear(width, outputs, bias=kind.bias)
        self.activation, self.pool, self.drop_first = kind.summary, kind.pool, kind.drop_first
        self.rate, self.numeric, self.choices = kind.dropout, numeric, choices
        initialise(self, width)

    def forward(self, encoded: Encoded, inputs: Input, targets: dict[str, Tensor]) -> Sums:
        """The loss over the slots that have a label, how many do, and how many were right."""
        return self.loss(self.logits(encoded, inputs, targets), targets)

    def logits(
        self, encoded: Encoded, inputs: Input, targets: dict[str, Tensor]
    ) -> tuple[Tensor, ...]:
        """[K, outputs], or [K / choices, choices]: a choice that is not there is never taken."""
        scores = self.predict(encoded, inputs, targets)
        if not self.choices:
            return (scores,)
        there = self._grouped(targets["there"]) > 0
        return (self._grouped(scores[:, 0]).where(there, ABSENT),)

    def loss(self, logits: tuple[Tensor, ...], targets: dict[str, Tensor]) -> Sums:
        """Cross-entropy, or of numbers the squared error."""
        if self.numeric:
            return measured(logits[0][:, 0], targets["labels"])
        return classified(logits[0], self._labels(targets))

    def there(self, targets: dict[str, Tensor]) -> Tensor:
        """Which rows of the logits have a label."""
        return labelled(self._labels(targets))

    def predict(self, encoded: Encoded, inputs: Input, targets: dict[str, Tensor]) -> Tensor:
        """[K, outputs] the score of each class, the number, or the score of a choice."""
        x = self._pooled(encoded.states, inputs, targets["at"])
        if self.dense is not None:
            x = self.dense(drop(x, self.rate if self.drop_first else 0.0, self.training))
            x = torch.tanh(x) if self.activation == "tanh" else torch.relu(x)
        return wide(self.classifier(drop(x, self.rate, self.training)))

    def _pooled(self, states: Tensor, inputs: Input, at: Tensor) -> Tensor:
        if self.pool == "mark":
            return states.index_select(0, at)
        return means(states, inputs).index_select(0, block_of(inputs, at))

    def _labels(self, targets: dict[str, Tensor]) -> Tensor:
        """The label of each row of the logits; a group's stands at its first slot."""
        labels = targets["labels"]
        return self._grouped(labels)[:, 0] if self.choices else labels

    def _grouped(self, slots: Tensor) -> Tensor:
        """[K / choices, choices]; idle slots at the end may not fill a group."""
        groups = len(slots) // self.choices
        return slots[: groups * self.choices].view(groups, self.choices)

"""A linear layer on the vector of each word's first piece (BERT §5.3, without a CRF)."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn

from clozelab.contracts import Encoded, Input, Sums
from clozelab.finetuning.heads.losses import classified, labelled, wide
from clozelab.layers import Linear, drop, initialise


class TagHead(nn.Module):
    """A score for each tag at each slot."""

    rows: ClassVar[Literal["slots", "tokens", "group"]] = "slots"

    def __init__(self, width: int, tags: int, *, dropout: float) -> None:
        super().__init__()
        self.classifier = Linear(width, tags)
        self.rate = dropout
        initialise(self, width)

    def forward(self, encoded: Encoded, inputs: Input, targets: dict[str, Tensor]) -> Sums:
        """The loss over the words that have a label, how many do, and how many were right."""
        return self.loss(self.logits(encoded, inputs, targets), targets)

    def logits(
        self, encoded: Encoded, inputs: Input, targets: dict[str, Tensor]
    ) -> tuple[Tensor, ...]:
        """[K, tags]."""
        return (self.predict(encoded, inputs, targets),)

    def loss(self, logits: tuple[Tensor, ...], targets: dict[str, Tensor]) -> Sums:
        """Cross-entropy."""
        return classified(logits[0], targets["labels"])

    def there(self, targets: dict[str, Tensor]) -> Tensor:
        """Which rows of the logits have a label."""
        return labelled(targets["labels"])

    def predict(self, encoded: Encoded, inputs: Input, targets: dict[str, Tensor]) -> Tensor:
        """[K, tags] the score of each tag."""
        states = encoded.states.index_select(0, targets["at"])
        return wide(self.classifier(drop(states, self.rate, self.training)))

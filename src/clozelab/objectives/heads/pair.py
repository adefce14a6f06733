"""Two classes for a pair of segments, from the pooled vector of its [CLS] token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clozelab.contracts import Encoded, Sums
from clozelab.layers import Linear, initialise
from clozelab.objectives.heads.vocabulary import classification_sums
from clozelab.objectives.widths import Widths


class PairHead(nn.Module):
    """The pooler, which only pair objectives train, and a choice between two classes."""

    def __init__(self, encoder: Widths) -> None:
        super().__init__()
        self.pooler = Linear(encoder.width, encoder.width)
        self.classifier = Linear(encoder.width, 2)
        initialise(self, encoder.width)

    def forward(self, encoded: Encoded, targets: dict[str, Tensor]) -> Sums:
        """The loss over the pairs, how many there are, and how many were right."""
        return classification_sums(
            self.logits(encoded.hidden_states, targets["at"]), targets["labels"]
        )

    def logits(self, states: Tensor, at: Tensor) -> Tensor:
        """[B, 2] from the states at the [CLS] tokens."""
        out: Tensor = self.classifier(torch.tanh(self.pooler(states.index_select(0, at))))
        return out

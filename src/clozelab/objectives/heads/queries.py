"""Predicting a token from the query stream: the embedding table it is tied to, and a bias."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clozelab.contracts import Encoded, Sums
from clozelab.objectives.heads.vocabulary import scored, told


class QueryHead(nn.Module):
    """Logits over the vocabulary for every query, and their cross-entropy (XLNet §2.3)."""

    fused: bool = False

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, encoded: Encoded, targets: dict[str, Tensor]) -> Sums:
        """The loss at the targets, how many there are, and how many were right."""
        assert encoded.queries is not None, "this head needs an encoder with a query stream"
        labels = targets["labels"]
        return told(encoded.queries, encoded.table, self.bias, labels, fused=self.fused)

    def logits(self, states: Tensor, table: Tensor | None) -> Tensor:
        """[K, W] → [K, V]."""
        return scored(states, table, self.bias)

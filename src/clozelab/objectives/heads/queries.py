"""Predicting a token from the query stream: a table, and a bias."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clozelab.contracts import Encoded, Sums
from clozelab.layers import initialise
from clozelab.objectives.heads.vocabulary import logits_from_table, loss_from_table, own_table
from clozelab.objectives.widths import Widths


class QueryHead(nn.Module):
    """Logits over the vocabulary for every query, and their cross-entropy (XLNet §2.3)."""

    fused: bool = False

    def __init__(self, encoder: Widths, vocabulary: int, *, tied: bool = True) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.table = own_table(encoder, vocabulary, tied=tied)
        initialise(self, encoder.width)

    def forward(self, encoded: Encoded, targets: dict[str, Tensor]) -> Sums:
        """The loss at the targets, how many there are, and how many were right."""
        assert encoded.queries is not None, "this head needs an encoder with a query stream"
        labels, table = targets["labels"], encoded.table if self.table is None else self.table
        return loss_from_table(encoded.queries, table, self.bias, labels, fused=self.fused)

    def logits(self, states: Tensor, table: Tensor | None) -> Tensor:
        """[K, W] → [K, V]."""
        return logits_from_table(states, table if self.table is None else self.table, self.bias)

"""Predicting a token: BERT's dense layer and norm, then the embedding table it is tied to."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozelab.contracts import Corrupted, Encoded, Sums, Targets
from clozelab.layers import Linear, Norm, activate, initialise
from clozelab.objectives.widths import Tied

_ROUND = 64  # logits of a row: a multiple of this
_DECISIONS = {"mask": Corrupted.MASK, "random": Corrupted.RANDOM, "same": Corrupted.SAME}


class VocabularyHead(nn.Module):
    """Logits over the vocabulary at chosen positions only, and their cross-entropy."""

    def __init__(self, encoder: Tied, vocabulary: int) -> None:
        super().__init__()
        self.dense = Linear(encoder.width, encoder.embedding)
        self.norm = Norm(encoder.embedding, eps=encoder.epsilon)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.activation = encoder.activation
        initialise(self, encoder.width)

    def forward(self, encoded: Encoded, targets: dict[str, Tensor]) -> Sums:
        """The loss at the targets, how many there are, and how many were right."""
        states = encoded.states.index_select(0, targets["at"])
        logits = self.logits(states, encoded.table)
        return predicted(logits, targets["labels"], targets.get("decisions"))

    def logits(self, states: Tensor, table: Tensor | None) -> Tensor:
        """[K, W] → [K, V]."""
        assert table is not None, "this head is tied to an embedding table"
        x = self.norm(activate(self.dense(states), self.activation))
        return scored(x, table, self.bias)


class PlainHead(nn.Module):
    """GPT's: the product with the table alone."""

    def forward(self, encoded: Encoded, targets: dict[str, Tensor]) -> Sums:
        """As `VocabularyHead`."""
        states = encoded.states.index_select(0, targets["at"])
        return predicted(self.logits(states, encoded.table), targets["labels"])

    def logits(self, states: Tensor, table: Tensor | None) -> Tensor:
        """[K, W] → [K, V]."""
        assert table is not None, "this head is tied to an embedding table"
        return scored(states, table)


def scored(x: Tensor, table: Tensor, bias: Tensor | None = None) -> Tensor:
    """[K, E] → [K, V], the product with the table in the precision of x.

    A GPU's matrix units want rows that begin at round addresses, and few vocabularies have them:
    there the table is made a little longer, and what it adds is cut off again.
    """
    size = len(table)
    more = -size % _ROUND if x.is_cuda else 0
    table, bias = table.to(x.dtype), None if bias is None else bias.to(x.dtype)
    if more:
        table = functional.pad(table, (0, 0, 0, more))
        bias = None if bias is None else functional.pad(bias, (0, more))
    return functional.linear(x, table, bias)[:, :size]


def predicted(logits: Tensor, labels: Tensor, decisions: Tensor | None = None) -> Sums:
    """Cross-entropy and hits over the labels that count, split by what the encoder saw there."""
    loss = functional.cross_entropy(
        logits.float() if logits.dtype != torch.float64 else logits,
        labels,
        ignore_index=Targets.IGNORED,
        reduction="sum",
    )
    there = labels != Targets.IGNORED
    right = (logits.argmax(-1) == labels) & there
    sums = {"loss": loss, "count": there.sum(), "correct": right.sum()}
    if decisions is not None:
        for name, decision in _DECISIONS.items():
            chosen = decisions == decision
            sums[f"count_{name}"] = (there & chosen).sum()
            sums[f"correct_{name}"] = (right & chosen).sum()
    return sums

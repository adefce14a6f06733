"""Heads that classify: a token over the vocabulary, or a pair of texts into two classes."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozelab.contracts import Corrupted, Encoded, Sums, Targets
from clozelab.layers import Linear, activate, initialise, norm_of
from clozelab.objectives.objective import Tied, Widths

_ROUND = 64  # logits of a row: padded to a multiple of this
_DECISIONS = {"mask": Corrupted.MASK, "random": Corrupted.RANDOM, "same": Corrupted.SAME}


class PlainHead(nn.Module):
    """GPT's head: the product with the embedding table, or with its own, and cross-entropy."""

    fused: bool = False  # uses our kernel on a GPU
    biased: ClassVar[bool] = False

    def __init__(self, encoder: Tied, vocabulary: int, *, tied: bool = True) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if self.biased else None
        self.table = None if tied else nn.Parameter(torch.empty(vocabulary, encoder.embedding_size))
        self.add_layers(encoder)
        initialise(self, encoder.hidden_size)

    def add_layers(self, encoder: Tied) -> None:
        """Add the layers before the table."""

    def forward(self, encoded: Encoded, targets: dict[str, Tensor]) -> Sums:
        """The loss at the targets, their number, and how many were right."""
        return self.predict(encoded, targets)[1]

    def predict(self, encoded: Encoded, targets: dict[str, Tensor]) -> tuple[Tensor, Sums]:
        """[K, V] logits at the targets, and the sums over them."""
        x_KE = self.to_table(self.states(encoded, targets))
        table_VE = encoded.table if self.table is None else self.table
        return predictions(x_KE, table_VE, self.bias, targets, fused=self.fused)

    def logits(self, states_KW: Tensor, table_VE: Tensor | None) -> Tensor:
        """[K, V] the logits of states."""
        table_VE = table_VE if self.table is None else self.table
        return logits_from_table(self.to_table(states_KW), table_VE, self.bias)

    def all_logits(self, encoded: Encoded) -> Tensor:
        """[N, V] the logits of every token."""
        return self.logits(encoded.predicting, encoded.table)

    def states(self, encoded: Encoded, targets: dict[str, Tensor]) -> Tensor:
        """[K, W] the states that predict the targets."""
        return encoded.predicting.index_select(0, targets["at"])

    def to_table(self, states_KW: Tensor) -> Tensor:
        """[K, E], where the table is."""
        return states_KW


class VocabularyHead(PlainHead):
    """BERT's head: a dense layer and a norm before the table, a bias after it."""

    biased: ClassVar[bool] = True

    def add_layers(self, encoder: Tied) -> None:
        """A dense layer to the table's width, and its norm."""
        self.dense = Linear(encoder.hidden_size, encoder.embedding_size, bias=encoder.bias)
        self.norm = norm_of(encoder, encoder.embedding_size)
        self.activation = encoder.activation

    def to_table(self, states_KW: Tensor) -> Tensor:
        """[K, E], where the table is."""
        x_KE: Tensor = self.norm(activate(self.dense(states_KW), self.activation))
        return x_KE


class QueryHead(PlainHead):
    """XLNet's head (§2.3): logits for every query of its second stream."""

    biased: ClassVar[bool] = True

    def states(self, encoded: Encoded, targets: dict[str, Tensor]) -> Tensor:
        """[K, W] the states of the queries."""
        assert encoded.queries is not None, "this head needs an encoder with a query stream"
        return encoded.queries


HEADS = {"plain": PlainHead, "transform": VocabularyHead, "queries": QueryHead}


class PairHead(nn.Module):
    """The pooler, which only pair objectives train, and a classifier of two classes."""

    def __init__(self, encoder: Widths) -> None:
        super().__init__()
        self.pooler = Linear(encoder.hidden_size, encoder.hidden_size)
        self.classifier = Linear(encoder.hidden_size, 2)
        initialise(self, encoder.hidden_size)

    def forward(self, encoded: Encoded, targets: dict[str, Tensor]) -> Sums:
        """The loss over the pairs, their number, and how many were right."""
        return classification_sums(
            self.logits(encoded.hidden_states, targets["at"]), targets["labels"]
        )

    def logits(self, states_NW: Tensor, at_B: Tensor) -> Tensor:
        """[B, 2] the logits of the states at the [CLS] tokens."""
        pooled_BW = torch.tanh(self.pooler(states_NW.index_select(0, at_B)))
        logits: Tensor = self.classifier(pooled_BW)
        return logits


def logits_from_table(
    x_KE: Tensor, table_VE: Tensor | None, bias_V: Tensor | None = None
) -> Tensor:
    """[K, V] the logits: the product with the table in the precision of x."""
    scores, size = _logits(x_KE, table_VE, bias_V)
    return scores[:, :size]


def predictions(
    x_KE: Tensor,
    table_VE: Tensor | None,
    bias_V: Tensor | None,
    targets: dict[str, Tensor],
    *,
    fused: bool,
) -> tuple[Tensor, Sums]:
    """`logits_from_table` and their `classification_sums`, in fewer passes if `fused`."""
    labels_K = targets["labels"]
    decisions_K, weights_K = targets.get("decisions"), targets.get("weights")
    scores, size = _logits(x_KE, table_VE, bias_V)
    logits_KV = scores[:, :size]
    if not fused:
        return logits_KV, classification_sums(logits_KV, labels_K, decisions_K, weights_K)
    from clozelab.kernels.entropy import cross_entropy

    losses_K, best_K = cross_entropy(scores, labels_K, size)
    loss = losses_K.sum() if weights_K is None else _weighted_sum(losses_K, weights_K)
    return logits_KV, _count(loss, best_K, labels_K, decisions_K, weights_K)


def classification_sums(
    logits: Tensor,
    labels: Tensor,
    decisions: Tensor | None = None,
    weights: Tensor | None = None,
) -> Sums:
    """Cross-entropy and correct predictions over the labels, also by decision."""
    loss = functional.cross_entropy(
        wide(logits),
        labels,
        ignore_index=Targets.IGNORED,
        reduction="sum" if weights is None else "none",
    )
    loss = loss if weights is None else _weighted_sum(loss, weights)
    return _count(loss, logits.argmax(-1), labels, decisions, weights)


def wide(x: Tensor) -> Tensor:
    """The tensor in at least single precision."""
    return x if x.dtype == torch.float64 else x.float()


def _logits(x_KE: Tensor, table_VE: Tensor | None, bias_V: Tensor | None) -> tuple[Tensor, int]:
    """[K, ≥ V] the logits, with a few more columns than V, and V.

    A GPU's matrix units need aligned rows, and few vocabularies have such a size: there the table
    is padded with rows of zeros.
    """
    assert table_VE is not None, "the encoder has no embedding table to be tied to"
    size = len(table_VE)
    padding = -size % _ROUND if _wants_round(x_KE.device) else 0
    table, bias = table_VE.to(x_KE.dtype), None if bias_V is None else bias_V.to(x_KE.dtype)
    if padding:
        table = functional.pad(table, (0, 0, 0, padding))
        bias = None if bias is None else functional.pad(bias, (0, padding))
    return functional.linear(x_KE, table, bias), size


def _wants_round(device: torch.device) -> bool:
    return device.type == "cuda"


def _weighted_sum(losses: Tensor, weights: Tensor) -> Tensor:
    return (losses * weights.to(losses.dtype)).sum()


def _count(
    loss: Tensor,
    best: Tensor,
    labels: Tensor,
    decisions: Tensor | None,
    weights: Tensor | None,
) -> Sums:
    counted = labels != Targets.IGNORED
    counted = counted if weights is None else counted * weights
    right = (best == labels) * counted
    sums = {"loss": loss, "count": counted.sum(), "correct": right.sum()}
    if decisions is not None:
        for name, decision in _DECISIONS.items():
            chosen = decisions == decision
            sums[f"count_{name}"] = (counted * chosen).sum()
            sums[f"correct_{name}"] = (right * chosen).sum()
    return sums

"""Predicting a token: BERT's dense layer and norm, then the embedding table or one of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozelab.contracts import Corrupted, Encoded, Sums, Targets
from clozelab.layers import Linear, Norm, activate, initialise
from clozelab.objectives.widths import Tied, Widths

_ROUND = 64  # scores of a row: a multiple of this
_DECISIONS = {"mask": Corrupted.MASK, "random": Corrupted.RANDOM, "same": Corrupted.SAME}


class VocabularyHead(nn.Module):
    """Logits over the vocabulary at chosen positions only, and their cross-entropy."""

    fused: bool = False  # takes the kernel of a GPU

    def __init__(self, encoder: Tied, vocabulary: int, *, tied: bool = True) -> None:
        super().__init__()
        self.dense = Linear(encoder.width, encoder.embedding)
        self.norm = Norm(encoder.embedding, eps=encoder.epsilon)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.table = own_table(encoder, vocabulary, tied=tied)
        self.activation = encoder.activation
        initialise(self, encoder.width)

    def forward(self, encoded: Encoded, targets: dict[str, Tensor]) -> Sums:
        """The loss at the targets, how many there are, and how many were right."""
        x = self._turned(encoded.hidden_states.index_select(0, targets["at"]))
        decisions = targets.get("decisions")
        table = encoded.table if self.table is None else self.table
        return loss_from_table(x, table, self.bias, targets["labels"], decisions, fused=self.fused)

    def logits(self, states: Tensor, table: Tensor | None) -> Tensor:
        """[K, W] → [K, V]."""
        return logits_from_table(
            self._turned(states), table if self.table is None else self.table, self.bias
        )

    def _turned(self, states: Tensor) -> Tensor:
        """[K, W] → [K, E], where the table is."""
        x: Tensor = self.norm(activate(self.dense(states), self.activation))
        return x


class PlainHead(nn.Module):
    """GPT's: the product with the table alone."""

    fused: bool = False

    def __init__(self, encoder: Widths, vocabulary: int, *, tied: bool = True) -> None:
        super().__init__()
        self.table = own_table(encoder, vocabulary, tied=tied)
        initialise(self, encoder.width)

    def forward(self, encoded: Encoded, targets: dict[str, Tensor]) -> Sums:
        """As `VocabularyHead`."""
        states = encoded.hidden_states.index_select(0, targets["at"])
        table = encoded.table if self.table is None else self.table
        return loss_from_table(states, table, None, targets["labels"], fused=self.fused)

    def logits(self, states: Tensor, table: Tensor | None) -> Tensor:
        """[K, W] → [K, V]."""
        return logits_from_table(states, table if self.table is None else self.table)


def own_table(encoder: Widths, vocabulary: int, *, tied: bool) -> nn.Parameter | None:
    """[V, E], which a head that is tied to the embeddings has none of."""
    return None if tied else nn.Parameter(torch.empty(vocabulary, encoder.embedding))


def logits_from_table(x: Tensor, table: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """[K, E] → [K, V], the product with the table in the precision of x."""
    scores, size = _rounded(x, table, bias)
    return scores[:, :size]


def loss_from_table(
    x: Tensor,
    table: Tensor | None,
    bias: Tensor | None,
    labels: Tensor,
    decisions: Tensor | None = None,
    *,
    fused: bool,
) -> Sums:
    """`classification_sums` of `logits_from_table`, in fewer passes if it is fused."""
    if not fused:
        return classification_sums(logits_from_table(x, table, bias), labels, decisions)
    from clozelab.kernels.entropy import entropy

    scores, size = _rounded(x, table, bias)
    losses, best = entropy(scores, labels, size)
    return _counted(losses.sum(), best, labels, decisions)


def classification_sums(logits: Tensor, labels: Tensor, decisions: Tensor | None = None) -> Sums:
    """Cross-entropy and hits over the labels that count, split by what the encoder saw there."""
    loss = functional.cross_entropy(
        logits.float() if logits.dtype != torch.float64 else logits,
        labels,
        ignore_index=Targets.IGNORED,
        reduction="sum",
    )
    return _counted(loss, logits.argmax(-1), labels, decisions)


def _rounded(x: Tensor, table: Tensor | None, bias: Tensor | None) -> tuple[Tensor, int]:
    """[K, E] → [K, V or a little more], and V.

    A GPU's matrix units want rows that begin at round addresses, and few vocabularies have them:
    there the table is made longer, by rows that mean nothing.
    """
    assert table is not None, "the encoder has no embedding table to be tied to"
    size = len(table)
    more = -size % _ROUND if _wants_round(x.device) else 0
    table, bias = table.to(x.dtype), None if bias is None else bias.to(x.dtype)
    if more:
        table = functional.pad(table, (0, 0, 0, more))
        bias = None if bias is None else functional.pad(bias, (0, more))
    return functional.linear(x, table, bias), size


def _wants_round(device: torch.device) -> bool:
    return device.type == "cuda"


def _counted(loss: Tensor, best: Tensor, labels: Tensor, decisions: Tensor | None) -> Sums:
    there = labels != Targets.IGNORED
    right = (best == labels) & there
    sums = {"loss": loss, "count": there.sum(), "correct": right.sum()}
    if decisions is not None:
        for name, decision in _DECISIONS.items():
            chosen = decisions == decision
            sums[f"count_{name}"] = (there & chosen).sum()
            sums[f"correct_{name}"] = (right & chosen).sum()
    return sums


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

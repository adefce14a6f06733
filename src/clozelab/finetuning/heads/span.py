"""An answer's two ends by a score of every token (BERT §4.2): S · T and E · T."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozelab.contracts import Encoded, Input, Sums, Targets
from clozelab.finetuning.heads.blocks import block_of
from clozelab.finetuning.heads.losses import ABSENT, wide
from clozelab.layers import Linear, drop, initialise


class SpanHead(nn.Module):
    """Start and end scores, and their cross-entropy over the tokens of each window."""

    rows: ClassVar[Literal["slots", "tokens", "group"]] = "tokens"

    def __init__(self, width: int, *, dropout: float) -> None:
        super().__init__()
        self.scores = Linear(width, 2)
        self.dropout = dropout
        initialise(self, width)

    def forward(self, encoded: Encoded, inputs: Input, targets: dict[str, Tensor]) -> Sums:
        """The loss over the windows, how many there are, and how many have both ends right."""
        return self.loss(self.logits(encoded, inputs, targets), targets)

    def logits(
        self, encoded: Encoded, inputs: Input, targets: dict[str, Tensor]
    ) -> tuple[Tensor, ...]:
        """[K, L] of starts and of ends; rows as `around` lays them."""
        cells, there = around(inputs, targets["at"], inputs.longest)
        scores = self.predict(encoded, inputs, targets)
        start, end = scores.index_select(0, cells.flatten()).view(*cells.shape, 2).unbind(-1)
        return start.masked_fill(~there, ABSENT), end.masked_fill(~there, ABSENT)

    def loss(self, logits: tuple[Tensor, ...], targets: dict[str, Tensor]) -> Sums:
        """Sums over the windows whose answer is known."""
        losses, right = both_ends(logits[0], logits[1], targets)
        there = self.there(targets)
        return {
            "loss": losses.where(there, 0.0).sum(),
            "count": there.sum(),
            "correct": (right & there).sum(),
        }

    def there(self, targets: dict[str, Tensor]) -> Tensor:
        """[K] which rows are windows whose answer is known."""
        return targets["labels"] != Targets.IGNORED

    def predict(self, encoded: Encoded, inputs: Input, targets: dict[str, Tensor]) -> Tensor:
        """[N, 2] each token's score as the first of the answer and as its last."""
        return wide(self.scores(drop(encoded.states, self.dropout, self.training)))


def around(inputs: Input, at: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """The block of each slot as a row: [K, columns] tokens, and which of these cells are any.

    A row begins at the slot's own token, goes on to the block's end and then around from its
    beginning, so that a place in it is a distance from that token, modulo the columns.
    """
    starts = inputs.starts.long()
    block = block_of(inputs, at)
    first, length = starts[block], starts.diff()[block]
    place = (at - first)[:, None] + torch.arange(columns, device=at.device)
    place = place % columns
    tokens = (first[:, None] + place).clamp(max=len(inputs.ids) - 1)
    return tokens, place < length[:, None]


def both_ends(start: Tensor, end: Tensor, targets: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """[K] the mean cross-entropy of the two ends, and whether both are right."""
    columns = start.shape[1]
    first = (targets["left"] - targets["at"]) % columns
    last = (targets["right"] - targets["at"]) % columns
    losses = functional.cross_entropy(start, first, reduction="none")
    losses = losses + functional.cross_entropy(end, last, reduction="none")
    return losses / 2, (start.argmax(1) == first) & (end.argmax(1) == last)

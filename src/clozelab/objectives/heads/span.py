"""The head that predicts a span's tokens from the two tokens around it (SpanBERT §3.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozelab.contracts import Encoded, Sums
from clozelab.layers import Linear, Norm, activate, initialise
from clozelab.objectives.heads.vocabulary import predictions
from clozelab.objectives.objective import Tied

if TYPE_CHECKING:
    from clozelab.objectives.spans import SpanBoundary


class SpanBoundaryHead(nn.Module):
    """Two dense layers over both neighbours' states and the offset, then the tied table.

    A `chained` head also reads the previous token; `start` is that of a span's first token.
    """

    fused: bool = False

    def __init__(self, part: SpanBoundary, encoder: Tied, vocabulary: int) -> None:
        super().__init__()
        width, narrow = encoder.hidden_size, encoder.embedding_size
        input_size = 2 * width + part.dimension + (narrow if part.chained else 0)
        self.positions = nn.Embedding(part.positions, part.dimension)
        self.start = nn.Parameter(torch.zeros(narrow)) if part.chained else None
        self.first = Linear(input_size, width)
        self.first_norm = Norm(width, eps=encoder.epsilon)
        self.second = Linear(width, narrow)
        self.second_norm = Norm(narrow, eps=encoder.epsilon)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.activation = encoder.activation
        initialise(self, encoder.hidden_size)

    def forward(self, encoded: Encoded, targets: dict[str, Tensor]) -> Sums:
        """The loss at the targets, their number, and how many were right."""
        x = self.guesses(encoded, targets)
        return predictions(x, encoded.table, self.bias, targets, fused=self.fused)[1]

    def guesses(self, encoded: Encoded, targets: dict[str, Tensor]) -> Tensor:
        """[K, E] the predictions in the space of the table."""
        states_NW, table_VE = encoded.hidden_states, encoded.table
        assert table_VE is not None, "this head is tied to an embedding table"
        inputs = [states_NW.index_select(0, targets[side]) for side in ("left", "right")]
        inputs.append(self.positions(targets["offset"]).to(states_NW.dtype))
        if self.start is not None:
            previous_KE = functional.embedding(targets["previous"], table_VE)
            previous_KE = torch.where(targets["offset"][:, None] == 0, self.start, previous_KE)
            inputs.append(previous_KE.to(states_NW.dtype))
        x_KW = self.first_norm(activate(self.first(torch.cat(inputs, dim=1)), self.activation))
        x_KE: Tensor = self.second_norm(activate(self.second(x_KW), self.activation))
        return x_KE

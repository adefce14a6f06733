"""The embeddings of a Transformer: the sum of tokens, learned positions and types."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozelab.contracts import Input
from clozelab.layers import Linear, drop, norm_of

if TYPE_CHECKING:
    from clozelab.encoder.transformer import Transformer


class Embeddings(nn.Module):
    """The sum of token, learned position and type, then norm, dropout and projection.

    With a `delta` the table of tokens is another encoder's, to which no gradient flows, plus the
    delta (DeBERTa-v3 §3.3).
    """

    delta: nn.Parameter | None

    def __init__(self, shape: Transformer, vocabulary: int) -> None:
        super().__init__()
        narrow = shape.embedding_size
        self.words = nn.Embedding(vocabulary, narrow)
        rows = shape.positions + shape.position_offset
        self.positions = nn.Embedding(rows, narrow) if shape.learns_positions else None
        self.types = nn.Embedding(shape.types, narrow) if shape.types else None
        self.norm = norm_of(shape, narrow) if shape.embedding_norm else None
        projects = narrow != shape.hidden_size
        self.projection = Linear(narrow, shape.hidden_size, bias=shape.bias) if projects else None
        self.offset, self.rate = shape.position_offset, shape.dropout
        self.late = shape.absolute_positions == "decoder"  # the decoder adds the positions
        self.register_parameter("delta", None)

    @property
    def table(self) -> Tensor:
        """[V, E] the table of tokens."""
        shared = self.words.weight
        return shared if self.delta is None else shared.detach() + self.delta

    def forward(self, batch: Input, table: Tensor, dtype: torch.dtype) -> Tensor:
        """[N, W] the embeddings in the given precision; `table` is `self.table`, passed in."""
        x = functional.embedding(batch.ids, table)
        if self.positions is not None and not self.late:
            x = x + self.positions(batch.position_ids + self.offset)
        if self.types is not None:
            x = x + self.types(batch.segments)
        if self.norm is not None:
            x = self.norm(x)
        x = drop(x.to(dtype), self.rate, self.training)
        return x if self.projection is None else self.projection(x)

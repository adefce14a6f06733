"""What the layers of a Transformer read: tokens, learned positions and types, added up."""

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
    """Token, learned position and type added up, then norm, dropout and the way to full width.

    With a `delta` the table of tokens is another encoder's, from which it takes no gradient, and
    what it adds to that (DeBERTa-v3 §3.3).
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
        self.late = shape.absolute_positions == "decoder"  # it is the decoder that adds positions
        self.register_parameter("delta", None)

    @property
    def table(self) -> Tensor:
        """[V, E] of tokens."""
        shared = self.words.weight
        return shared if self.delta is None else shared.detach() + self.delta

    def forward(self, batch: Input, table: Tensor, dtype: torch.dtype) -> Tensor:
        """[N, W] in the given precision; the `table` is its own, computed before."""
        x = functional.embedding(batch.ids, table)
        if self.positions is not None and not self.late:
            x = x + self.positions(batch.position_ids + self.offset)
        if self.types is not None:
            x = x + self.types(batch.segments)
        if self.norm is not None:
            x = self.norm(x)
        x = drop(x.to(dtype), self.rate, self.training)
        return x if self.projection is None else self.projection(x)

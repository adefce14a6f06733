"""The attention of a layer as a module: its projections and norms, also for distances."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozelab.encoder.attention import (
    DistanceTable,
    Layout,
    PositionHeads,
    Scope,
    attend,
    attend_at,
    attend_folded,
)
from clozelab.encoder.positions import rotate
from clozelab.layers import Linear, drop, norm_of

if TYPE_CHECKING:
    from clozelab.encoder.transformer import Transformer

_ROLES = ("query", "key")  # of distances, in the order of the contents' projections


class Attention(nn.Module):
    """Self-attention with one projection for queries, keys and values, and its norms."""

    def __init__(self, shape: Transformer, *, normalises: bool = True) -> None:
        super().__init__()
        self.qkv = Linear(shape.hidden_size, 3 * shape.hidden_size, bias=shape.bias)
        self.output = Linear(shape.hidden_size, shape.hidden_size, bias=shape.bias)
        self.norm = norm_of(shape, shape.hidden_size) if normalises else None
        self.query_norm = norm_of(shape, shape.head_size) if shape.qk_norm else None
        self.key_norm = norm_of(shape, shape.head_size) if shape.qk_norm else None
        own = shape.position_roles if shape.position_projections == "own" else ()
        self.position_query, self.position_key = (
            Linear(shape.hidden_size, shape.hidden_size, bias=shape.bias) if role in own else None
            for role in _ROLES
        )
        self.heads, self.rate = shape.heads, shape.attention_dropout
        self.value_residual = shape.value_residual
        self.position_roles, self.position_rate = shape.position_roles, shape.dropout

    def forward(
        self,
        x_NW: Tensor,
        layout: Layout,
        scope: Scope,
        *,
        first_NHA: Tensor | None = None,
        asks: Tensor | None = None,
        at_B: Tensor | None = None,
        like: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The outputs of all heads, and the values, if computed; the caller projects the outputs.

        `first_NHA` are the values of the first layer, which are mixed into its own. `asks` are the
        states of the queries, by default x: [N, W], or with `at_B` [B, W], those of one token of
        each full block. `like` [N] is each token's row of x, if equal tokens share a row.
        """
        if asks is not None and at_B is not None and self._folds(scope):
            x_NW = x_NW if like is None else x_NW.index_select(0, like)
            return self._folded(asks, x_NW, layout, scope, at_B), None
        q, k_NHA, v_NHA = self._project(x_NW, asks, like)
        if self.query_norm is not None and self.key_norm is not None:
            q, k_NHA = self.query_norm(q), self.key_norm(k_NHA)
        if scope.rotation is not None:
            rotation = scope.rotation
            q = rotate(q, rotation if at_B is None else rotation.at(at_B))
            k_NHA = rotate(k_NHA, rotation)
        if first_NHA is not None:
            v_NHA = torch.lerp(v_NHA, first_NHA, self.value_residual)
        distances = self.distances(scope.relative)
        if at_B is not None:
            heads = attend_at(q, k_NHA, v_NHA, layout, scope=scope, at_B=at_B, distances=distances)
            return heads, v_NHA
        rate = self.rate if self.training else 0.0
        heads = attend(q, k_NHA, v_NHA, layout, scope=scope, dropout=rate, distances=distances)
        return heads, v_NHA

    def normalised(self, x: Tensor) -> Tensor:
        """The norm of x; x itself if there is no norm."""
        return x if self.norm is None else self.norm(x)

    def distances(self, relative: DistanceTable | None) -> PositionHeads | None:
        """The queries and keys of the table, by the contents' projections unless it has its own."""
        if relative is None:
            return None
        states_PW = drop(relative.states, self.position_rate, self.training)
        heads: dict[str, Tensor] = {}
        for number, role in enumerate(_ROLES):
            own = self.position_query if role == "query" else self.position_key
            if role in self.position_roles:
                (heads[role],) = (
                    self._project_some(states_PW, number, number + 1)
                    if own is None
                    else self._split_heads(own(states_PW), 1)
                )
        return PositionHeads(relative.rows, heads.get("query"), heads.get("key"))

    def _project(
        self, x_NW: Tensor, asks: Tensor | None, like: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values by head; the queries may come from other states."""
        # The full projection first: where weights are sharded, that gathers them.
        product = self.qkv(x_NW if asks is None else asks)
        if asks is None and like is not None:
            product = product.index_select(0, like)
        q, k_NHA, v_NHA = self._split_heads(product, 3)
        if asks is not None:
            x_NW = x_NW if like is None else x_NW.index_select(0, like)
            k_NHA, v_NHA = self._project_some(x_NW, 1, 3)
        return q, k_NHA, v_NHA

    def _folds(self, scope: Scope) -> bool:
        """Whether keys and values are plain projections, so that they can be folded away."""
        changed = self.key_norm is not None or self.value_residual or scope.relative is not None
        return not changed and scope.rotation is None

    def _folded(
        self, asks_BW: Tensor, x_NW: Tensor, layout: Layout, scope: Scope, at_B: Tensor
    ) -> Tensor:
        """[B, W] attention outputs of one token of each full block, without keys and values.

        A score is q · (K x) = (Kᵀ q) · x up to a constant, and a sum of values is the value of the
        sum: so no other token needs a key or a value.
        """
        (q_BHA,) = self._project_some(asks_BW, 0, 1)
        weight = self.qkv.weight.to(x_NW.dtype).view(3, *q_BHA.shape[1:], -1)
        asks_BHW = torch.einsum("bha,haw->bhw", q_BHA, weight[1])
        sums_BHW = attend_folded(
            asks_BHW, x_NW, layout, scope=scope, at_B=at_B, size=q_BHA.shape[2]
        )
        heads_BHA = torch.einsum("bhw,haw->bha", sums_BHW, weight[2])
        if self.qkv.bias is not None:
            heads_BHA = heads_BHA + self.qkv.bias.to(x_NW.dtype).view(3, *q_BHA.shape[1:])[2]
        return heads_BHA.flatten(1)

    def _project_some(self, x_NW: Tensor, begin: int, end: int) -> tuple[Tensor, ...]:
        """The queries (0), keys (1) and values (2) from `begin` up to `end`, [N, H, A] each."""
        rows = slice(begin * x_NW.shape[1], end * x_NW.shape[1])
        bias = None if self.qkv.bias is None else self.qkv.bias[rows].to(x_NW.dtype)
        product = functional.linear(x_NW, self.qkv.weight[rows].to(x_NW.dtype), bias)
        return self._split_heads(product, end - begin)

    def _split_heads(self, product: Tensor, parts: int) -> tuple[Tensor, ...]:
        return product.view(product.shape[0], parts, self.heads, -1).unbind(1)

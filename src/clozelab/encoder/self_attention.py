"""The attention of a layer as a module: its projections and norms, those of distances too."""

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
)
from clozelab.encoder.positions import rotate
from clozelab.layers import Linear, drop, norm_of

if TYPE_CHECKING:
    from clozelab.encoder.transformer import Transformer

_ROLES = ("query", "key")  # of distances, in the order of the contents' projections


class Attention(nn.Module):
    """Self-attention, queries, keys and values from one product; the norms that belong to it."""

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
    ) -> tuple[Tensor, Tensor]:
        """The sums of all heads, and the values; the output projection is the caller's.

        `first_NHA` are the values of the first layer, which are mixed into its own. `asks` are the
        states that queries are of, x unless given: [N, W], or with `at_B` [B, W], those of one
        token of each full block.
        """
        q, k_NHA, v_NHA = self._project(x_NW, asks)
        if self.query_norm is not None and self.key_norm is not None:
            q, k_NHA = self.query_norm(q), self.key_norm(k_NHA)
        if scope.rotation is not None:
            turns = scope.rotation
            q = rotate(q, turns if at_B is None else turns.at(at_B))
            k_NHA = rotate(k_NHA, turns)
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
        """x, where there is no norm."""
        return x if self.norm is None else self.norm(x)

    def distances(self, relative: DistanceTable | None) -> PositionHeads | None:
        """The table's queries and keys, by the contents' projections unless it has its own."""
        if relative is None:
            return None
        states_PW = drop(relative.states, self.position_rate, self.training)
        heads: dict[str, Tensor] = {}
        for number, role in enumerate(_ROLES):
            own = self.position_query if role == "query" else self.position_key
            if role in self.position_roles:
                (heads[role],) = (
                    self._some(states_PW, number, number + 1)
                    if own is None
                    else self._headed(own(states_PW), 1)
                )
        return PositionHeads(relative.rows, heads.get("query"), heads.get("key"))

    def _project(self, x_NW: Tensor, asks: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values by head; the queries may be of other states."""
        # By the whole product first: where weights are sharded, that gathers them.
        q, k_NHA, v_NHA = self._headed(self.qkv(x_NW if asks is None else asks), 3)
        if asks is not None:
            k_NHA, v_NHA = self._some(x_NW, 1, 3)
        return q, k_NHA, v_NHA

    def _some(self, x_NW: Tensor, begin: int, end: int) -> tuple[Tensor, ...]:
        """Of queries, keys and values those from one number up to another, [N, H, A] each."""
        rows = slice(begin * x_NW.shape[1], end * x_NW.shape[1])
        bias = None if self.qkv.bias is None else self.qkv.bias[rows].to(x_NW.dtype)
        product = functional.linear(x_NW, self.qkv.weight[rows].to(x_NW.dtype), bias)
        return self._headed(product, end - begin)

    def _headed(self, product: Tensor, parts: int) -> tuple[Tensor, ...]:
        return product.view(product.shape[0], parts, self.heads, -1).unbind(1)

"""The Transformer as a module: embeddings, then layers that may share their halves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from clozelab.contracts import Encoded, Input, Projections
from clozelab.encoder import fused
from clozelab.encoder.attention import DistanceTable, Layout, Scope, lay_out
from clozelab.encoder.embeddings import Embeddings
from clozelab.encoder.positions import (
    alibi_slopes,
    nearer_rows,
    rotation,
    rows_of_distances,
)
from clozelab.encoder.self_attention import Attention
from clozelab.layers import FeedForward, Rows, drop, initialise, norm_of, rectangle

if TYPE_CHECKING:
    from clozelab.encoder.transformer import Transformer


class Chosen(NamedTuple):
    """The tokens that the last layer is computed for."""

    at: Tensor  # [T] packed positions
    alone: bool = False  # one token of each full block, in order, which has the only query


class Stack(nn.Module):
    """Embeddings and layers; see `Transformer` for the settings.

    `precision` is the dtype of the activations, the parameters' own if None; `recompute` saves
    memory by recomputing the activations inside a layer; `fused` uses our kernels on a GPU.
    """

    precision: torch.dtype | None = None
    recompute: bool = False
    fused: bool = False
    slopes: Tensor | None  # [H] of ALiBi
    rows: Tensor | None  # [2 · positions − 1] the row of each distance (disentangled attention)
    near: int  # up to this distance d, rows lie within d of the middle row

    def __init__(self, shape: Transformer, vocabulary: int) -> None:
        super().__init__()
        self.shape = shape
        self.embeddings = Embeddings(shape, vocabulary)
        self.attention = nn.ModuleList(
            Attention(shape, normalises=number > 0 or shape.first_norm)
            for number in range(shape.copies("attention"))
        )
        self.ffn = nn.ModuleList(
            FeedForward(shape, shape.intermediate_size, gated=shape.gated)
            for _ in range(shape.copies("ffn"))
        )
        self.norm = norm_of(shape, shape.hidden_size) if shape.norm == "pre" else None
        alibi = shape.position_embedding == "alibi"
        slopes = torch.tensor(alibi_slopes(shape.heads)) if alibi else None
        self.register_buffer("slopes", slopes, persistent=False)
        self._add_relative()
        initialise(self, shape.hidden_size)
        self._scale_outputs()

    def forward(
        self,
        batch: Input,
        *,
        keep: bool = False,
        project: int | None = None,
        at: Tensor | None = None,
    ) -> Encoded:
        """The states of every token, or of those at positions `at` [T]; with `keep` of every layer.

        With `at`, the last layer after its attention is computed only for these. `project` adds the
        queries, keys and values of that layer for every token; -1 is the last.
        """
        assert at is None or not keep
        chosen = None if at is None else Chosen(at)
        table, x, layout = self._read(batch)
        keep_all, scopes = keep or project is not None or self.decodes, self.scopes(batch)
        if self.fused and fused.serves(self.shape):
            states = fused.layers(self, x, layout, scopes, keep=keep_all, at=at)
        else:
            states = _layers(self, x, layout, scopes, keep=keep_all, chosen=chosen)
        encoded = Encoded(states[-1], table, (x, *states) if keep else ())
        if self.decodes:
            decoded = self._decoded(batch, (x, *states)[-2], layout, scopes[-1], chosen)
            encoded = encoded._replace(decoded=decoded)
        if project is None:
            return encoded
        number = project % self.shape.layers
        return encoded._replace(projections=self._projected(batch, (x, *states)[number], number))

    def share_embeddings(self, other: Stack, *, disentangled: bool = False) -> None:
        """Use another encoder's tables and their norm; the projection to full width stays its own.

        `disentangled`: only the table of tokens, to which the other adds a delta; its gradients
        reach the delta but not the table (DeBERTa-v3 §3.3).
        """
        for name in ("words",) if disentangled else ("words", "positions", "types", "norm"):
            setattr(self.embeddings, name, getattr(other.embeddings, name))
        if disentangled:
            other.embeddings.delta = nn.Parameter(torch.zeros_like(other.embeddings.words.weight))

    def leave_generator(self) -> None:
        """Replace the generator's table plus the delta by a table of its own."""
        if self.embeddings.delta is not None:
            table = nn.Parameter(self.embeddings.table.detach())
            self.embeddings.words = nn.Embedding(*table.shape)
            self.embeddings.words.weight, self.embeddings.delta = table, None

    def states_at(self, batch: Input, at: Tensor) -> Encoded:
        """As `forward`, but of one token of each block, which has the only query of the last layer.

        Blocks are full, and `at` [B] has the packed positions; the states are [B, W]. Blocks may be
        copies that differ in a token or two: embeddings, and the queries, keys and values of the
        first layer, are computed once for all equal tokens.
        """
        assert batch.dense
        assert not self.shape.causal
        assert not batch.causal
        distinct, like = _distinct(batch)
        table, x, layout = self._read(batch, distinct)
        scopes, chosen = self.scopes(batch), Chosen(at, alone=True)
        states = _layers(self, x, layout, scopes, keep=self.decodes, chosen=chosen, like=like)
        encoded = Encoded(states[-1], table)
        if not self.decodes:
            return encoded
        before = states[-2] if len(states) > 1 else x.index_select(0, like)
        decoded = self._decoded(batch, before, layout, scopes[-1], chosen)
        return encoded._replace(decoded=decoded)

    @property
    def decodes(self) -> bool:
        """Whether it has a mask decoder, whose states predict the tokens."""
        return self.shape.absolute_positions == "decoder"

    def scopes(self, batch: Input) -> list[Scope]:
        """The scope of attention of each layer, for a batch."""
        shape = self.shape
        windows = [shape.window_of(number) for number in range(shape.layers)]
        scopes, relative = {}, self._relative(batch.max_seqlen)
        for window in {*windows}:
            rotations = None
            if shape.position_embedding == "rotary":
                theta = shape.local_rope_theta if window else shape.rope_theta
                dtype = self.embeddings.words.weight.dtype
                rotations = rotation(batch.position_ids, shape.head_size, theta, dtype)
            scopes[window] = Scope(window, rotations, self.slopes, relative)
        return [scopes[window] for window in windows]

    def _read(self, batch: Input, distinct: Input | None = None) -> tuple[Tensor, Tensor, Layout]:
        """The table of tokens, the embeddings [N, W] (or of distinct tokens), and the layout."""
        table = self.embeddings.table
        dtype = self.precision or table.dtype
        adds = self.slopes is not None or self.relative is not None
        layout = lay_out(
            batch, dtype, head_size=self.shape.head_size, adds=adds, causal=self.shape.causal
        )
        return table, self.embeddings(batch if distinct is None else distinct, table, dtype), layout

    def _add_relative(self) -> None:
        """Add the table of distances, if it has one."""
        shape, rows = self.shape, None
        self.near = 0
        self.relative = self.relative_norm = None
        if shape.position_embedding == "disentangled":
            self.relative = nn.Embedding(shape.position_rows, shape.hidden_size)
            self.relative_norm = norm_of(shape, shape.hidden_size) if shape.position_norm else None
            distances: dict[str, Any] = {
                "span": shape.position_rows // 2,
                "reach": shape.reach,
                "buckets": shape.position_buckets > 0,
            }
            rows = rows_of_distances(shape.positions, **distances)
            self.near = nearer_rows(shape.positions, **distances)
        self.register_buffer("rows", rows, persistent=False)

    def _relative(self, longest: int) -> DistanceTable | None:
        """The table of distances for every layer, in the precision of the activations.

        Short blocks need only the rows near the middle one, if rows of short distances lie there;
        the ONNX graph, whose length is symbolic, has them all.
        """
        if self.relative is None or self.rows is None:
            return None
        states_PW, rows = self.relative.weight, self.rows
        middle, far = states_PW.shape[0] // 2, longest - 1
        if isinstance(far, int) and far < middle and far <= self.near:
            first = middle - far
            states_PW, rows = states_PW[first : middle + far + 1], rows - first
        if self.relative_norm is not None:
            states_PW = self.relative_norm(states_PW)
        return DistanceTable(states_PW.to(self.precision or states_PW.dtype), rows)

    def _decoded(
        self, batch: Input, x_NW: Tensor, layout: Layout, scope: Scope, chosen: Chosen | None
    ) -> Tensor:
        """The states of the mask decoder: the last layer, with positions added to its queries.

        As in the released code it is applied twice, the second time with its output as queries.
        They are those of all tokens, unless only one of each block has a query.
        """
        assert self.embeddings.positions is not None
        asks: Tensor = x_NW + self.embeddings.positions(batch.position_ids).to(x_NW.dtype)
        alone = chosen if chosen is not None and chosen.alone else None
        asks = asks if alone is None else asks.index_select(0, alone.at)
        for where in (alone, chosen):
            asks, _ = _layer(self, self.shape.layers - 1, x_NW, None, layout, scope, where, asks)
        return asks if self.norm is None else self.norm(asks)

    def _projected(self, batch: Input, x_NW: Tensor, number: int) -> Projections:
        """Queries, keys and values of a layer with input x, before norms and rotation of heads.

        They are computed again, so that layers need not return them.
        """
        attention, _ = self.halves(number)
        qkv = attention.qkv(x_NW if self.norm is None else attention.normalised(x_NW))
        cells, cell, seen = rectangle(batch)
        qkv = qkv.index_select(0, cells).view(*seen.shape, 3, -1)
        return Projections(qkv, seen, cell)

    @torch.no_grad()
    def _scale_outputs(self) -> None:
        """Scale the initial output of each half: unchanged, by depth (GPT-2 §2.3), or zero."""
        if self.shape.output_init == "normal":
            return
        scale = 0.0 if self.shape.output_init == "zero" else (2 * self.shape.layers) ** -0.5
        for half in (*self.attention, *self.ffn):
            half.output.weight.mul_(scale)

    def halves(self, number: int) -> tuple[Attention, FeedForward]:
        """The two halves of a layer, which others may share."""
        attention = self.attention[number * len(self.attention) // self.shape.layers]
        ffn = self.ffn[number * len(self.ffn) // self.shape.layers]
        assert isinstance(attention, Attention)
        assert isinstance(ffn, FeedForward)
        return attention, ffn


def _layers(
    stack: Stack,
    x: Tensor,
    layout: Layout,
    scopes: list[Scope],
    *,
    keep: bool,
    chosen: Chosen | None = None,
    like: Tensor | None = None,
) -> list[Tensor]:
    """The states of the last layer, perhaps of some tokens only; with `keep` of every layer.

    `like` [N] is each token's row of x, if equal tokens share a row.
    """
    states: list[Tensor] = []
    first: Tensor | None = None  # the values of the first layer
    for number, scope in enumerate(scopes):
        last = number == len(scopes) - 1
        arguments = (stack, number, x, first, layout, scope, chosen if last else None, None, like)
        if stack.recompute and stack.training:
            x, values = checkpoint(_layer, *arguments, use_reentrant=False)
        else:
            x, values = _layer(*arguments)
        like = None
        if number == 0 and stack.shape.value_residual:
            first = values
        if keep:
            states.append(x)
    if stack.norm is not None:
        x = stack.norm(x)
    return [*states[:-1], x]


def _layer(
    stack: Stack,
    number: int,
    x: Tensor,
    first: Tensor | None,
    layout: Layout,
    scope: Scope,
    chosen: Chosen | None,
    asks: Tensor | None = None,
    like: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The output of a layer, and its values; post-norm as in BERT, or pre-norm.

    `asks` are the states of its queries and residual stream, if not those that it attends to.
    """
    attention, ffn = stack.halves(number)
    rate, training, pre = stack.shape.dropout, stack.training, stack.norm is not None
    alone = None if chosen is None or not chosen.alone else chosen.at
    normal = attention.normalised(x) if pre else x
    x = x if like is None else x.index_select(0, like)
    if asks is None and alone is not None:
        asks = x.index_select(0, alone)
    asking = attention.normalised(asks) if pre and asks is not None else asks
    heads, values = attention(
        normal, layout, scope, first_NHA=first, asks=asking, at_B=alone, like=like
    )
    x, rows = x if asks is None else asks, None
    if chosen is not None and alone is None:
        rows = Rows(chosen.at, x.shape[0])
        x, heads = x.index_select(0, rows.at), heads.index_select(0, rows.at)
    x = x + drop(attention.output(heads), rate, training, rows)
    if pre:
        return x + drop(ffn(ffn.norm(x)), rate, training, rows), values
    x = attention.normalised(x)
    return ffn.norm(x + drop(ffn(x), rate, training, rows)), values


def _distinct(batch: Input) -> tuple[Input, Tensor]:
    """One token of each distinct (id, position, segment), and [N] the index of each token's."""
    names = ("position_ids", "segments")
    kinds = batch.ids
    for values in (getattr(batch, name) for name in names):
        kinds = kinds * (values.max() + 1) + values
    distinct, like = torch.unique(kinds, return_inverse=True)
    one = torch.empty_like(distinct).scatter_(0, like, torch.arange(len(like), device=like.device))
    columns = {name: getattr(batch, name).index_select(0, one) for name in ("ids", *names)}
    return batch._replace(**columns), like

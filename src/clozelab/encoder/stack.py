"""The Transformer as a module: embeddings, then layers that may share their halves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from clozelab.contracts import Encoded, Input, Projections
from clozelab.encoder import fused
from clozelab.encoder.attention import Layout, Scope, attend, attend_at, lay_out, rectangle
from clozelab.encoder.positions import alibi_slopes, rotate, rotation
from clozelab.layers import FeedForward, Linear, Norm, drop, initialise

if TYPE_CHECKING:
    from clozelab.encoder.transformer import Transformer


class Embeddings(nn.Module):
    """Token, learned position and type added up, then norm, dropout and the way to full width."""

    def __init__(self, shape: Transformer, vocabulary: int) -> None:
        super().__init__()
        narrow = shape.embedding
        self.words = nn.Embedding(vocabulary, narrow)
        rows = shape.positions + shape.position_offset
        learned = shape.position_embedding == "learned"
        self.positions = nn.Embedding(rows, narrow) if learned else None
        self.types = nn.Embedding(shape.types, narrow) if shape.types else None
        self.norm = _norm(shape, narrow) if shape.embedding_norm else None
        projects = narrow != shape.width
        self.projection = Linear(narrow, shape.width, bias=shape.bias) if projects else None
        self.offset, self.rate = shape.position_offset, shape.dropout

    def forward(self, batch: Input, dtype: torch.dtype) -> Tensor:
        """[N, W] in the given precision."""
        x: Tensor = self.words(batch.ids)
        if self.positions is not None:
            x = x + self.positions(batch.position_ids + self.offset)
        if self.types is not None:
            x = x + self.types(batch.segments)
        if self.norm is not None:
            x = self.norm(x)
        x = drop(x.to(dtype), self.rate, self.training)
        return x if self.projection is None else self.projection(x)


class Attention(nn.Module):
    """Self-attention, queries, keys and values from one product; the norms that belong to it."""

    def __init__(self, shape: Transformer, *, normalises: bool = True) -> None:
        super().__init__()
        self.qkv = Linear(shape.width, 3 * shape.width, bias=shape.bias)
        self.output = Linear(shape.width, shape.width, bias=shape.bias)
        self.norm = _norm(shape, shape.width) if normalises else None
        self.query_norm = _norm(shape, shape.head_size) if shape.qk_norm else None
        self.key_norm = _norm(shape, shape.head_size) if shape.qk_norm else None
        self.heads, self.rate = shape.heads, shape.attention_dropout
        self.value_residual = shape.value_residual

    def forward(
        self,
        x_NW: Tensor,
        layout: Layout,
        scope: Scope,
        *,
        first_NHA: Tensor | None = None,
        at_B: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """[N, W] the attended sum, and its values; norm, residual and dropout are the caller's."""
        heads, v_NHA = self.attended(x_NW, layout, scope, first_NHA=first_NHA, at_B=at_B)
        return self.output(heads), v_NHA

    def attended(
        self,
        x_NW: Tensor,
        layout: Layout,
        scope: Scope,
        *,
        first_NHA: Tensor | None = None,
        at_B: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """[N, W] the sums of all heads, before the last product, and the values.

        `first_NHA` are the values of the first layer, which are mixed into its own. With `at_B` the
        sum is [B, W], of one token of each full block.
        """
        q, k_NHA, v_NHA = self._project(x_NW, at_B)
        if self.query_norm is not None and self.key_norm is not None:
            q, k_NHA = self.query_norm(q), self.key_norm(k_NHA)
        if scope.rotation is not None:
            turns = scope.rotation
            q = rotate(q, turns if at_B is None else turns.at(at_B))
            k_NHA = rotate(k_NHA, turns)
        if first_NHA is not None:
            v_NHA = torch.lerp(v_NHA, first_NHA, self.value_residual)
        if at_B is None:
            rate = self.rate if self.training else 0.0
            return attend(q, k_NHA, v_NHA, layout, scope=scope, dropout=rate), v_NHA
        return attend_at(q, k_NHA, v_NHA, layout, scope=scope, at_B=at_B), v_NHA

    def normalised(self, x: Tensor) -> Tensor:
        """x, where there is no norm."""
        return x if self.norm is None else self.norm(x)

    def _project(self, x_NW: Tensor, at_B: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values by head; with `at_B` only keys and values are for all."""
        tokens, width = x_NW.shape
        if at_B is None:
            q_NHA, k_NHA, v_NHA = self.qkv(x_NW).view(tokens, 3, self.heads, -1).unbind(1)
            return q_NHA, k_NHA, v_NHA
        weight, bias = self.qkv.weight.to(x_NW.dtype), self.qkv.bias
        before, after = (None, None) if bias is None else bias.to(x_NW.dtype).tensor_split([width])
        q_BW = functional.linear(x_NW.index_select(0, at_B), weight[:width], before)
        kv = functional.linear(x_NW, weight[width:], after).view(tokens, 2, self.heads, -1)
        k_NHA, v_NHA = kv.unbind(1)
        return q_BW.view(len(at_B), self.heads, -1), k_NHA, v_NHA


class Stack(nn.Module):
    """Embeddings and layers; see `Transformer` for the switches.

    `precision` is the type of the activations, the parameters' own if None; `recompute` trades
    time for memory by keeping no activations inside a layer; `fused` takes the kernels of a GPU.
    """

    precision: torch.dtype | None = None
    recompute: bool = False
    fused: bool = False
    slopes: Tensor | None  # [H] of ALiBi

    def __init__(self, shape: Transformer, vocabulary: int) -> None:
        super().__init__()
        self.shape = shape
        self.embeddings = Embeddings(shape, vocabulary)
        self.attention = nn.ModuleList(
            Attention(shape, normalises=number > 0 or shape.first_norm)
            for number in range(shape.copies("attention"))
        )
        self.ffn = nn.ModuleList(
            FeedForward(
                shape.width,
                shape.inner,
                activation=shape.activation,
                epsilon=shape.epsilon,
                gated=shape.gated,
                bias=shape.bias,
                normalisation=shape.normalisation,
            )
            for _ in range(shape.copies("ffn"))
        )
        self.norm = _norm(shape, shape.width) if shape.norm == "pre" else None
        alibi = shape.position_embedding == "alibi"
        slopes = torch.tensor(alibi_slopes(shape.heads)) if alibi else None
        self.register_buffer("slopes", slopes, persistent=False)
        initialise(self, shape.width)
        self._scale_outputs()

    def forward(self, batch: Input, *, keep: bool = False, project: int | None = None) -> Encoded:
        """The states of every token; with `keep` those of every layer as well.

        `project` asks for queries, keys and values of a layer; -1 is the last.
        """
        table = self.embeddings.words.weight
        dtype = self.precision or table.dtype
        x: Tensor = self.embeddings(batch, dtype)
        layout = self._layout(batch, dtype)
        keeps = keep or project is not None
        if self.fused and fused.serves(self.shape):
            states = fused.layers(self, x, layout, self.scopes(batch), keep=keeps)
        else:
            states = _layers(self, x, layout, self.scopes(batch), keep=keeps)
        encoded = Encoded(states[-1], table, (x, *states) if keep else ())
        if project is None:
            return encoded
        number = project % self.shape.layers
        return encoded._replace(projections=self._projected(batch, (x, *states)[number], number))

    def share_embeddings(self, other: Stack) -> None:
        """Take another encoder's tables and their norm; the way to full width stays its own."""
        for name in ("words", "positions", "types", "norm"):
            setattr(self.embeddings, name, getattr(other.embeddings, name))

    def states_at(self, batch: Input, at: Tensor) -> Encoded:
        """As `forward`, but the last layer is computed only where a token is asked for.

        Blocks are full, and `at` [B] has one packed position of each; the states are [B, W].
        """
        assert batch.dense
        assert not self.shape.causal
        assert not batch.causal
        table = self.embeddings.words.weight
        dtype = self.precision or table.dtype
        x: Tensor = self.embeddings(batch, dtype)
        layout = self._layout(batch, dtype)
        return Encoded(_layers(self, x, layout, self.scopes(batch), keep=False, at=at)[-1], table)

    def scopes(self, batch: Input) -> list[Scope]:
        """What each layer sees of a batch."""
        shape = self.shape
        windows = [shape.window_of(number) for number in range(shape.layers)]
        scopes = {}
        for window in {*windows}:
            turns = None
            if shape.position_embedding == "rotary":
                theta = shape.local_rope_theta if window else shape.rope_theta
                dtype = self.embeddings.words.weight.dtype
                turns = rotation(batch.position_ids, shape.head_size, theta, dtype)
            scopes[window] = Scope(window, turns, self.slopes)
        return [scopes[window] for window in windows]

    def _layout(self, batch: Input, dtype: torch.dtype) -> Layout:
        slopes, causal = self.slopes is not None, self.shape.causal
        return lay_out(batch, dtype, slopes=slopes, causal=causal)

    def _projected(self, batch: Input, x_NW: Tensor, number: int) -> Projections:
        """Queries, keys and values of a layer that reads x, before norms and rotation of heads.

        They are computed once more, so that the layers need not hand them out.
        """
        attention, _ = self.halves(number)
        qkv = attention.qkv(x_NW if self.norm is None else attention.normalised(x_NW))
        cells, cell, seen = rectangle(batch)
        qkv = qkv.index_select(0, cells).view(*seen.shape, 3, -1)
        return Projections(qkv, seen, cell)

    @torch.no_grad()
    def _scale_outputs(self) -> None:
        """What each half adds at first: as drawn, less in a deep stack (GPT-2 §2.3), or nothing."""
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


def _norm(shape: Transformer, width: int) -> Norm:
    """A norm as that encoder has them."""
    return Norm(width, eps=shape.epsilon, bias=shape.bias, kind=shape.normalisation)


def _layers(
    stack: Stack,
    x: Tensor,
    layout: Layout,
    scopes: list[Scope],
    *,
    keep: bool,
    at: Tensor | None = None,
) -> list[Tensor]:
    """What the last layer puts out, perhaps `at` some tokens alone; with `keep` what each does."""
    states: list[Tensor] = []
    first: Tensor | None = None  # the values of the first layer
    for number, scope in enumerate(scopes):
        last = number == len(scopes) - 1
        arguments = (stack, number, x, first, layout, scope, at if last else None)
        if stack.recompute and stack.training:
            x, values = checkpoint(_layer, *arguments, use_reentrant=False)
        else:
            x, values = _layer(*arguments)
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
    at: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """One layer, and its values: normalised after each half's sum (BERT), or before each half."""
    attention, ffn = stack.halves(number)
    rate, training, pre = stack.shape.dropout, stack.training, stack.norm is not None
    normal = attention.normalised(x) if pre else x
    attended, values = attention(normal, layout, scope, first_NHA=first, at_B=at)
    x = (x if at is None else x.index_select(0, at)) + drop(attended, rate, training)
    if pre:
        return x + drop(ffn(ffn.norm(x)), rate, training), values
    x = attention.normalised(x)
    return ffn.norm(x + drop(ffn(x), rate, training)), values

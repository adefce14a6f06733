"""The Transformer as a module: embeddings, then layers that may share their halves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from clozelab.contracts import Encoded, Input
from clozelab.encoder import fused
from clozelab.encoder.attention import Layout, attend, lay_out
from clozelab.layers import FeedForward, Linear, Norm, drop, initialise

if TYPE_CHECKING:
    from clozelab.encoder.transformer import Transformer


class Embeddings(nn.Module):
    """Token, position and type added up, then norm, dropout and the way to full width."""

    def __init__(self, shape: Transformer, vocabulary: int) -> None:
        super().__init__()
        narrow = shape.embedding
        self.words = nn.Embedding(vocabulary, narrow)
        self.positions = nn.Embedding(shape.positions + shape.position_offset, narrow)
        self.types = nn.Embedding(shape.types, narrow) if shape.types else None
        self.norm = Norm(narrow, eps=shape.epsilon) if shape.embedding_norm else None
        self.projection = Linear(narrow, shape.width) if narrow != shape.width else None
        self.offset, self.rate = shape.position_offset, shape.dropout

    def forward(self, batch: Input, dtype: torch.dtype) -> Tensor:
        """[N, W] in the given precision."""
        x: Tensor = self.words(batch.ids) + self.positions(batch.position_ids + self.offset)
        if self.types is not None:
            x = x + self.types(batch.segments)
        if self.norm is not None:
            x = self.norm(x)
        x = drop(x.to(dtype), self.rate, self.training)
        return x if self.projection is None else self.projection(x)


class Attention(nn.Module):
    """Self-attention, queries, keys and values from one product; the norm that belongs to it."""

    def __init__(self, shape: Transformer) -> None:
        super().__init__()
        self.qkv = Linear(shape.width, 3 * shape.width)
        self.output = Linear(shape.width, shape.width)
        self.norm = Norm(shape.width, eps=shape.epsilon)
        self.heads, self.causal, self.rate = shape.heads, shape.causal, shape.attention_dropout

    def forward(self, x_NW: Tensor, layout: Layout, at_B: Tensor | None = None) -> Tensor:
        """[N, W] the attended sum; norm, residual and dropout are the caller's.

        With `at_B` it is [B, W], of one token of each full block.
        """
        if at_B is not None:
            return self._at(x_NW, layout, at_B)
        q_NHA, k_NHA, v_NHA = self.qkv(x_NW).view(x_NW.shape[0], 3, self.heads, -1).unbind(1)
        rate = self.rate if self.training else 0.0
        heads_NW = attend(q_NHA, k_NHA, v_NHA, layout, dropout=rate, causal=self.causal)
        out_NW: Tensor = self.output(heads_NW)
        return out_NW

    def _at(self, x_NW: Tensor, layout: Layout, at_B: Tensor) -> Tensor:
        """[B, W] the attended sums of one token of each full block: only keys are for all."""
        width, blocks = x_NW.shape[1], len(at_B)
        weight, bias = (parameter.to(x_NW.dtype) for parameter in self.qkv.parameters())
        q_BW = functional.linear(x_NW.index_select(0, at_B), weight[:width], bias[:width])
        kv = functional.linear(x_NW, weight[width:], bias[width:])
        kv = kv.view(blocks, layout.max_seqlen, 2, self.heads, -1)
        k_BHLA, v_BHLA = kv.permute(2, 0, 3, 1, 4)
        q_BH1A = q_BW.view(blocks, self.heads, 1, -1)
        attended = functional.scaled_dot_product_attention(q_BH1A, k_BHLA, v_BHLA)
        out_BW: Tensor = self.output(attended.reshape(blocks, width))
        return out_BW


class Stack(nn.Module):
    """Embeddings and layers; see `Transformer` for the switches.

    `precision` is the type of the activations, the parameters' own if None; `recompute` trades
    time for memory by keeping no activations inside a layer; `fused` takes the kernels of a GPU.
    """

    precision: torch.dtype | None = None
    recompute: bool = False
    fused: bool = False

    def __init__(self, shape: Transformer, vocabulary: int) -> None:
        super().__init__()
        self.shape = shape
        self.embeddings = Embeddings(shape, vocabulary)
        self.attention = nn.ModuleList(Attention(shape) for _ in range(shape.copies("attention")))
        self.ffn = nn.ModuleList(
            FeedForward(
                shape.width, shape.inner, activation=shape.activation, epsilon=shape.epsilon
            )
            for _ in range(shape.copies("ffn"))
        )
        self.norm = Norm(shape.width, eps=shape.epsilon) if shape.norm == "pre" else None
        initialise(self, shape.width)

    def forward(self, batch: Input, *, keep: bool = False) -> Encoded:
        """The states of every token; with `keep` those of every layer as well."""
        table = self.embeddings.words.weight
        dtype = self.precision or table.dtype
        x: Tensor = self.embeddings(batch, dtype)
        layout = lay_out(batch, dtype)
        through = fused.layers if self.fused else _layers
        states = through(self, x, layout, keep=keep)
        return Encoded(states[-1], table, (x, *states) if keep else ())

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
        table = self.embeddings.words.weight
        dtype = self.precision or table.dtype
        x: Tensor = self.embeddings(batch, dtype)
        return Encoded(_layers(self, x, lay_out(batch, dtype), keep=False, at=at)[-1], table)

    def halves(self, number: int) -> tuple[Attention, FeedForward]:
        """The two halves of a layer, which others may share."""
        attention = self.attention[number * len(self.attention) // self.shape.layers]
        ffn = self.ffn[number * len(self.ffn) // self.shape.layers]
        assert isinstance(attention, Attention)
        assert isinstance(ffn, FeedForward)
        return attention, ffn


def _layers(
    stack: Stack, x: Tensor, layout: Layout, *, keep: bool, at: Tensor | None = None
) -> list[Tensor]:
    """What the last layer puts out, perhaps `at` some tokens alone; with `keep` what each does."""
    states: list[Tensor] = []
    for number in range(stack.shape.layers):
        attention, ffn = stack.halves(number)
        if stack.recompute and stack.training:
            x = checkpoint(_layer, stack, attention, ffn, x, layout, use_reentrant=False)
        else:
            last = number == stack.shape.layers - 1
            x = _layer(stack, attention, ffn, x, layout, at if last else None)
        if keep:
            states.append(x)
    if stack.norm is not None:
        x = stack.norm(x)
    return [*states[:-1], x]


def _layer(
    stack: Stack,
    attention: Attention,
    ffn: FeedForward,
    x: Tensor,
    layout: Layout,
    at: Tensor | None = None,
) -> Tensor:
    """One layer: normalised after each half's sum (BERT), or before each half."""
    rate, training = stack.shape.dropout, stack.training
    attended = attention(x if stack.norm is None else attention.norm(x), layout, at)
    x = (x if at is None else x.index_select(0, at)) + drop(attended, rate, training)
    if stack.norm is None:
        x = attention.norm(x)
        return ffn.norm(x + drop(ffn(x), rate, training))  # type: ignore[no-any-return]
    return x + drop(ffn(ffn.norm(x)), rate, training)

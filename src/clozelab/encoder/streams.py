"""XLNet's encoder as a module: relative attention, content and query stream, memory (§2.3-2.5).

The names and layout of its weights in transformers are in models/interop/families.toml. Row 0 of
`segments` is the same segment, row 1 another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from clozelab.contracts import Encoded, Input
from clozelab.encoder.permutation import AttentionMask, Padding, attention_masks, padding, sinusoids
from clozelab.layers import FeedForward, Linear, activate, drop, initialise, norm_of

if TYPE_CHECKING:
    from clozelab.encoder.relative import Relative


class Context(NamedTuple):
    """What both streams of a layer attend to, by head."""

    keys: Tensor  # [B, H, K, A] of memory and content
    values: Tensor  # [B, H, K, A]
    distances: Tensor  # [B or 1, H, A, P]


class AttentionInputs(NamedTuple):
    """The inputs of attention that are the same in every layer."""

    content: AttentionMask
    queries: AttentionMask | None
    sinusoids: Tensor  # [2 or 1, P, W] of the distances: forwards, backwards
    reverse: Tensor | None  # [B] which blocks are read backwards


class StreamEmbeddings(nn.Module):
    """Token embeddings (position and segment enter in attention), and the initial query.

    There is no norm.
    """

    def __init__(self, shape: Relative, vocabulary: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, shape.hidden_size)
        self.query = nn.Parameter(torch.empty(shape.hidden_size))


class RelativeAttention(nn.Module):
    """Attention by content, distance and segment, and its norm."""

    def __init__(self, shape: Relative) -> None:
        super().__init__()
        width, heads = shape.hidden_size, shape.heads
        self.query = Linear(width, width, bias=False)
        self.key = Linear(width, width, bias=False)
        self.value = Linear(width, width, bias=False)
        self.output = Linear(width, width, bias=False)
        self.position = Linear(width, width, bias=False)
        self.content_bias = nn.Parameter(torch.empty(heads, width // heads))
        self.position_bias = nn.Parameter(torch.empty(heads, width // heads))
        self.segment_bias = nn.Parameter(torch.empty(heads, width // heads))
        self.segments = nn.Parameter(torch.empty(2, heads, width // heads))
        self.norm = norm_of(shape, width)
        self.heads, self.rate = heads, shape.attention_dropout

    def context(self, x: Tensor, sinusoids: Tensor, reverse: Tensor | None) -> Context:
        """Keys, values and distances for both streams."""
        # Transposed here, where they are few, and not where there are some for each block.
        distances = self._split(self.position(sinusoids)).mT.contiguous()
        if reverse is not None:
            # `where`, not indexing: that would add the gradients of shared rows by atomics.
            forwards, backwards = distances
            distances = torch.where(reverse[:, None, None, None], backwards, forwards)
        return Context(self._split(self.key(x)), self._split(self.value(x)), distances)

    def forward(
        self, x_BRW: Tensor, context: Context, mask: AttentionMask, seed: Tensor | None = None
    ) -> Tensor:
        """[B, R, W] attention outputs; norm, residual and dropout are the caller's.

        With a seed our kernel computes them, with dropout by that seed, without storing scores.
        """
        q_BHRA = self._split(self.query(x_BRW))
        content_BHRA = self._biased(q_BHRA, self.content_bias)
        by_distance_BHRP = self._biased(q_BHRA, self.position_bias) @ context.distances
        by_segment_BHRA = self._biased(q_BHRA, self.segment_bias)
        segments_HA = [x[:, None, :] for x in self.segments.to(q_BHRA.dtype)]
        if seed is not None:
            from clozelab.kernels.relative import attend

            queries, keys, values = (
                x.transpose(1, 2) for x in (content_BHRA, context.keys, context.values)
            )
            same, other = segments_HA
            attended_BRHA = attend(
                queries, keys, values, by_distance_BHRP, (by_segment_BHRA * (same - other)).sum(-1),
                ranks=mask.ranks, seed=seed, dropout=self.rate if self.training else 0.0,
            )  # fmt: skip
        else:
            scores_BHRK = (content_BHRA @ context.keys.mT).to(self.query.weight.dtype)
            scores_BHRK = scores_BHRK + mask.by_key(by_distance_BHRP)
            same, other = ((by_segment_BHRA * x).sum(-1, keepdim=True) for x in segments_HA)
            scores_BHRK = scores_BHRK + torch.where(mask.same_segment, same, other)
            attended_BRHA = self._attended(scores_BHRK, context.values, mask)
        out: Tensor = self.output(attended_BRHA.flatten(2))
        return out

    def _attended(self, scores_BHRK: Tensor, values_BHKA: Tensor, mask: AttentionMask) -> Tensor:
        """[B, R, H, A] the weighted values of each query."""
        scores_BHRK = scores_BHRK * values_BHKA.shape[-1] ** -0.5
        # A query may see no key at all: then its weights are zero.
        unseen = ~mask.visible
        scores_BHRK = scores_BHRK.masked_fill(unseen, torch.finfo(scores_BHRK.dtype).min)
        weights_BHRK = scores_BHRK.softmax(-1).masked_fill(unseen, 0.0)
        weights_BHRK = drop(weights_BHRK, self.rate, self.training).to(values_BHKA.dtype)
        return (weights_BHRK @ values_BHKA).transpose(1, 2)

    def _split(self, x_BRW: Tensor) -> Tensor:
        """[B, H, R, A] the heads of x."""
        return x_BRW.view(*x_BRW.shape[:2], self.heads, -1).transpose(1, 2)

    def _biased(self, q_BHRA: Tensor, bias_HA: Tensor) -> Tensor:
        """The queries with one of the three biases."""
        return q_BHRA + bias_HA.to(q_BHRA.dtype)[:, None, :]


class Streams(nn.Module):
    """Embeddings and layers; see `Relative` for the settings.

    Given an order of prediction, a token sees what the order allows, targets are predicted by
    queries that never see them, and every layer's inputs in the first half of each block become
    the next memory: the last `memory` states, blank (all zeros, never seen) if there are fewer.
    Without an order every token sees its whole block. `precision` is the dtype of the activations,
    the parameters' own if None; `recompute` recomputes the activations inside a layer; `fused` uses
    our kernels.
    """

    precision: torch.dtype | None = None
    recompute: bool = False
    fused: bool = False
    _compiled: Callable[..., tuple[Tensor, Tensor | None]] | None = None

    def __init__(self, shape: Relative, vocabulary: int) -> None:
        super().__init__()
        self.shape = shape
        self.embeddings = StreamEmbeddings(shape, vocabulary)
        self.attention = nn.ModuleList(RelativeAttention(shape) for _ in range(shape.layers))
        self.ffn = nn.ModuleList(
            FeedForward(shape, shape.intermediate_size) for _ in range(shape.layers)
        )
        initialise(self, shape.hidden_size)
        # A vector, but not a bias: initialised as the embeddings are at full width.
        nn.init.trunc_normal_(self.embeddings.query, std=0.02, a=-0.04, b=0.04)

    def compile(self, **options: Any) -> None:
        """Compile one layer for all: compiling each of them would take minutes.

        It is used only in training, which has few shapes.
        """
        self._compiled = torch.compile(self._layer, **options)

    def forward(self, batch: Input, *, keep: bool = False) -> Encoded:
        """The states of every token and of the queries; with `keep` also those of every layer."""
        table = self.embeddings.words.weight
        dtype = self.precision or table.dtype
        rows = padding(batch)
        memory = None if batch.memory is None else batch.memory.detach().to(dtype)
        content, queries = attention_masks(batch, rows, memory)
        distances = self._sinusoids(batch, content).to(dtype)
        inputs = AttentionInputs(content, queries, distances, batch.reverse)
        x = rows.pad(self._drop(self.embeddings.words(batch.ids).to(dtype)))
        g = None if queries is None else self._first_queries(queries, dtype)
        states, seeds = [x], self._seeds(x.device)
        layer = self._compiled if self._compiled is not None and self.training else self._layer
        for number, (attention, ffn) in enumerate(zip(self.attention, self.ffn, strict=True)):
            past = None if memory is None else memory[number]
            pair = (None, None) if seeds is None else tuple(seeds[number])
            arguments = (attention, ffn, (x, g), past, inputs, pair)
            if self.recompute and self.training:
                x, g = checkpoint(layer, *arguments, use_reentrant=False)
            else:
                x, g = layer(*arguments)
            states.append(x)
        return Encoded(
            rows.unpad(self._drop(x)),
            table,
            tuple(rows.unpad(state) for state in states) if keep else (),
            None if g is None else self._drop(g).flatten(0, 1),
            None if batch.order is None else self._remember(states[:-1], memory, rows),
        )

    def _seeds(self, device: torch.device) -> Tensor | None:
        """[layers, 2, 4] the dropout seeds of both streams; None if our kernels are not used."""
        if not self.fused:
            return None
        from clozelab.kernels.heads import HEAD_DIMS

        if self.shape.hidden_size // self.shape.heads not in HEAD_DIMS:
            return None
        return torch.randint(2**63 - 1, (len(self.ffn), 2, 4), device=device)

    def _sinusoids(self, batch: Input, mask: AttentionMask) -> Tensor:
        """[2 or 1, P, W] sinusoids of every distance, forwards and, if needed, backwards."""
        weight = self.embeddings.words.weight
        length, keys = mask.visible.shape[-2:]
        distances = torch.arange(keys, -length, -1, device=weight.device, dtype=weight.dtype)
        waves = sinusoids(distances, self.shape.hidden_size)
        if batch.reverse is not None:
            waves = torch.cat([waves, sinusoids(-distances, self.shape.hidden_size)])
        # Differs from XLNet's code: blocks read in the same direction share this dropout, so that
        # distances are projected once and not once for each block.
        return self._drop(waves)

    def _first_queries(self, mask: AttentionMask, dtype: torch.dtype) -> Tensor:
        """[B, T, W] the initial queries: the same learned vector everywhere."""
        blocks, _, slots, _ = mask.visible.shape
        first = self.embeddings.query.to(dtype).expand(blocks, slots, -1)
        return self._drop(first)

    def _layer(
        self,
        attention: nn.Module,
        ffn: nn.Module,
        streams: tuple[Tensor, Tensor | None],
        past: Tensor | None,
        inputs: AttentionInputs,
        seeds: tuple[Tensor | None, ...],
    ) -> tuple[Tensor, Tensor | None]:
        """One layer: both streams with the same weights attend to memory and content."""
        assert isinstance(attention, RelativeAttention)
        assert isinstance(ffn, FeedForward)
        x, g = streams
        keys = x if past is None else torch.cat([past, x], dim=1)
        context = attention.context(keys, inputs.sinusoids, inputs.reverse)
        if g is not None and inputs.queries is not None:
            g = self._stream(attention, ffn, g, context, inputs.queries, seeds[1])
        return self._stream(attention, ffn, x, context, inputs.content, seeds[0]), g

    def _stream(
        self,
        attention: RelativeAttention,
        ffn: FeedForward,
        x: Tensor,
        context: Context,
        mask: AttentionMask,
        seeds: Tensor | None,
    ) -> Tensor:
        """One stream through one layer, post-norm."""
        if seeds is not None:
            return self._fused_stream(attention, ffn, x, context, mask, seeds)
        x = attention.norm(x + self._drop(attention(x, context, mask)))
        inner = self._drop(activate(ffn.inner(x), ffn.activation))
        out: Tensor = ffn.norm(x + self._drop(ffn.output(inner)))
        return out

    def _fused_stream(
        self,
        attention: RelativeAttention,
        ffn: FeedForward,
        x: Tensor,
        context: Context,
        mask: AttentionMask,
        seeds: Tensor,
    ) -> Tensor:
        """The same by our kernels."""
        from clozelab.encoder.fused import add_norm, feed_forward

        dropout = self.shape.dropout if self.training else 0.0
        attended = attention(x, context, mask, seeds[0]).flatten(0, 1)
        rows = x.flatten(0, 1)
        _, rows = add_norm(rows, attended, attention.output, attention.norm, dropout, seeds[1])
        expanded = feed_forward(ffn, rows, seeds[2], dropout)
        _, rows = add_norm(rows, expanded, ffn.output, ffn.norm, dropout, seeds[3])
        return rows.view_as(x)

    def _remember(self, inputs: list[Tensor], old: Tensor | None, rows: Padding) -> Tensor | None:
        """[layers, B, M, W] the next memory: the old one, then the first half of each block."""
        size = self.shape.memory
        if not size:
            return None
        half = (inputs[0].shape[1] + 1) // 2
        new = torch.stack([x[:, :half] for x in inputs]).detach()
        if rows.real is not None:
            new = new.masked_fill(~rows.real[:, :half, None], 0.0)
        memory = (new if old is None else torch.cat([old, new], dim=2))[:, :, -size:]
        return functional.pad(memory, (0, 0, size - memory.shape[2], 0))

    def _drop(self, x: Tensor) -> Tensor:
        """Dropout at the encoder's rate."""
        return drop(x, self.shape.dropout, self.training)

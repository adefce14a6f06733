"""The Transformer as a module: embeddings, then layers that may share their halves."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from clozelab.contracts import Encoded, Input, Projections
from clozelab.encoder import fused
from clozelab.encoder.attention import DistanceTable, Layout, Scope, lay_out, rectangle
from clozelab.encoder.embeddings import Embeddings
from clozelab.encoder.positions import alibi_slopes, rotation, rows_of_distances
from clozelab.encoder.self_attention import Attention
from clozelab.layers import FeedForward, drop, initialise, norm_of

if TYPE_CHECKING:
    from clozelab.encoder.transformer import Transformer

_DECODING = 2  # how often the last layer is applied in a mask decoder (DeBERTa's code)


class Stack(nn.Module):
    """Embeddings and layers; see `Transformer` for the switches.

    `precision` is the type of the activations, the parameters' own if None; `recompute` trades
    time for memory by keeping no activations inside a layer; `fused` takes the kernels of a GPU.
    """

    precision: torch.dtype | None = None
    recompute: bool = False
    fused: bool = False
    takes_rows: ClassVar[bool] = True  # it may be asked for some rows of the last layer alone
    slopes: Tensor | None  # [H] of ALiBi
    rows: Tensor | None  # [2 · positions − 1] of disentangled attention: each distance's

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
                shape.hidden_size,
                shape.intermediate_size,
                activation=shape.activation,
                epsilon=shape.epsilon,
                gated=shape.gated,
                bias=shape.bias,
                normalisation=shape.normalisation,
            )
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
        rows: Tensor | None = None,
    ) -> Encoded:
        """The states of every token; with `keep` those of every layer as well.

        `project` asks for queries, keys and values of a layer; -1 is the last. Where the last
        layer's are read in some `rows` alone, the others need not be right, and may be zero.
        """
        table, x, layout = self._read(batch)
        keeps, scopes = keep or project is not None or self.decodes, self.scopes(batch)
        if self.fused and fused.serves(self.shape):
            states = fused.layers(self, x, layout, scopes, keep=keeps)
        elif rows is not None and not keeps:
            (last,) = _layers(self, x, layout, scopes, keep=False, rows=rows)
            states = [_put_back(last, rows, size=len(x))]
        else:
            states = _layers(self, x, layout, scopes, keep=keeps)
        encoded = Encoded(states[-1], table, (x, *states) if keep else ())
        if self.decodes:
            before = (x, *states)[-2]
            encoded = encoded._replace(decoded=self._decoded(batch, before, layout, scopes[-1]))
        if project is None:
            return encoded
        number = project % self.shape.layers
        return encoded._replace(projections=self._projected(batch, (x, *states)[number], number))

    def share_embeddings(self, other: Stack, *, disentangled: bool = False) -> None:
        """Take another encoder's tables and their norm; the way to full width stays its own.

        `disentangled`: only the table of tokens, and the other adds a delta to it, through which it
        has no gradient for the table itself (DeBERTa-v3 §3.3).
        """
        for name in ("words",) if disentangled else ("words", "positions", "types", "norm"):
            setattr(self.embeddings, name, getattr(other.embeddings, name))
        if disentangled:
            other.embeddings.delta = nn.Parameter(torch.zeros_like(other.embeddings.words.weight))

    def leave_generator(self) -> None:
        """Have a table of tokens of its own: what it added to the generator's is in it."""
        if self.embeddings.delta is not None:
            table = nn.Parameter(self.embeddings.table.detach())
            self.embeddings.words = nn.Embedding(*table.shape)
            self.embeddings.words.weight, self.embeddings.delta = table, None

    def states_at(self, batch: Input, at: Tensor) -> Encoded:
        """As `forward`, but the last layer is computed only where a token is asked for.

        Blocks are full, and `at` [B] has one packed position of each; the states are [B, W].
        """
        assert batch.dense
        assert not self.shape.causal
        assert not batch.causal
        table, x, layout = self._read(batch)
        scopes = self.scopes(batch)
        states = _layers(self, x, layout, scopes, keep=self.decodes, at=at)
        encoded = Encoded(states[-1], table)
        if not self.decodes:
            return encoded
        decoded = self._decoded(batch, (x, *states)[-2], layout, scopes[-1], at=at)
        return encoded._replace(decoded=decoded)

    @property
    def decodes(self) -> bool:
        """Whether tokens are predicted by other states than the last layer's."""
        return self.shape.absolute_positions == "decoder"

    def scopes(self, batch: Input) -> list[Scope]:
        """What each layer sees of a batch."""
        shape = self.shape
        windows = [shape.window_of(number) for number in range(shape.layers)]
        scopes, relative = {}, self._relative(batch.max_seqlen)
        for window in {*windows}:
            turns = None
            if shape.position_embedding == "rotary":
                theta = shape.local_rope_theta if window else shape.rope_theta
                dtype = self.embeddings.words.weight.dtype
                turns = rotation(batch.position_ids, shape.head_size, theta, dtype)
            scopes[window] = Scope(window, turns, self.slopes, relative)
        return [scopes[window] for window in windows]

    def _read(self, batch: Input) -> tuple[Tensor, Tensor, Layout]:
        """The table of tokens, [N, W] what the first layer reads, and how it lies."""
        table = self.embeddings.table
        dtype = self.precision or table.dtype
        adds = self.slopes is not None or self.relative is not None
        layout = lay_out(batch, dtype, adds=adds, causal=self.shape.causal)
        return table, self.embeddings(batch, table, dtype), layout

    def _add_relative(self) -> None:
        """Make the table of distances, if it has one."""
        shape, rows = self.shape, None
        self.relative = self.relative_norm = None
        if shape.position_embedding == "disentangled":
            self.relative = nn.Embedding(shape.position_rows, shape.hidden_size)
            self.relative_norm = norm_of(shape, shape.hidden_size) if shape.position_norm else None
            rows = rows_of_distances(
                shape.positions,
                span=shape.position_rows // 2,
                reach=shape.reach,
                buckets=shape.position_buckets > 0,
            )
        self.register_buffer("rows", rows, persistent=False)

    def _relative(self, longest: int) -> DistanceTable | None:
        """The table of distances as every layer has it, in the precision of the activations.

        A row is no farther from the middle one than its distance is long, so short blocks need few
        of them; the graph of ONNX, whose length is no number, has them all.
        """
        if self.relative is None or self.rows is None:
            return None
        states_PW, rows = self.relative.weight, self.rows
        middle, far = states_PW.shape[0] // 2, longest - 1
        if isinstance(far, int) and far < middle:
            first = middle - far
            states_PW, rows = states_PW[first : middle + far + 1], rows - first
        if self.relative_norm is not None:
            states_PW = self.relative_norm(states_PW)
        return DistanceTable(states_PW.to(self.precision or states_PW.dtype), rows)

    def _decoded(
        self, batch: Input, x_NW: Tensor, layout: Layout, scope: Scope, at: Tensor | None = None
    ) -> Tensor:
        """What predicts tokens: the last layer over the states before it, asked with positions.

        The released code's: it is applied twice, each time with what came out as the queries.
        """
        assert self.embeddings.positions is not None
        asks: Tensor = x_NW + self.embeddings.positions(batch.position_ids).to(x_NW.dtype)
        asks = asks if at is None else asks.index_select(0, at)
        for _ in range(_DECODING):
            asks, _ = _layer(self, self.shape.layers - 1, x_NW, None, layout, scope, at, asks)
        return asks if self.norm is None else self.norm(asks)

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


def _put_back(some_RW: Tensor, rows_R: Tensor, *, size: int) -> Tensor:
    """[N, W] the states of some rows in their places, zeros elsewhere.

    A row may be named often: one of them is taken, so that its gradient is there once.
    """
    numbers_R = torch.arange(len(rows_R), device=rows_R.device)
    source_N = rows_R.new_full((size,), len(rows_R)).scatter(0, rows_R, numbers_R)
    zero_1W = some_RW.new_zeros(1, some_RW.shape[1])
    return torch.cat([some_RW, zero_1W]).index_select(0, source_N)


def _layers(
    stack: Stack,
    x: Tensor,
    layout: Layout,
    scopes: list[Scope],
    *,
    keep: bool,
    at: Tensor | None = None,
    rows: Tensor | None = None,
) -> list[Tensor]:
    """What the last layer puts out, perhaps `at` some tokens or in some `rows` alone; with `keep`
    what each does."""
    states: list[Tensor] = []
    first: Tensor | None = None  # the values of the first layer
    for number, scope in enumerate(scopes):
        last = number == len(scopes) - 1
        where = (at, None, rows) if last else (None, None, None)
        arguments = (stack, number, x, first, layout, scope, *where)
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
    asks: Tensor | None = None,
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One layer, and its values: normalised after each half's sum (BERT), or before each half.

    `asks` are the states that it goes on from, if not those that it attends to; behind attention
    only some `rows` may be gone on with.
    """
    attention, ffn = stack.halves(number)
    rate, training, pre = stack.shape.dropout, stack.training, stack.norm is not None
    if asks is None and at is not None:
        asks = x.index_select(0, at)
    normal = attention.normalised(x) if pre else x
    asking = attention.normalised(asks) if pre and asks is not None else asks
    heads, values = attention(normal, layout, scope, first_NHA=first, asks=asking, at_B=at)
    x = x if asks is None else asks
    if rows is not None:
        x, heads = x.index_select(0, rows), heads.index_select(0, rows)
    x = x + drop(attention.output(heads), rate, training)
    if pre:
        return x + drop(ffn(ffn.norm(x)), rate, training), values
    x = attention.normalised(x)
    return ffn.norm(x + drop(ffn(x), rate, training)), values

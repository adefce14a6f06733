"""The settings of a Transformer: those of BERT, ALBERT, GPT, ModernBERT, DeBERTa."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from clozelab.contracts import EncoderPart, TextLayout
from clozelab.errors import UserError
from clozelab.ranges import (
    BelowOne,
    Checked,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    above,
    largest_divisor,
)

if TYPE_CHECKING:
    from clozelab.encoder.stack import Stack

Half = Literal["attention", "ffn"]  # of a layer
_HALVES: tuple[Half, ...] = ("attention", "ffn")
# The roles of distances in attention scores, by `position_terms`.
_ROLES_IN: dict[str, tuple[Literal["query", "key"], ...]] = {
    "both": ("query", "key"),
    "content_to_position": ("key",),
    "position_to_content": ("query",),
}
# A recipe names such a field only where it differs from the default, which is BERT's, so that
# recipes recorded before there was such a field are unchanged.
_LATER = {"later": True}
# The fields of disentangled attention.
DISENTANGLED = (
    *("position_buckets", "relative_positions", "position_terms", "position_projections"),
    *("position_norm", "absolute_positions"),
)


@dataclass(frozen=True)
class Transformer(Checked, EncoderPart):
    """A stack of attention and feed-forward layers over token, position and type embeddings.

    `positions` is the length of the longest block; a learned table has `position_offset` more rows
    (RoBERTa counts from the padding id). `types = 0` is an encoder without a type table. An
    `embedding_size` other than `hidden_size` adds a projection after the embedding's norm.
    `sharing` says which half of a layer is shared, norm included, within each of `groups` equal
    groups of layers. The pooler belongs to the pair objectives, which alone train it.
    """

    provides: ClassVar[frozenset[str]] = frozenset(
        {"token_vectors", "shared_embeddings", "projections", "causal_reading", "chosen_tokens"}
    )

    block_settings: ClassVar[frozenset[str]] = frozenset(
        {
            *("hidden_size", "heads", "intermediate_size", "embedding_size", "embedding_norm"),
            *("positions", "position_offset", "position_embedding", *DISENTANGLED),
            *("rope_theta", "local_rope_theta", "window", "global_every", "activation", "gated"),
            *("bias", "norm", "first_norm", "normalisation", "epsilon", "qk_norm"),
            "value_residual",
        }
    )

    layers: PositiveInt
    heads: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    embedding_size: PositiveInt
    positions: PositiveInt = 512
    position_offset: NonNegativeInt = 0
    types: NonNegativeInt = 2
    activation: Literal["gelu", "gelu_tanh", "relu", "relu2", "silu"] = "gelu"
    norm: Literal["post", "pre"] = "post"
    epsilon: Annotated[float, above(0, "must be above 0, for instance 1e-12")] = 1e-12
    embedding_norm: bool = True
    dropout: BelowOne = 0.1
    attention_dropout: BelowOne = 0.1
    sharing: Literal["none", "attention", "ffn", "all"] = "none"
    groups: PositiveInt = 1
    causal: bool = False  # for all blocks; `schedule.causal` is for some
    # "learned": a table; "rotary": queries and keys rotate; "alibi": scores fall with distance;
    # "disentangled": a table of distances adds terms to the scores (DeBERTa §3.1).
    position_embedding: Literal["learned", "rotary", "alibi", "disentangled"] = field(
        default="learned", metadata=_LATER
    )
    rope_theta: PositiveFloat = field(default=10_000.0, metadata=_LATER)  # the base of the angles
    local_rope_theta: PositiveFloat = field(default=10_000.0, metadata=_LATER)  # behind a window
    # The fields of disentangled attention. Distances beyond half of so many share rows of the
    # table, in logarithmic buckets; 0: each has its own.
    position_buckets: NonNegativeInt = field(default=0, metadata=_LATER)
    # All distances from this one on share a row; 0: from `positions` on, so none do.
    relative_positions: NonNegativeInt = field(default=0, metadata=_LATER)
    # The terms of a score besides content-to-content.
    position_terms: Literal["both", "content_to_position", "position_to_content"] = field(
        default="both", metadata=_LATER
    )
    # Whether the table uses the contents' query and key projections, or has its own in every layer.
    position_projections: Literal["shared", "own"] = field(default="shared", metadata=_LATER)
    position_norm: bool = field(default=False, metadata=_LATER)  # of the table
    # A learned table besides that of distances: added to the input as BERT's is, or to the queries
    # of a mask decoder (DeBERTa §3.2).
    absolute_positions: Literal["none", "input", "decoder"] = field(default="none", metadata=_LATER)
    # A token attends to so many around it, half of them on either side; 0: the whole block.
    window: NonNegativeInt = field(default=0, metadata=_LATER)
    # The first of every so many layers has no window (Gemma 2, ModernBERT §2.1.2).
    global_every: PositiveInt = field(default=1, metadata=_LATER)
    # A second half of the inner layer multiplies the first (arXiv:2002.05202): GeGLU, SwiGLU.
    gated: bool = field(default=False, metadata=_LATER)
    bias: bool = field(default=True, metadata=_LATER)  # of dense layers and norms, all or none
    normalisation: Literal["layer", "rms"] = field(default="layer", metadata=_LATER)
    # Before the first attention, where the embedding's norm may do (ModernBERT §2.1.1).
    first_norm: bool = field(default=True, metadata=_LATER)
    qk_norm: bool = field(default=False, metadata=_LATER)  # of queries and keys: arXiv:2302.05442
    # The share of the first layer's values in those of every other one (arXiv:2410.17897).
    value_residual: BelowOne = field(default=0.0, metadata=_LATER)
    # Of the last matrix of each half: as the others, divided by √(2 · layers), or zero.
    output_init: Literal["normal", "scaled", "zero"] = field(default="normal", metadata=_LATER)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_size % self.heads:
            raise UserError(
                f"heads = {self.heads}: must divide hidden_size = {self.hidden_size},"
                f" for instance {largest_divisor(self.hidden_size, self.hidden_size // 64)}"
            )
        if self.groups > self.layers:
            raise UserError(f"groups = {self.groups}: must be at most layers = {self.layers}")
        if self.groups > 1 and self.sharing == "none":
            raise UserError(
                f'groups = {self.groups}: has no effect with sharing = "none"; leave it out'
            )
        self._check_positions()
        if not self.first_norm and (self.norm != "pre" or self.copies("attention") < self.layers):
            raise UserError(
                "first_norm = false: removes the norm before the first layer; set norm ="
                ' "pre" and share no attention'
            )

    def _check_positions(self) -> None:
        if self.position_embedding == "rotary" and self.head_size % 2:
            raise UserError(
                f"heads = {self.heads}: give each head {self.head_size} elements of"
                f" hidden_size = {self.hidden_size}, which rotary positions cannot turn in"
                " pairs; make it even"
            )
        if self.position_embedding != "learned" and self.position_offset:
            raise UserError(
                f"position_offset = {self.position_offset}: has no effect with position_embedding"
                f' = "{self.position_embedding}"; leave it out'
            )
        if self.position_embedding == "disentangled":
            self._check_buckets()
        else:
            self._refuse_disentangled()
        if self.window % 2 or self.window > 2 * self.positions:
            raise UserError(
                f"window = {self.window}: must be even, and half of it, which is on either side, at"
                f" most positions = {self.positions}; 0 is none"
            )
        if bool(self.window) != (self.global_every > 1):
            raise UserError(
                f"window = {self.window}: goes with global_every above 1, and that is"
                f" {self.global_every}; set both, for instance 128 and 3, or neither"
            )

    def _check_buckets(self) -> None:
        """Refuse more buckets than there are distances, or a mask decoder of another width."""
        most = max(0, self.reach - 2)
        if self.position_buckets % 2 or self.position_buckets // 2 > most:
            raise UserError(
                f"position_buckets = {self.position_buckets}: must be even, and half of it at most"
                f" {most}, since {self.reach - 1} is the largest distance; 0 is none"
            )
        if self.absolute_positions == "decoder" and self.embedding_size != self.hidden_size:
            raise UserError(
                f"embedding_size = {self.embedding_size}: a mask decoder adds positions to states"
                f" of hidden_size = {self.hidden_size}; make them equal, or set"
                ' absolute_positions = "none"'
            )

    def _refuse_disentangled(self) -> None:
        for name in DISENTANGLED:
            value = getattr(self, name)
            if value != type(self).__dataclass_fields__[name].default:
                raise UserError(
                    f"{name} = {value}: has no effect with position_embedding ="
                    f' "{self.position_embedding}"; leave it out, or set "disentangled"'
                )

    @property
    def head_size(self) -> int:
        """The width of a head."""
        return self.hidden_size // self.heads

    @property
    def reach(self) -> int:
        """The distance from which on disentangled attention treats all as equal."""
        return self.relative_positions or self.positions

    @property
    def position_rows(self) -> int:
        """The rows of the table of distances: half for keys on the left, half for the others."""
        return 2 * (self.position_buckets or self.reach) if self.position_roles else 0

    @property
    def position_roles(self) -> tuple[Literal["query", "key"], ...]:
        """The roles of distances in attention scores."""
        return _ROLES_IN[self.position_terms] if self.position_embedding == "disentangled" else ()

    @property
    def learns_positions(self) -> bool:
        """Whether it has a learned table of positions."""
        return self.position_embedding == "learned" or self.absolute_positions != "none"

    @property
    def max_positions(self) -> int:
        """The longest block: the rows of its table, or what it is meant for."""
        return self.positions

    @property
    def free_settings(self) -> frozenset[str]:
        """Settings without weights: direction, dropout, and positions if they have no table."""
        free = frozenset({"causal", "dropout", "attention_dropout"})
        if self.position_embedding == "disentangled":
            fixed = self.learns_positions or not self.relative_positions
            return free if fixed else free | {"positions"}
        if self.position_embedding == "learned":
            return free
        return free | {"positions", "rope_theta", "local_rope_theta"}

    @property
    def pretraining_parameters(self) -> frozenset[str]:
        """The parameters that only pretraining uses: the positions of a mask decoder."""
        decodes = self.absolute_positions == "decoder"
        return frozenset({"embeddings.positions.weight"} if decodes else ())

    @property
    def segment_types(self) -> int:
        """The number of segment types."""
        return self.types

    @property
    def shared_modules(self) -> frozenset[str]:
        """The halves of a layer that several layers share."""
        return frozenset(half for half in _HALVES if self.copies(half) < self.layers)

    @property
    def layout(self) -> TextLayout:
        """BERT's layout of a text; if it is causal GPT's (§3.3), with tokens unseen in pretraining.

        GPT adds three tokens to the vocabulary for this; here unused special tokens serve.
        """
        if not self.causal:
            return TextLayout()
        return TextLayout(after=("mask",), summary="last", fallback="eod", in_pretraining=False)

    def resized(self, layers: int, hidden_size: int) -> Transformer:
        """The same encoder at another size: heads of 64, a feed-forward layer of 4 × its size.

        A gated one, which has three matrices, keeps its ratio, rounded down to a multiple of 8.
        """
        tied = self.embedding_size == self.hidden_size
        scaled = self.intermediate_size * hidden_size // self.hidden_size
        return replace(
            self,
            layers=layers,
            hidden_size=hidden_size,
            heads=max(1, hidden_size // 64),
            intermediate_size=scaled // 8 * 8 if self.gated else 4 * hidden_size,
            embedding_size=hidden_size if tied else min(self.embedding_size, hidden_size),
            groups=min(self.groups, layers),
        )

    def copies(self, half: Half) -> int:
        """How many copies of a half there are; layer i uses number i · copies // layers."""
        return self.groups if self.sharing in (half, "all") else self.layers

    def window_of(self, layer: int) -> int:
        """The window of a layer: how many tokens around each it attends to; 0: the whole block."""
        return self.window if layer % self.global_every else 0

    def build(self, vocabulary: int) -> Stack:
        """The encoder with fresh weights, for a vocabulary of that size."""
        from clozelab.encoder.stack import Stack

        return Stack(self, vocabulary)

    def training_flops(self, length: float, *, read: float = 1.0) -> float:
        """The operations of dense layers and attention, per token."""
        matrices = 3 if self.gated else 2
        width = self.hidden_size
        rest = width * width + matrices * width * self.intermediate_size  # after attention
        products = self.layers * 3 * width * width + (self.layers - 1 + read) * rest
        windows = (self.window_of(number) for number in range(self.layers))
        seen = sum(min(length, window + 1) if window else length for window in windows)
        distances = self.layers * len(self.position_roles) * self.position_rows
        return float(6 * products + width * (12 * seen + 6 * distances))

    def parameters(self, vocabulary: int) -> dict[str, int]:
        """How many parameters each of its modules has, for a vocabulary of that size."""
        width, inner, embedding = self.hidden_size, self.intermediate_size, self.embedding_size
        attention, ffn = self.copies("attention"), self.copies("ffn")
        bias = int(self.bias)
        vectors = 2 if self.bias and self.normalisation == "layer" else 1  # of a norm
        halves = 2 if self.gated else 1
        rows = self.positions + self.position_offset
        roles = len(self.position_roles)
        products = 4 + (roles if self.position_projections == "own" else 0)
        dense = products * (width + bias) * width + 2 * vectors * self.head_size * self.qk_norm
        norms = attention if self.first_norm else attention - 1
        counts = {
            "embeddings.words": vocabulary * embedding,
            "embeddings.positions": rows * embedding if self.learns_positions else 0,
            "embeddings.types": self.types * embedding,
            "embeddings.norm": vectors * embedding if self.embedding_norm else 0,
            "embeddings.projection": (
                embedding * width + bias * width if embedding != width else 0
            ),
            "relative": self.position_rows * width,
            "relative_norm": vectors * width if self.position_norm else 0,
            "layers.attention": attention * dense + norms * vectors * width,
            "layers.ffn": ffn
            * ((halves + 1) * width * inner + bias * (halves * inner + width) + vectors * width),
            # A pre-norm stack has one more norm at its end.
            "norm": vectors * width if self.norm == "pre" else 0,
        }
        return {part: count for part, count in counts.items() if count}

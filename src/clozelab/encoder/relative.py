"""The encoder of XLNet (§2.3-2.5): relative positions and segments, two streams, a memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from clozelab.contracts import EncoderPart, TextLayout
from clozelab.errors import UserError
from clozelab.ranges import (
    BelowOne,
    Checked,
    NonNegativeInt,
    PositiveInt,
    above,
    largest_divisor,
)

if TYPE_CHECKING:
    from clozelab.encoder.streams import Streams


@dataclass(frozen=True)
class Relative(Checked, EncoderPart):
    """Attention by relative position, so of any length; post-norm, no norm on embeddings.

    Projections have no biases; each layer has its own three query biases (content, position,
    segment) and two segment vectors (same, other). `memory` is how many states of the previous
    block stay visible, without gradient; 0 is none. The query stream starts from one vector.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"token_vectors", "two_streams"})
    # Memory outlives a step, so layers are compiled one by one.
    compiles: ClassVar[Literal["model", "layers"]] = "layers"
    pretraining_parameters: ClassVar[frozenset[str]] = frozenset({"embeddings.query"})
    # Attention depends only on whether two tokens are of the same segment (§2.5).
    segment_types: ClassVar[None] = None
    # A <sep> B <sep> <cls>, the last in a segment of its own.
    layout: ClassVar[TextLayout] = TextLayout(
        before=(), after=("sep", "cls"), summary="last", cls_segment=2, passage_first=True
    )

    layers: PositiveInt
    heads: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    memory: NonNegativeInt = 384
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu_tanh"
    epsilon: Annotated[float, above(0, "must be above 0, for instance 1e-12")] = 1e-12
    dropout: BelowOne = 0.1
    attention_dropout: BelowOne = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        # Sinusoids come in pairs, so a head's width is even.
        if self.hidden_size % 2:
            raise UserError(f"hidden_size = {self.hidden_size}: must be even")
        if self.hidden_size % (2 * self.heads):
            some = largest_divisor(self.hidden_size // 2, self.hidden_size // 64)
            raise UserError(
                f"heads = {self.heads}: must divide hidden_size = {self.hidden_size} into even"
                f" parts, for instance {some}"
            )

    @property
    def embedding_size(self) -> int:
        """The hidden size: tokens have no narrower embedding."""
        return self.hidden_size

    def resized(self, layers: int, hidden_size: int) -> Relative:
        """The same encoder at another size: heads of 64, a feed-forward layer of 4 × its size."""
        return replace(
            self,
            layers=layers,
            hidden_size=hidden_size,
            heads=max(1, hidden_size // 64),
            intermediate_size=4 * hidden_size,
        )

    def build(self, vocabulary: int) -> Streams:
        """The encoder with fresh weights, for a vocabulary of that size."""
        from clozelab.encoder.streams import Streams

        return Streams(self, vocabulary)

    def training_flops(self, length: float, *, read: float = 1.0) -> float:
        """The operations of dense layers and attention in the content stream, per token."""
        width = self.hidden_size
        layer = 4 * width * width + 2 * width * self.intermediate_size
        return float(6 * self.layers * layer + 12 * self.layers * width * length)

    def parameters(self, vocabulary: int) -> dict[str, int]:
        """How many parameters each of its modules has, for a vocabulary of that size."""
        width, inner = self.hidden_size, self.intermediate_size
        projections = 5 * width * width  # query, key, value, output, position
        vectors = 3 * width + 2 * width  # the query biases, the segment vectors
        return {
            "embeddings.words": vocabulary * width,
            "embeddings.query": width,
            "layers.attention": self.layers * (projections + vectors + 2 * width),
            "layers.ffn": self.layers * (2 * width * inner + inner + width + 2 * width),
        }

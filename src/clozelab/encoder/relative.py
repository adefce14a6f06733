"""The encoder of XLNet (§2.3-2.5): relative positions and segments, two streams, a memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from clozelab.contracts import EncoderPart, TextLayout
from clozelab.errors import UserError

if TYPE_CHECKING:
    from clozelab.encoder.streams import Streams


@dataclass(frozen=True)
class Relative(EncoderPart):
    """Attention by distance, so that no position is too far; post-norm, no norm on embeddings.

    Projections have no biases; each layer has its own three query biases (content, position,
    segment) and two segment vectors (same, other). `memory` is how many states of the block
    before stay visible, without gradient; 0 is none. The query stream starts from one vector.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"token_vectors", "two_streams"})
    # What a layer remembers outlives a step, so layers are compiled one by one.
    compiles: ClassVar[Literal["model", "layers"]] = "layers"
    pretraining_parameters: ClassVar[frozenset[str]] = frozenset({"embeddings.query"})

    layers: int
    heads: int
    width: int
    inner: int
    memory: int = 384
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu_tanh"
    epsilon: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "width", "inner"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} = {getattr(self, name)}: must be at least 1")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name} = {getattr(self, name)}: must be at least 0 and below 1")
        if self.memory < 0:
            raise UserError(f"memory = {self.memory}: must be at least 0 (no memory)")
        if self.epsilon <= 0:
            raise UserError(f"epsilon = {self.epsilon}: must be above 0, for instance 1e-12")
        if self.width % (2 * self.heads):
            # Sinusoids come in pairs, so a head's width is even.
            raise UserError(
                f"heads = {self.heads}: must divide width = {self.width} into even parts,"
                f" for instance {max(1, self.width // 64)}"
            )

    @property
    def embedding(self) -> int:
        """Tokens are embedded at full width."""
        return self.width

    @property
    def vector_width(self) -> int:
        """The width of a layer."""
        return self.width

    @property
    def segment_types(self) -> None:
        """Any number: attention sees whether two tokens share their segment (§2.5)."""
        return None

    @property
    def layout(self) -> TextLayout:
        """A <sep> B <sep> <cls>, the last in a segment of its own."""
        return TextLayout(
            before=(), after=("sep", "cls"), summary="last", cls_segment=2, passage_first=True
        )

    def resized(self, layers: int, width: int) -> Relative:
        """The same encoder at another size: heads of 64, a feed-forward layer of 4 × width."""
        return replace(self, layers=layers, width=width, heads=width // 64, inner=4 * width)

    def build(self, vocabulary: int) -> Streams:
        """The encoder with fresh weights, for a vocabulary of that size."""
        from clozelab.encoder.streams import Streams

        return Streams(self, vocabulary)

    def training_flops(self, length: float) -> float:
        """Of the dense layers and of attention, in the content stream."""
        layer = 4 * self.width * self.width + 2 * self.width * self.inner
        return float(6 * self.layers * layer + 12 * self.layers * self.width * length)

    def parameters(self, vocabulary: int) -> dict[str, int]:
        """How many parameters each of its modules has, for a vocabulary of that size."""
        width, inner = self.width, self.inner
        projections = 5 * width * width  # query, key, value, output, position
        vectors = 3 * width + 2 * width  # the query biases, the segment vectors
        return {
            "embeddings.words": vocabulary * width,
            "embeddings.query": width,
            "layers.attention": self.layers * (projections + vectors + 2 * width),
            "layers.ffn": self.layers * (2 * width * inner + inner + width + 2 * width),
        }

"""The Transformer with learned positions (BERT §3, A.2), and ALBERT's two economies (§3.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from clozelab.contracts import EncoderPart, TextLayout
from clozelab.errors import UserError
from clozelab.ranges import BelowOne, Checked, NonNegativeInt, PositiveInt, above

if TYPE_CHECKING:
    from clozelab.encoder.stack import Stack

Half = Literal["attention", "ffn"]  # of a layer
_HALVES: tuple[Half, ...] = ("attention", "ffn")


@dataclass(frozen=True)
class Transformer(Checked, EncoderPart):
    """A stack of attention and feed-forward layers over the sum of token, position and type.

    `positions` is the longest block; the table has `position_offset` rows more (RoBERTa counts
    from the padding id). `types = 0` is an encoder without a type table. `embedding` unlike `width`
    puts a projection after the embedding's norm. `sharing` says which half of a layer is shared,
    norm included, within each of `groups` equal runs of layers. The pooler belongs to the pair
    objectives, which alone train it.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"token_vectors", "shared_embeddings"})

    layers: PositiveInt
    heads: PositiveInt
    width: PositiveInt
    inner: PositiveInt
    embedding: PositiveInt
    positions: PositiveInt = 512
    position_offset: NonNegativeInt = 0
    types: NonNegativeInt = 2
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    norm: Literal["post", "pre"] = "post"
    epsilon: Annotated[float, above(0, "must be above 0, for instance 1e-12")] = 1e-12
    embedding_norm: bool = True
    dropout: BelowOne = 0.1
    attention_dropout: BelowOne = 0.1
    sharing: Literal["none", "attention", "ffn", "all"] = "none"
    groups: PositiveInt = 1
    causal: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise UserError(
                f"heads = {self.heads}: must divide width = {self.width},"
                f" for instance {max(1, self.width // 64)}"
            )
        if self.groups > self.layers:
            raise UserError(f"groups = {self.groups}: must be at most layers = {self.layers}")
        if self.groups > 1 and self.sharing == "none":
            raise UserError(
                f'groups = {self.groups}: has no effect with sharing = "none"; leave it out'
            )

    @property
    def vector_width(self) -> int:
        """The width of a layer."""
        return self.width

    @property
    def max_positions(self) -> int:
        """As many as its table has rows for."""
        return self.positions

    @property
    def segment_types(self) -> int:
        """As many as its table has rows for."""
        return self.types

    @property
    def shared_modules(self) -> frozenset[str]:
        """The halves of a layer that are fewer than the layers."""
        return frozenset(half for half in _HALVES if self.copies(half) < self.layers)

    @property
    def layout(self) -> TextLayout:
        """BERT's; GPT's (§3.3) where it is causal, of tokens that pretraining never shows.

        GPT adds three tokens to the vocabulary for this; here roles that its text lacks serve.
        """
        if not self.causal:
            return TextLayout()
        return TextLayout(after=("mask",), summary="last", fallback="eod", in_pretraining=False)

    def resized(self, layers: int, width: int) -> Transformer:
        """The same encoder at another size: heads of 64, a feed-forward layer of 4 × width."""
        tied = self.embedding == self.width
        return replace(
            self,
            layers=layers,
            width=width,
            heads=max(1, width // 64),
            inner=4 * width,
            embedding=width if tied else min(self.embedding, width),
            groups=min(self.groups, layers),
        )

    def copies(self, half: Half) -> int:
        """How many of that half of a layer there are; layer i uses number i · copies // layers."""
        return self.groups if self.sharing in (half, "all") else self.layers

    def build(self, vocabulary: int) -> Stack:
        """The encoder with fresh weights, for a vocabulary of that size."""
        from clozelab.encoder.stack import Stack

        return Stack(self, vocabulary)

    def training_flops(self, length: float) -> float:
        """Of the dense layers and of attention."""
        layer = 4 * self.width * self.width + 2 * self.width * self.inner
        return float(6 * self.layers * layer + 12 * self.layers * self.width * length)

    def parameters(self, vocabulary: int) -> dict[str, int]:
        """How many parameters each of its modules has, for a vocabulary of that size."""
        width, inner, embedding = self.width, self.inner, self.embedding
        attention, ffn = self.copies("attention"), self.copies("ffn")
        counts = {
            "embeddings.words": vocabulary * embedding,
            "embeddings.positions": (self.positions + self.position_offset) * embedding,
            "embeddings.types": self.types * embedding,
            "embeddings.norm": 2 * embedding if self.embedding_norm else 0,
            "embeddings.projection": embedding * width + width if embedding != width else 0,
            "layers.attention": attention * (4 * (width * width + width) + 2 * width),
            "layers.ffn": ffn * (2 * width * inner + inner + width + 2 * width),
            # Normalising before each half leaves the last sum without a norm: one more follows it.
            "norm": 2 * width if self.norm == "pre" else 0,
        }
        return {part: count for part, count in counts.items() if count}

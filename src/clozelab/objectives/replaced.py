"""Replaced tokens (ELECTRA §2): the generator that replaces them, and objectives over them.

How generator and encoder share their tables is ELECTRA's (§3.2) or DeBERTa-v3's (§3.3).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np

from clozelab.contracts import Blocks, Corrupted, Hidden, Targets
from clozelab.errors import UserError
from clozelab.objectives.objective import (
    Tied,
    Weighted,
    Widths,
    chosen,
    every,
    head_parameters,
)
from clozelab.ranges import Range

if TYPE_CHECKING:
    from clozelab.objectives.heads.generator import GeneratorModule
    from clozelab.objectives.heads.replaced import CopyHead, DetectionHead

BITS = 24  # of a draw: the precision of float32
_HEAD = 64  # the width of an attention head
Sharing = Literal["embeddings", "gradient_disentangled", "none"]
# The embeddings that generator and encoder share.
_SHARED: dict[Sharing, tuple[str, ...]] = {
    "embeddings": ("words", "positions", "types", "norm"),
    "gradient_disentangled": ("words",),
    "none": (),
}
_NARROW = Range(
    lambda value: 0 < value <= 1,
    "must be above 0 and at most 1, since a generator is no wider than the encoder it writes for",
)
_SHALLOW = Range(
    lambda value: 0 < value <= 1,
    "must be above 0 and at most 1, since a generator is no deeper than the encoder it writes for",
)


@dataclass(frozen=True)
class Generator(Weighted):
    """A separate masked language model, whose samples the encoder reads at the masked tokens.

    Its encoder is the recipe's with `share` of the width (§3.2) and `depth` of the layers. With
    `sharing = "embeddings"` both share the tables of tokens, positions and types, and their norm.
    With "gradient_disentangled" (DeBERTa-v3 §3.3) only the generator trains the table of tokens, to
    which the encoder adds a delta of its own, initially zero.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"targets", "shared_embeddings"})
    reads: ClassVar[tuple[str, ...]] = ()  # of the encoder that it writes for
    generates_input: ClassVar[bool] = True

    share: Annotated[float, _NARROW] = 0.25
    sharing: Sharing = "embeddings"
    depth: Annotated[float, _SHALLOW] = field(default=1.0, metadata={"later": True})

    def built_as(self, other: Self) -> Self:
        """The same objective with the other's size and sharing."""
        return replace(self, share=other.share, sharing=other.sharing, depth=other.depth)

    def shape(self, encoder: Any) -> Any:
        """The settings of the generator's encoder, given those of a recipe's."""
        width = round(self.share * encoder.hidden_size)
        if width < 1 or (width > _HEAD and width % (width // _HEAD)):
            near = max(_HEAD, round(width / _HEAD) * _HEAD) / encoder.hidden_size
            raise UserError(
                f"share = {self.share}: {width} of encoder.hidden_size = {encoder.hidden_size},"
                f" which heads of {_HEAD} do not divide; use for instance {min(near, 1.0):g}"
            )
        layers = max(1, round(self.depth * encoder.layers))
        return replace(encoder.resized(layers, width), embedding_size=encoder.embedding_size)

    def check_encoder(self, encoder: Any) -> None:
        """Refuse an encoder of whose width the generator cannot have a `share`."""
        self.shape(encoder)

    def parameters(self, encoder: Any, vocabulary: int) -> dict[str, int]:
        """Trainable parameters of the generator, by part, without those shared with the encoder.

        The encoder's delta is counted here, since only a generator makes it necessary.
        """
        shape = self.shape(encoder)
        counts = {f"encoder.{key}": n for key, n in shape.parameters(vocabulary).items()}
        for table in _SHARED[self.sharing]:
            counts.pop(f"encoder.embeddings.{table}", None)
        if self.sharing == "gradient_disentangled":
            counts["delta"] = vocabulary * encoder.embedding_size
        head = head_parameters(shape, vocabulary)
        return counts | {f"head.{key}": n for key, n in head.items()}

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """Every masked token, and the draw by which its replacement is sampled."""
        assert corrupted.keys is not None, "samples are drawn by the keys of a corruption"
        targets = chosen(blocks, hidden, corrupted)
        draws = (corrupted.keys[hidden.positions] >> np.uint64(64 - BITS)).astype(np.int64)
        return replace(targets, columns={**targets.columns, "draws": draws})

    def build(self, encoder: Any, vocabulary: int) -> GeneratorModule:
        """The generator with fresh weights; whoever builds both then makes them share tables."""
        from clozelab.objectives.heads.generator import GeneratorModule

        return GeneratorModule(self, self.shape(encoder), vocabulary)

    def training_flops(
        self, encoder: Any, vocabulary: int, *, length: float, predicted: float
    ) -> float:
        """The operations of its encoder and its head."""
        shape = self.shape(encoder)
        head = super().training_flops(shape, vocabulary, length=length, predicted=predicted)
        return float(shape.training_flops(length, read=predicted) + head)


@dataclass(frozen=True)
class ReplacedToken(Weighted):
    """Predicts whether each token is the original (ELECTRA §2): 0 original, 1 replaced.

    `over = "targets"` does so only at the masked tokens, which is the paper's ELECTRA 15 % (§3.4).
    """

    needs: ClassVar[frozenset[str]] = frozenset({"targets", "token_vectors"})
    reads: ClassVar[tuple[str, ...]] = ("at",)
    detects_replaced: ClassVar[bool] = True

    over: Literal["tokens", "targets"] = "tokens"

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable parameters of the head, by part."""
        width = encoder.hidden_size
        return {"dense": width * width + width, "classifier": width + 1}

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """The original tokens; the replaced ones are sampled later."""
        return every(blocks) if self.over == "tokens" else chosen(blocks, hidden)

    def build(self, encoder: Tied, vocabulary: int) -> DetectionHead:
        """The head with fresh weights."""
        from clozelab.objectives.heads.replaced import DetectionHead

        return DetectionHead(encoder)

    def training_flops(
        self, encoder: Any, vocabulary: int, *, length: float, predicted: float
    ) -> float:
        """The operations of its dense layer."""
        return float(6 * encoder.hidden_size * (encoder.hidden_size + 1) * predicted)


@dataclass(frozen=True)
class AllTokensLm(Weighted):
    """Predicts every token, original or replaced, by copying it or by BERT's head (§3.4)."""

    needs: ClassVar[frozenset[str]] = frozenset({"targets", "token_vectors"})
    reads: ClassVar[tuple[str, ...]] = ("at",)

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable parameters of the head, by part."""
        return {**head_parameters(encoder, vocabulary), "copy": encoder.hidden_size + 1}

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """The original tokens."""
        return every(blocks)

    def build(self, encoder: Tied, vocabulary: int) -> CopyHead:
        """The head with fresh weights."""
        from clozelab.objectives.heads.replaced import CopyHead

        return CopyHead(encoder, vocabulary)

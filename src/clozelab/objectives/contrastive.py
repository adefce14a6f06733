"""Contrastive sentence vectors: a text is nearer to its positive than to others (SimCSE §3-4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from clozelab.contracts import Blocks, Corrupted, Hidden, Pooling, Targets
from clozelab.errors import UserError
from clozelab.objectives.objective import Weighted, Widths
from clozelab.ranges import PositiveFloat, PositiveInt, at_least

if TYPE_CHECKING:
    from clozelab.objectives.heads.contrasting import Contrasting


@dataclass(frozen=True)
class Contrastive(Weighted):
    """The cross-entropy of a text's positive among those of its group, by cosine / `temperature`.

    Without pairs, the positive of a text is the text itself under another dropout mask (§3); in
    rows of the format it is the second text, and a third text is a hard negative (§4, eq. 5). A
    group is always `in_batch` rows, so that no loss depends on how a step is divided.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"token_vectors"})
    contrasts: ClassVar[bool] = True

    in_batch: Annotated[int, at_least(2)] | None = None  # rows of a group; none: the whole step
    temperature: PositiveFloat = 0.05  # §3
    pooling: Pooling = "cls"  # how a text's vector is computed
    # §6.3: a dense layer and tanh in training only; the vectors are those before it.
    projection: bool = True
    # Matryoshka (arXiv:2205.13147 §3): for each size the loss of the first elements is added.
    sizes: tuple[PositiveInt, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.sizes) != sorted(set(self.sizes)):
            raise UserError(f"sizes = {list(self.sizes)}: list each once, ascending")
        if self.sizes and self.projection:
            raise UserError(
                f"sizes = {list(self.sizes)} truncate the vectors, but projection = true"
                " trains projected ones; set projection = false"
            )

    @property
    def reads(self) -> tuple[str, ...] | None:
        """The first token of each text; None (all tokens) for a mean."""
        return ("left",) if self.pooling == "cls" else None

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable parameters of the head, by part."""
        width = encoder.hidden_size
        return {"projection": width * width + width} if self.projection else {}

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """A target for each block: the range of its pooled tokens, and its place in the row.

        Only the first block of a row has a label.
        """
        inner = int(self.pooling == "mean")  # between the specials
        assert blocks.views is not None, "blocks without rows have no positives"
        columns = {
            "left": np.full(len(blocks), inner),
            "right": np.maximum(blocks.lengths - 1 - inner, inner),
            "labels": np.where(blocks.views == 0, 0, Targets.IGNORED),
            "views": blocks.views,
            "groups": np.zeros(len(blocks), dtype=np.int64),
        }
        return Targets(np.arange(len(blocks) + 1), columns)

    def build(self, encoder: Widths, vocabulary: int) -> Contrasting:
        """The head with fresh weights."""
        from clozelab.objectives.heads.contrasting import Contrasting

        return Contrasting(self, encoder.hidden_size)

    def check_encoder(self, encoder: Any) -> None:
        """Refuse an encoder of two streams, or with vectors no wider than the sizes."""
        if "two_streams" in encoder.provides:
            raise UserError("an encoder of two streams reads an order; use encoder transformer")
        if self.sizes and self.sizes[-1] >= encoder.hidden_size:
            raise UserError(
                f"sizes = {list(self.sizes)} must be below encoder.hidden_size ="
                f" {encoder.hidden_size}, the full vector, which is always trained"
            )

    def training_flops(
        self, encoder: Any, vocabulary: int, *, length: float, predicted: float
    ) -> float:
        """The operations of the projection, forward and backward; there are no logits."""
        return float(12 * encoder.hidden_size**2 * predicted) if self.projection else 0.0

"""Sentence vectors by contrast: a text is nearer to its positive than to others (SimCSE §3-4)."""

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
    """The cross-entropy of a text's positive among all of its group, by cosine / `temperature`.

    Without pairs, the positive of a text is the text itself under another dropout mask (§3); of
    rows of the format it is the second text, and third texts are further negatives (§4, eq. 5). A
    group is `in_batch` rows, never more or fewer, so that no loss depends on how a step is divided.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"token_vectors"})
    contrasts: ClassVar[bool] = True

    in_batch: Annotated[int, at_least(2)] | None = None  # rows of a group; none: the whole step
    temperature: PositiveFloat = 0.05  # §3
    pooling: Pooling = "cls"  # what stands for a text
    # §6.3: a dense layer and tanh in training alone; the vectors are those before it.
    projection: bool = True
    # Matryoshka (arXiv:2205.13147 §3): the loss of the first so many elements is added for each.
    sizes: tuple[PositiveInt, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.sizes) != sorted(set(self.sizes)):
            raise UserError(f"sizes = {list(self.sizes)}: list each once, ascending")
        if self.sizes and self.projection:
            raise UserError(
                f"sizes = {list(self.sizes)} cut the vectors themselves, and projection = true"
                " trains others; set projection = false"
            )

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable parameters of the head, by part."""
        width = encoder.hidden_size
        return {"projection": width * width + width} if self.projection else {}

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """A target for each block: its pooled tokens, and its place in the row.

        The first of a row is what is counted.
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
        """One whose first token may stand for a text, and whose vectors have the sizes."""
        if "two_streams" in encoder.provides:
            raise UserError("an encoder of two streams reads an order; use encoder transformer")
        if self.sizes and self.sizes[-1] >= encoder.hidden_size:
            raise UserError(
                f"sizes = {list(self.sizes)} must be below encoder.hidden_size ="
                f" {encoder.hidden_size}, the whole vector, whose loss is always there"
            )

    def training_flops(
        self, encoder: Any, vocabulary: int, *, length: float, predicted: float
    ) -> float:
        """Of the projection, forward and backward; nothing meets the vocabulary."""
        return float(12 * encoder.hidden_size**2 * predicted) if self.projection else 0.0

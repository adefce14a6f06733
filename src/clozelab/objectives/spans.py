"""Objectives over hidden spans: a span's tokens from the two tokens around it (SpanBERT §3.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from clozelab.contracts import Blocks, Corrupted, Hidden, Targets
from clozelab.errors import UserError
from clozelab.objectives.targets import inside_spans
from clozelab.objectives.widths import Tied, Weighted, Widths
from clozelab.ranges import PositiveInt

if TYPE_CHECKING:
    from clozelab.objectives.heads.span import SpanBoundaryHead


@dataclass(frozen=True)
class SpanBoundary(Weighted):
    """Predict the token at each offset of a hidden span from both neighbours and the offset.

    `positions` offsets have embeddings of size `dimension`; `longest` is how many tokens of a
    merged span are predicted. `boundary = "content"` passes over spans that touch a special, as
    the published code did; "any" lets specials be boundaries.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"spans", "token_vectors"})
    chained: ClassVar[bool] = False  # whether the head reads the token before as well

    positions: PositiveInt = 200
    dimension: PositiveInt = 200
    longest: PositiveInt = 15
    boundary: Literal["content", "any"] = "content"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.longest > self.positions:
            raise UserError(
                f"longest = {self.longest}: must be at most positions = {self.positions}"
            )

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable parameters of the head, by part."""
        width = encoder.width
        norm = 2 * encoder.embedding
        first = (2 * width + self.dimension) * width + width + 2 * width
        return {
            "positions": self.positions * self.dimension,
            "first": first,
            "second": width * encoder.embedding + encoder.embedding + norm,
            "bias": vocabulary,
        }

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """What is predicted in some blocks."""
        specials = self.boundary == "any"
        return inside_spans(blocks, hidden, longest=self.longest, specials=specials)

    def build(self, encoder: Tied, vocabulary: int) -> SpanBoundaryHead:
        """The head with fresh weights."""
        from clozelab.objectives.heads.span import SpanBoundaryHead

        return SpanBoundaryHead(
            encoder,
            vocabulary,
            positions=self.positions,
            dimension=self.dimension,
            chained=self.chained,
        )


@dataclass(frozen=True)
class SpanJoint(SpanBoundary):
    """The probability of a whole span by the chain rule: the token before is read as well.

    An experiment of ours; SpanBERT takes the tokens of a span for independent. The token before
    comes in by its row of the tied table, a learned vector before the first, so the losses of a
    span's tokens add up to -log p(span | neighbours).
    """

    chained: ClassVar[bool] = True

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable parameters of the head, by part."""
        counts = super().parameters(encoder, vocabulary)
        chained = counts["first"] + encoder.embedding * encoder.width
        return {**counts, "first": chained, "start": encoder.embedding}

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """What is predicted in some blocks; `previous` has no meaning at offset 0."""
        targets = super().targets(blocks, hidden, corrupted)
        previous = np.append(np.zeros(1, np.int64), targets.columns["labels"])[:-1]
        return replace(targets, columns={**targets.columns, "previous": previous})

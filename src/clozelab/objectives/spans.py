"""Objectives over hidden spans: a span's tokens from the two tokens around it (SpanBERT §3.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from clozelab.contracts import Blocks, Corrupted, Hidden, Ints, Targets
from clozelab.errors import UserError
from clozelab.objectives.objective import Tied, Weighted, Widths
from clozelab.packed import offsets, ranges
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
        """Trainable parameters of the head, by part; a dense layer has a bias and a norm."""
        width, narrow = encoder.hidden_size, encoder.embedding_size
        return {
            "positions": self.positions * self.dimension,
            "first": (2 * width + self.dimension) * width + 3 * width,
            "second": width * narrow + 3 * narrow,
            "bias": vocabulary,
        }

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """The first `longest` tokens of every hidden span between two seen tokens of its block."""
        start, end = _merged(hidden)
        row = blocks.rows[start]
        inside = (start > blocks.starts[row]) & (end < blocks.starts[row + 1])
        start, end = start[inside], end[inside]
        if self.boundary == "content":
            content = ~(blocks.fixed[start - 1] | blocks.fixed[end])
            start, end = start[content], end[content]
        sizes = np.minimum(end - start, self.longest)
        at = ranges(start, sizes)
        columns = {
            "left": np.repeat(blocks.positions[start - 1], sizes),
            "right": np.repeat(blocks.positions[end], sizes),
            "offset": at - np.repeat(start, sizes),
            "labels": blocks.ids[at].astype(np.int64),
        }
        counts = np.bincount(blocks.rows[at], minlength=len(blocks))
        return Targets(offsets(counts), columns)

    def build(self, encoder: Tied, vocabulary: int) -> SpanBoundaryHead:
        """The head with fresh weights."""
        from clozelab.objectives.heads.span import SpanBoundaryHead

        return SpanBoundaryHead(self, encoder, vocabulary)


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
        chained = counts["first"] + encoder.embedding_size * encoder.hidden_size
        return {**counts, "first": chained, "start": encoder.embedding_size}

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """What is predicted in some blocks; `previous` has no meaning at offset 0."""
        targets = super().targets(blocks, hidden, corrupted)
        previous = np.append(np.zeros(1, np.int64), targets.columns["labels"])[:-1]
        return replace(targets, columns={**targets.columns, "previous": previous})


def _merged(hidden: Hidden) -> Ints:
    """The hidden spans, those that touch made one, so that what is around them is seen.

    Spans that touch over the edge of a block have nothing there to be predicted from either way.
    """
    first, last = hidden.spans[:, 0], hidden.spans[:, 1]
    apart = first[1:] > last[:-1]
    edge = np.ones(min(len(first), 1), dtype=bool)
    return np.stack([first[np.append(edge, apart)], last[np.append(apart, edge)]])

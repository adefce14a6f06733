"""Objectives over masked spans: a span's tokens from the two tokens around it (SpanBERT §3.2)."""

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
    """Predicts the token at each offset of a masked span from both neighbours and the offset.

    `positions` offsets have embeddings of size `dimension`; at most `longest` tokens of a merged
    span are predicted. `boundary = "content"` skips spans next to a special token, as the
    published code did; "any" allows special tokens as boundaries.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"spans", "token_vectors"})
    reads: ClassVar[tuple[str, ...]] = ("left", "right")
    chained: ClassVar[bool] = False  # whether the head also reads the previous token

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
        """The first `longest` tokens of every masked span with two unmasked neighbours."""
        start, end = _merge_spans(hidden)
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
    """The probability of a whole span by the chain rule: the head also reads the previous token.

    An experiment of ours; SpanBERT treats the tokens of a span as independent. The previous token
    is read as its row of the tied table, before the first one as a learned vector, so the losses of
    a span's tokens add up to -log p(span | neighbours).
    """

    chained: ClassVar[bool] = True

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable parameters of the head, by part."""
        counts = super().parameters(encoder, vocabulary)
        chained = counts["first"] + encoder.embedding_size * encoder.hidden_size
        return {**counts, "first": chained, "start": encoder.embedding_size}

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """The targets with the previous tokens; `previous` has no meaning at offset 0."""
        targets = super().targets(blocks, hidden, corrupted)
        previous = np.append(np.zeros(1, np.int64), targets.columns["labels"])[:-1]
        return replace(targets, columns={**targets.columns, "previous": previous})


def _merge_spans(hidden: Hidden) -> Ints:
    """The masked spans, adjacent ones merged, so that their neighbours are unmasked.

    Spans that touch across the edge of a block are not predicted in any case.
    """
    first, last = hidden.spans[:, 0], hidden.spans[:, 1]
    separate = first[1:] > last[:-1]
    edge = np.ones(min(len(first), 1), dtype=bool)
    return np.stack([first[np.append(edge, separate)], last[np.append(separate, edge)]])

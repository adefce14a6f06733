"""The probability of a whole span from the two tokens around it, by the chain rule.

An experiment of ours beside SpanBERT's (§3.2), which takes a span's tokens for independent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from clozelab.contracts import Blocks, Corrupted, Hidden, Targets
from clozelab.objectives.span_boundary import SpanBoundary
from clozelab.objectives.widths import Course, Tied, Widths

if TYPE_CHECKING:
    from clozelab.objectives.heads.span import SpanHead


@dataclass(frozen=True)
class SpanJoint:
    """Predict each token of a hidden span from both neighbours, the offset and the token before.

    The token before comes in by its row of the tied table, a learned vector before the first, so
    the losses of a span's tokens add up to -log p(span | neighbours). The settings are
    `span_boundary`'s.
    """

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset({"spans", "token_vectors"})

    weight: float = 1.0
    course: Course = ()
    positions: int = 200
    dimension: int = 200
    longest: int = 15
    boundary: Literal["content", "any"] = "content"

    def __post_init__(self) -> None:
        self._unchained()

    def _unchained(self) -> SpanBoundary:
        """The same without the token before, whose checks hold here too."""
        return SpanBoundary(
            weight=self.weight,
            course=self.course,
            positions=self.positions,
            dimension=self.dimension,
            longest=self.longest,
            boundary=self.boundary,
        )

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable numbers of the head, by part."""
        counts = self._unchained().parameters(encoder, vocabulary)
        chained = counts["first"] + encoder.embedding * encoder.width
        return {**counts, "first": chained, "start": encoder.embedding}

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """What is predicted in some blocks; `previous` has no meaning at offset 0."""
        found = self._unchained().targets(blocks, hidden, corrupted)
        previous = np.append(np.zeros(1, np.int64), found.columns["labels"])[:-1]
        return replace(found, columns={**found.columns, "previous": previous})

    def build(self, encoder: Tied, vocabulary: int) -> SpanHead:
        """The head with fresh weights."""
        from clozelab.objectives.heads.span import SpanHead

        return SpanHead(
            encoder, vocabulary, positions=self.positions, dimension=self.dimension, chained=True
        )

"""The span-boundary objective: a span's tokens from the two tokens around it (SpanBERT §3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from clozelab.contracts import UserError
from clozelab.objectives.widths import Course, Widths, check_weight


@dataclass(frozen=True)
class SpanBoundary:
    """Predict the token at each offset of a hidden span from both neighbours and the offset.

    `positions` offsets are embedded in `dimension` numbers; `longest` is how many tokens of a
    merged span are predicted. `boundary = "content"` passes over spans that touch a special, as
    the published code did; "any" lets specials be boundaries.
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
        check_weight(self.weight, self.course)
        for name in ("positions", "dimension", "longest"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} = {getattr(self, name)}: must be at least 1")
        if self.longest > self.positions:
            raise UserError(
                f"longest = {self.longest}: must be at most positions = {self.positions}"
            )

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable numbers of the head, by part."""
        width = encoder.width
        norm = 2 * encoder.embedding
        first = (2 * width + self.dimension) * width + width + 2 * width
        return {
            "positions": self.positions * self.dimension,
            "first": first,
            "second": width * encoder.embedding + encoder.embedding + norm,
            "bias": vocabulary,
        }

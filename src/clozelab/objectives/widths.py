"""What objectives share: the encoder as a head sees it, the heads' sizes, the weight."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol

from clozelab.contracts import ObjectivePart
from clozelab.errors import UserError
from clozelab.ranges import Checked, NonNegativeFloat


class Widths(Protocol):
    """An encoder seen from its output: the width of a vector, and of the table it is tied to."""

    @property
    def width(self) -> int:
        """The hidden size."""
        ...

    @property
    def embedding(self) -> int:
        """The width of the embedding table."""
        ...


class Tied(Widths, Protocol):
    """An encoder whose heads are built like its layers: the same activation, the same norm."""

    @property
    def activation(self) -> Literal["gelu", "gelu_tanh", "relu"]:
        """Between two dense layers."""
        ...

    @property
    def epsilon(self) -> float:
        """Of the norms."""
        ...


# A field's metadata: recipes name it only where it is not the default, so that what was recorded
# before there was such a field is still the same recipe.
LATER = {"later": True}


def table(encoder: Widths, vocabulary: int, *, tied: bool) -> dict[str, int]:
    """The table over the vocabulary, where a head has one of its own."""
    return {} if tied else {"table": vocabulary * encoder.embedding}


def transform(encoder: Widths, vocabulary: int) -> dict[str, int]:
    """The head of BERT (§3.1): dense to the table's width, norm, and a bias."""
    return {
        "dense": encoder.width * encoder.embedding + encoder.embedding,
        "norm": 2 * encoder.embedding,
        "bias": vocabulary,
    }


def pair(encoder: Widths) -> dict[str, int]:
    """The head of a pair objective: the pooler, and a choice between two classes."""
    width = encoder.width
    return {"pooler": width * width + width, "classifier": 2 * width + 2}


Course = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Weighted(Checked, ObjectivePart):
    """What all objectives have in common: how much they count."""

    weight: NonNegativeFloat = 1.0  # 0 is an objective that is measured but not trained
    course: Course = ()  # (share of the run, factor of the weight), linear in between

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = [share for share, _ in self.course]
        if any(not 0 <= share <= 1 for share in shares) or any(a >= b for a, b in pairwise(shares)):
            raise UserError(
                "course: give pairs (share of the run, factor), shares from 0 to 1, rising"
            )
        if any(factor < 0 for _, factor in self.course):
            raise UserError("course: the factors of the weight must be at least 0")


def weight_at(weight: float, course: Course, progress: float) -> float:
    """The weight at a point of the run: linear between the points of its course."""
    if not course:
        return weight
    before = [point for point in course if point[0] <= progress]
    after = [point for point in course if point[0] > progress]
    if not before or not after:
        return weight * (before[-1] if before else after[0])[1]
    (start, low), (end, high) = before[-1], after[0]
    return weight * (low + (high - low) * (progress - start) / (end - start))

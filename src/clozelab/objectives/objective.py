"""What objectives share: the encoder as a head sees it, their weight, and the targets of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np

from clozelab.contracts import Blocks, Corrupted, Hidden, ObjectivePart, Targets
from clozelab.errors import UserError
from clozelab.packed import offsets
from clozelab.ranges import Checked, NonNegativeFloat


class Widths(Protocol):
    """An encoder seen from its output: the width of a vector, and of the table it is tied to.

    And whether its dense layers and norms have biases, and which norms those are: so its heads.
    """

    @property
    def width(self) -> int:
        """The hidden size."""

    @property
    def embedding(self) -> int:
        """The width of the embedding table."""

    @property
    def bias(self) -> bool:
        """Of dense layers and norms."""

    @property
    def normalisation(self) -> Literal["layer", "rms"]:
        """The kind of norms."""


class Tied(Widths, Protocol):
    """An encoder whose heads are built like its layers: the same activation, the same norm."""

    @property
    def activation(self) -> Literal["gelu", "gelu_tanh", "relu", "relu2", "silu"]:
        """Between two dense layers."""

    @property
    def epsilon(self) -> float:
        """Of the norms."""


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
    shares, factors = zip(*course, strict=True)
    return weight * float(np.interp(progress, shares, factors))


def chosen(blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
    """Every hidden token, with what the encoder saw in its place."""
    at = hidden.positions
    columns = {
        "at": blocks.positions[at],
        "labels": blocks.ids[at].astype(np.int64),
        "decisions": corrupted.decisions.astype(np.int64),
    }
    return Targets(offsets(np.bincount(blocks.rows[at], minlength=len(blocks))), columns)


def following(blocks: Blocks) -> Targets:
    """At every token but a block's last, the next."""
    at = np.flatnonzero(blocks.positions < np.repeat(blocks.lengths - 1, blocks.lengths))
    columns = {"at": blocks.positions[at], "labels": blocks.ids[at + 1].astype(np.int64)}
    return Targets(offsets(np.maximum(blocks.lengths - 1, 0)), columns)

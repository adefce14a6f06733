"""What objectives share: the encoder as a head sees it, their weight, and the targets of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from clozelab.contracts import Blocks, Corrupted, Hidden, ObjectivePart, Targets
from clozelab.course import Course, check_course, factor_at
from clozelab.packed import offsets
from clozelab.ranges import Checked, NonNegativeFloat


class Widths(Protocol):
    """An encoder seen from its output: the width of a vector, and of the table it is tied to.

    And whether its dense layers and norms have biases, and which norms those are: so its heads.
    """

    @property
    def hidden_size(self) -> int:
        """Of a layer's vectors."""

    @property
    def embedding_size(self) -> int:
        """Columns of the embedding table."""

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


def head_parameters(encoder: Widths, vocabulary: int) -> dict[str, int]:
    """Those of BERT's head over the vocabulary (§3.1): dense to the table's width, norm, bias."""
    width, bias = encoder.embedding_size, int(encoder.bias)
    norm = width + width * (bias if encoder.normalisation == "layer" else 0)
    return {"dense": encoder.hidden_size * width + bias * width, "norm": norm, "bias": vocabulary}


@dataclass(frozen=True)
class Weighted(Checked, ObjectivePart):
    """What all objectives have in common: how much they count."""

    weight: NonNegativeFloat = 1.0  # 0 is an objective that is measured but not trained
    course: Course = ()  # (share of the run, factor of the weight), linear in between

    def __post_init__(self) -> None:
        super().__post_init__()
        check_course(self.course)


def weight_at(weight: float, course: Course, progress: float) -> float:
    """The weight at a point of the run: linear between the points of its course."""
    return weight * factor_at(course, progress)


def chosen(
    blocks: Blocks, hidden: Hidden, corrupted: Corrupted | None = None, *, shift: int = 0
) -> Targets:
    """Every hidden token, with what was decided to put in its place if that is asked for.

    With `shift` it is predicted so many places earlier; where its block has no such place, it is no
    target.
    """
    there = blocks.positions[hidden.positions] >= shift
    at = hidden.positions[there]
    columns = {"at": blocks.positions[at] - shift, "labels": blocks.ids[at].astype(np.int64)}
    if corrupted is not None:
        columns["decisions"] = corrupted.decisions[there].astype(np.int64)
    return Targets(np.searchsorted(at, blocks.starts), columns)


def every(blocks: Blocks) -> Targets:
    """Every token, special ones too."""
    columns = {"at": blocks.positions, "labels": blocks.ids.astype(np.int64)}
    return Targets(blocks.starts, columns)


def following(blocks: Blocks) -> Targets:
    """At every token but a block's last, the next."""
    at = np.flatnonzero(blocks.positions < np.repeat(blocks.lengths - 1, blocks.lengths))
    columns = {"at": blocks.positions[at], "labels": blocks.ids[at + 1].astype(np.int64)}
    return Targets(offsets(np.maximum(blocks.lengths - 1, 0)), columns)

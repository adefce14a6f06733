"""What objectives share: the settings of the encoder that heads need, weights, and targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from clozelab.contracts import Blocks, Corrupted, Hidden, ObjectivePart, Targets
from clozelab.course import Course, check_course, factor_at
from clozelab.packed import offsets
from clozelab.ranges import Checked, NonNegativeFloat


class Widths(Protocol):
    """The settings of an encoder that its heads need: the widths of its states and its table.

    Heads also have biases and norms of the kind that the encoder has.
    """

    @property
    def hidden_size(self) -> int:
        """The width of a layer's states."""

    @property
    def embedding_size(self) -> int:
        """Columns of the embedding table."""

    @property
    def bias(self) -> bool:
        """Whether dense layers and norms have biases."""

    @property
    def normalisation(self) -> Literal["layer", "rms"]:
        """The kind of norms."""


class Tied(Widths, Protocol):
    """The settings of an encoder whose heads have the activation and the norm of its layers."""

    @property
    def activation(self) -> Literal["gelu", "gelu_tanh", "relu", "relu2", "silu"]:
        """The activation between two dense layers."""

    @property
    def epsilon(self) -> float:
        """The epsilon of the norms."""


def head_parameters(encoder: Widths, vocabulary: int) -> dict[str, int]:
    """The parameters of BERT's vocabulary head (§3.1): dense to the table's width, norm, bias."""
    width, bias = encoder.embedding_size, int(encoder.bias)
    norm = width + width * (bias if encoder.normalisation == "layer" else 0)
    return {"dense": encoder.hidden_size * width + bias * width, "norm": norm, "bias": vocabulary}


@dataclass(frozen=True)
class Weighted(Checked, ObjectivePart):
    """What all objectives have: a weight."""

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
    """The masked tokens as targets, with their decisions if `corrupted` is given.

    Each is predicted `shift` positions earlier; a token without such a position in its block is no
    target.
    """
    valid = blocks.positions[hidden.positions] >= shift
    at = hidden.positions[valid]
    columns = {"at": blocks.positions[at] - shift, "labels": blocks.ids[at].astype(np.int64)}
    if corrupted is not None:
        columns["decisions"] = corrupted.decisions[valid].astype(np.int64)
    return Targets(np.searchsorted(at, blocks.starts), columns)


def every(blocks: Blocks) -> Targets:
    """Every token as a target, including special ones."""
    columns = {"at": blocks.positions, "labels": blocks.ids.astype(np.int64)}
    return Targets(blocks.starts, columns)


def following(blocks: Blocks) -> Targets:
    """At every token but a block's last, the next token as a target."""
    at = np.flatnonzero(blocks.positions < np.repeat(blocks.lengths - 1, blocks.lengths))
    columns = {"at": blocks.positions[at], "labels": blocks.ids[at + 1].astype(np.int64)}
    return Targets(offsets(np.maximum(blocks.lengths - 1, 0)), columns)

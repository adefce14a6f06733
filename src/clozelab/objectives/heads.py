"""What objectives share: the encoder as a head sees it, the heads' sizes, the weight."""

from __future__ import annotations

from typing import Protocol

from clozelab.contracts import UserError


class Widths(Protocol):
    """An encoder seen from its output: the width of a vector, and of the table it is tied to."""

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        ...

    @property
    def embedding(self) -> int:
        """Numbers in a row of the embedding table."""
        ...


def transform(encoder: Widths, vocabulary: int) -> dict[str, int]:
    """The head of BERT (§3.1): dense to the table's width, norm, and a bias; the table is tied."""
    return {
        "dense": encoder.width * encoder.embedding + encoder.embedding,
        "norm": 2 * encoder.embedding,
        "bias": vocabulary,
    }


def pair(encoder: Widths) -> dict[str, int]:
    """The head of a pair objective: the pooler, and a choice between two classes."""
    width = encoder.width
    return {"pooler": width * width + width, "classifier": 2 * width + 2}


def check_weight(weight: float) -> None:
    """Refuse a negative weight; 0 is an objective that is measured but not trained."""
    if weight < 0:
        raise UserError(f"weight = {weight}: must be at least 0")

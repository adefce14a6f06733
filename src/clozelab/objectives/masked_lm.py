"""Masked language modelling: predict the hidden tokens (BERT §3.1, task 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from clozelab.objectives.heads import Widths, check_weight, transform


@dataclass(frozen=True)
class MaskedLm:
    """Cross-entropy at the chosen positions, through BERT's head and the tied embedding table."""

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset({"targets", "token_vectors"})

    weight: float = 1.0

    def __post_init__(self) -> None:
        check_weight(self.weight)

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable numbers of the head, by part."""
        return transform(encoder, vocabulary)

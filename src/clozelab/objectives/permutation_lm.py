"""Permutation language modelling: targets in random order, each from those before (XLNet §2.2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from clozelab.contracts import Blocks, Corrupted, Hidden, Targets
from clozelab.objectives.widths import LATER, Weighted, Widths, table

if TYPE_CHECKING:
    from clozelab.objectives.heads.vocabulary import QueryHead

_MULTIPLE = 8  # slots in a block: so that shapes rarely change, and suit a device


@dataclass(frozen=True)
class PermutationLm(Weighted):
    """Cross-entropy of the query stream at the targets, through the embedding table and a bias."""

    needs: ClassVar[frozenset[str]] = frozenset({"targets", "order_of_prediction", "two_streams"})
    language_model: ClassVar[Literal["masked", "causal", "permutation"] | None] = "permutation"

    # To the embedding table; false: the head has a table of its own.
    tied: bool = field(default=True, metadata=LATER)

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable parameters of the head, by part."""
        return {"bias": vocabulary} | table(encoder, vocabulary, tied=self.tied)

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """What is predicted in some blocks, the same number of slots T in each.

        So the columns are rectangles [B, T], laid flat: the encoder's queries. Slots that are left
        over ask at the block's first place and are ignored.
        """
        at = hidden.positions
        rows = blocks.rows[at]
        counts = np.bincount(rows, minlength=len(blocks))
        most = -(-int(counts.max(initial=0)) // _MULTIPLE) * _MULTIPLE
        slots = max(1, min(most, int(blocks.lengths.max(initial=0))))
        slot = np.arange(len(at)) - (np.cumsum(counts) - counts)[rows]
        places = np.zeros((len(blocks), slots), dtype=np.int64)
        labels = np.full((len(blocks), slots), Targets.IGNORED, dtype=np.int64)
        places[rows, slot] = blocks.positions[at]
        labels[rows, slot] = blocks.ids[at]
        columns = {"queries": places.reshape(-1), "labels": labels.reshape(-1)}
        return Targets(np.arange(len(blocks) + 1) * slots, columns)

    def build(self, encoder: Widths, vocabulary: int) -> QueryHead:
        """The head with fresh weights."""
        from clozelab.objectives.heads.vocabulary import QueryHead

        return QueryHead(encoder, vocabulary, tied=self.tied)

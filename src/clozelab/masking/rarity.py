"""Rarity-weighted masking: rare tokens are hidden more often (DistilBERT's training code)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from clozelab.contracts import Blocks, Hidden, Ints, Vocabulary
from clozelab.errors import UserError
from clozelab.keys import uniform
from clozelab.masking.units import MaskRate, draws, grid
from clozelab.ranges import Checked


@dataclass(frozen=True)
class Rarity(Checked):
    """Hide tokens with weight count^(−smoothing), without replacement; the count is exact.

    `scope = "batch"` draws over all blocks at once, as the published code did: a block may then
    hide far more or less than its share, and its mask depends on its batch-mates.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"targets"})
    needs: ClassVar[frozenset[str]] = frozenset()

    rate: MaskRate = 0.15  # share of the tokens to hide
    smoothing: float = 0.7  # 0: every token alike, 1: rare ones by the inverse of their count
    scope: Literal["block", "batch"] = "block"

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        """Choose tokens; see `Masking`."""
        if vocabulary.counts is None:
            raise UserError(
                "masking rarity needs how often each token occurs: give it a corpus (--corpus DIR)"
            )
        free = np.flatnonzero(~blocks.fixed)
        counts = np.maximum(vocabulary.counts[blocks.ids[free]], 1).astype(np.float64)
        # The smallest of exponentials with rates w is a draw in proportion to w; and so on down.
        waits = -np.log1p(-uniform(draws(blocks, key, 0)[free])) * counts**self.smoothing
        if self.scope == "batch":
            wanted = np.array([np.ceil(self.rate * len(blocks.ids) - 1e-9)], dtype=np.int64)
            rows, places = np.zeros_like(free), np.arange(len(free))
        else:
            wanted = np.ceil(self.rate * blocks.lengths - 1e-9).astype(np.int64)
            rows, places = blocks.rows[free], blocks.places[free]
        chosen = free[_shortest(waits, rows, places, wanted)]
        return Hidden(np.stack([chosen, chosen + 1], axis=1))


def _shortest(
    waits: np.typing.NDArray[np.float64], rows: Ints, places: Ints, wanted: Ints
) -> np.typing.NDArray[np.bool_]:
    """Which elements have the wanted[row] shortest waits of their row."""
    width = int(places.max(initial=0)) + 1
    square = grid(rows, places, waits, shape=(len(wanted), width + 1), fill=np.inf)
    square.sort(axis=1)
    limit = square[np.arange(len(wanted)), np.clip(wanted - 1, 0, width)]
    return np.asarray(waits <= limit[rows])

"""What objectives predict in blocks: the chosen tokens, or one label for each block."""

from __future__ import annotations

import numpy as np

from clozelab.contracts import Blocks, Corrupted, Hidden, Targets
from clozelab.packed import offsets


def chosen(blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
    """Every hidden token, with what the encoder saw in its place."""
    at = hidden.positions
    columns = {
        "at": blocks.places[at],
        "labels": blocks.ids[at].astype(np.int64),
        "decisions": corrupted.decisions.astype(np.int64),
    }
    return Targets(offsets(np.bincount(blocks.rows[at], minlength=len(blocks))), columns)


def pairs(blocks: Blocks) -> Targets:
    """The label of each pair, at its [CLS]: the first token, or the last of a stream's block."""
    assert blocks.labels is not None, "blocks without pairs have no labels"
    last = np.zeros(len(blocks), bool) if blocks.reverse is None else np.ones(len(blocks), bool)
    columns = {"at": np.where(last, blocks.lengths - 1, 0), "labels": blocks.labels}
    return Targets(np.arange(len(blocks) + 1), columns)

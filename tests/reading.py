"""Blocks of `made.placed` documents read back: which tokens of the store lie where."""

from __future__ import annotations

import numpy as np
from made import PLACED

from clozelab.contracts import Blocks, Documents, Ints, Plan


def everything(plan: Plan) -> Blocks:
    """All blocks of a plan."""
    return plan.blocks(np.arange(len(plan)))


def runs(blocks: Blocks) -> list[list[Ints]]:
    """For every block the stretches between its specials, as places in the store."""
    found: list[list[Ints]] = []
    for first, last in zip(blocks.starts[:-1], blocks.starts[1:], strict=True):
        ids, fixed = blocks.ids[first:last].astype(np.int64), blocks.fixed[first:last]
        cuts = np.flatnonzero(fixed)
        stretches = np.split(ids, np.unique([*cuts, *(cuts + 1)]))
        found.append([s - PLACED for s in stretches if len(s) and s[0] >= PLACED])
    return found


def pairs(blocks: Blocks) -> list[tuple[Ints, Ints]]:
    """The two segments of every block."""
    assert all(len(block) == 2 for block in runs(blocks))
    return [(block[0], block[1]) for block in runs(blocks)]


def document_of(documents: Documents, places: Ints) -> Ints:
    """The document of each token of the store."""
    first = np.asarray(documents.sentences)[documents.documents]
    return np.searchsorted(first, places, side="right") - 1


def sentence_of(documents: Documents, places: Ints) -> Ints:
    """The sentence of each token of the store."""
    return np.searchsorted(documents.sentences, places, side="right") - 1


def whole(documents: Documents, places: Ints) -> bool:
    """Whether a stretch begins and ends where sentences do."""
    return bool(np.isin([places[0], places[-1] + 1], documents.sentences).all())

"""Leakage between the splits of a corpus by an addition: sentences held out and trained on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from clozelab.contracts import Array, Counts, Ints, Keys
from clozelab.keys import fold
from clozelab.packed import contains
from clozelab.text.store.corpus import Corpus

_LEAST = 8  # tokens of a sentence that is compared: shorter ones are often said twice
_AT_A_TIME = 1 << 16  # sentences
_WHAT = f"sentences of {_LEAST} tokens or more that are held out and also trained on"


def count_leaked(folder: Path, parent: Corpus, *, counts: Counts) -> None:
    """Count the held-out sentences that a side of the new text shares with the old other one.

    `folder` has the arrays of both, the new text behind that of the parent.
    """
    old_held, new_held = _sides(folder, parent, "held_out")
    old_train, new_train = _sides(folder, parent, "train")
    number = new_held.shared_with(old_train) + old_held.shared_with(new_train)
    counts.add(_WHAT, number=number)


def _sides(folder: Path, parent: Corpus, split: str) -> tuple[_Sentences, _Sentences]:
    """The sentences of a split that were there, and those that are new."""
    bounds: Ints = np.load(folder / split / "sentences.npy", "r")
    # An empty file cannot be mapped.
    ids: Array = np.load(folder / split / "ids.npy", "r" if bounds[-1] else None)
    old = len(parent.documents(split).sentences) - 1
    return _Sentences(ids, bounds[: old + 1]), _Sentences(ids, bounds[old:])


class _Sentences:
    """Some sentences of a split."""

    def __init__(self, ids: Array, bounds: Ints) -> None:
        self._ids, self._bounds = ids, bounds

    def shared_with(self, others: _Sentences) -> int:
        """How many of them, which are held in memory, are among others."""
        own = np.concatenate([np.zeros(0, np.uint64), *self._keys()])
        distinct, times = np.unique(own, return_counts=True)
        if not len(distinct):
            return 0
        leaked = np.zeros(len(distinct), dtype=bool)
        for keys in others._keys():
            leaked |= contains(np.unique(keys), distinct)
        return int(times[leaked].sum())

    def _keys(self) -> Iterator[Keys]:
        """The keys of those that are long enough, some at a time."""
        for first in range(0, len(self._bounds) - 1, _AT_A_TIME):
            bounds = self._bounds[first : first + _AT_A_TIME + 1]
            keys = fold(self._ids[bounds[0] : bounds[-1]], bounds[:-1] - bounds[0])
            yield keys[np.diff(bounds) >= _LEAST]

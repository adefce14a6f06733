"""Leakage between the splits when text is added: sentences both held out and trained on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from clozelab.contracts import Array, Counts, Ints, Keys
from clozelab.keys import fold
from clozelab.packed import contains
from clozelab.text.store.corpus import Corpus

_LEAST = 8  # tokens of a sentence that is compared: shorter ones often repeat by chance
_AT_A_TIME = 1 << 16  # sentences
_WHAT = f"sentences of {_LEAST} tokens or more that are held out and also trained on"


def count_leaked(folder: Path, parent: Corpus, *, counts: Counts) -> None:
    """Count held-out sentences of the new text in the old training text, and the reverse.

    `folder` has the arrays of both, the new text after that of the parent.
    """
    old_held, new_held = _old_and_new(folder, parent, "held_out")
    old_train, new_train = _old_and_new(folder, parent, "train")
    number = new_held.shared_with(old_train) + old_held.shared_with(new_train)
    counts.add(_WHAT, number=number)


def _old_and_new(folder: Path, parent: Corpus, split: str) -> tuple[_Sentences, _Sentences]:
    """The old and the new sentences of a split."""
    bounds: Ints = np.load(folder / split / "sentences.npy", "r")
    ids: Array = np.load(folder / split / "ids.npy", "r")
    old = len(parent.documents(split).sentences) - 1
    return _Sentences(ids, bounds[: old + 1]), _Sentences(ids, bounds[old:])


class _Sentences:
    """A range of the sentences of a split."""

    def __init__(self, ids: Array, bounds: Ints) -> None:
        self._ids, self._bounds = ids, bounds

    def shared_with(self, others: _Sentences) -> int:
        """How many of them are among `others`; only the keys of the former are all in memory."""
        own = np.concatenate([np.zeros(0, np.uint64), *self._keys()])
        distinct, times = np.unique(own, return_counts=True)
        if not len(distinct):
            return 0
        leaked = np.zeros(len(distinct), dtype=bool)
        for keys in others._keys():
            leaked |= contains(np.unique(keys), distinct)
        return int(times[leaked].sum())

    def _keys(self) -> Iterator[Keys]:
        """The keys of those that are long enough, in batches."""
        for first in range(0, len(self._bounds) - 1, _AT_A_TIME):
            bounds = self._bounds[first : first + _AT_A_TIME + 1]
            keys = fold(self._ids[bounds[0] : bounds[-1]], bounds[:-1] - bounds[0])
            yield keys[np.diff(bounds) >= _LEAST]

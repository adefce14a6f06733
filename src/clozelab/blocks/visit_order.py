"""The sentences of some documents in the order a format visits them.

Documents are shuffled once by the key, sentences never, unless the comparison with a corpus of
shuffled sentences is wanted (BERT §3.1: document-level text is critical).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from clozelab.contracts import Documents, Ints, Mark
from clozelab.keys import mix
from clozelab.packed import offsets as running_sums
from clozelab.packed import ranges

ShuffleUnit = Literal["documents", "sentences"]

_WINDOW = 1 << 20  # entries of a chain held as Python numbers at a time


@dataclass(frozen=True)
class VisitOrder:
    """Entries (sentences, or parts of over-long ones) in visiting order."""

    starts: Ints  # [M] first token in the documents
    sizes: Ints  # [M] tokens
    documents: Ints  # [M] the document in visiting order, ascending
    bounds: Ints  # [D + 1] first entry of each document
    split: int = 0  # sentences that were split

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def running(self) -> Ints:
        """[M + 1] tokens before each entry."""
        return running_sums(self.sizes)

    @cached_property
    def ends(self) -> Ints:
        """[M] the entry after the last of each entry's document."""
        return self.bounds[self.documents + 1]


def visit_order(
    documents: Documents, key: int, *, order: ShuffleUnit, longest: int | None
) -> VisitOrder:
    """Lay out the visit; sentences of more than `longest` tokens become several entries."""
    count = np.diff(documents.documents)
    visit = np.argsort(mix(key, np.arange(len(documents))), kind="stable")
    sentence = ranges(np.asarray(documents.documents[:-1])[visit], count[visit])
    document = np.repeat(np.arange(len(documents)), count[visit])
    if order == "sentences":
        # The shuffled corpus keeps its documents' sizes and deals the sentences anew.
        sentence = sentence[np.argsort(mix(mix(key, -1), sentence), kind="stable")]
    offsets = np.asarray(documents.sentences)
    starts, sizes = offsets[sentence], offsets[sentence + 1] - offsets[sentence]
    split = 0
    if longest is not None:
        parts = -(-sizes // longest)
        split = int((parts > 1).sum())
        part = ranges(np.zeros_like(parts), parts)
        starts = np.repeat(starts, parts) + part * longest
        sizes = np.minimum(np.repeat(sizes, parts) - part * longest, longest)
        document = np.repeat(document, parts)
    return entries(starts, sizes, document, split=split)


def entries(starts: Ints, sizes: Ints, document: Ints, *, split: int = 0) -> VisitOrder:
    """A walk over some entries; empty ones, and documents left without any, are dropped."""
    some = sizes > 0
    starts, sizes, document = starts[some], sizes[some], document[some]
    new = np.ones(len(document), dtype=bool)
    new[1:] = document[1:] != document[:-1]
    bounds = np.append(np.flatnonzero(new), len(document))
    return VisitOrder(starts, sizes, np.cumsum(new) - 1, bounds, split)


def chain(following: Ints) -> Ints:
    """The entries met from entry 0 on when each leads to its `following` one, to the end."""
    assert (following > np.arange(len(following))).all(), "a chain that stands still never ends"
    met: list[Ints] = []
    at, total = 0, len(following)
    while at < total:
        base = at
        window = following[base : base + _WINDOW].tolist()
        here: list[int] = []
        limit = base + len(window)
        while at < limit:
            here.append(at)
            at = window[at - base]
        met.append(np.array(here, dtype=np.int64))
    return np.concatenate(met) if met else np.zeros(0, dtype=np.int64)


def word_counts(documents: Documents) -> Ints:
    """[S + 1] words before each sentence, counted a stretch at a time."""
    offsets = np.asarray(documents.sentences)
    total = np.zeros(len(offsets), dtype=np.int64)
    step = 1 << 16
    before = 0
    for first in range(0, len(offsets) - 1, step):
        last = min(first + step, len(offsets) - 1)
        marks = documents.marks[offsets[first] : offsets[last]]
        running = np.concatenate([[0], np.cumsum((marks & Mark.WORD) != 0)]) + before
        total[first : last + 1] = running[offsets[first : last + 1] - offsets[first]]
        before = int(running[-1])
    return total

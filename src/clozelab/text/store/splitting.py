"""Which text is held out: whole documents, or stretches of them where those would miss the share.

Documents are drawn by a hash of their text, so that equal ones never part and neither order nor
workers count. Of many documents that comes near the share. Where twenty or more are drawn, and
their tokens miss the share by more than a fifth, the limit of the hash is moved, which draws a few
more or fewer. Where that does not help, or the share is missed by more than half or twice, or fewer
are drawn and miss it by more than a tenth, the documents are laid end to end in the order of their
hashes, and stretches of whole sentences at equal distances are held out. What is left of a document
on either side is trained on, as a document of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from clozelab.contracts import Bools, Ints, Keys
from clozelab.packed import offsets
from clozelab.text.store.shards import Shard

_ENOUGH = 20  # documents drawn, of which the share may be missed by chance, up to
_MISS, _FEW_MISS = 1.2, 1.1  # so many times as much or as little; of fewer documents, up to this
_MOVED = 2.0  # beyond this the limit of the hash is not moved
_STRETCH = 1024  # tokens of a stretch, at least: shorter ones would be all beginnings
_STRETCHES = 100  # at most: more would cut more documents


@dataclass(frozen=True)
class HeldOutSplit:
    """What of every document is held out."""

    whole: Bools  # documents held out whole
    # Of a document that is cut: rows of [first sentence, after the last, tokens, held out].
    parts: dict[int, Ints] = field(default_factory=dict)

    def totals(self, sizes: Ints, *, held: bool) -> tuple[int, int, int]:
        """Tokens, sentences and documents of a side, of documents of so many of both."""
        whole = sizes[self._uncut(0, len(sizes), held=held)]
        rows = np.concatenate([np.zeros((0, 4), np.int64), *self.parts.values()])
        rows = rows[rows[:, 3] == held]
        tokens = whole[:, 0].sum() + rows[:, 2].sum()
        sentences = whole[:, 1].sum() + (rows[:, 1] - rows[:, 0]).sum()
        return int(tokens), int(sentences), int((whole[:, 1] > 0).sum()) + len(rows)

    def sentences(self, shard: Shard, first: int, *, held: bool) -> tuple[Ints, Ints]:
        """First sentence and number of sentences of each piece that a side has of a shard.

        `first` is the number of the shard's first document.
        """
        count = len(shard.documents) - 1
        uncut = np.flatnonzero(self._uncut(first, count, held=held))
        begins, sizes = [shard.documents[uncut]], [np.diff(shard.documents)[uncut]]
        for number in [number for number in self.parts if first <= number < first + count]:
            rows = self.parts[number][self.parts[number][:, 3] == held]
            begins.append(shard.documents[number - first] + rows[:, 0])
            sizes.append(rows[:, 1] - rows[:, 0])
        begin, size = np.concatenate(begins), np.concatenate(sizes)
        order = np.argsort(begin[size > 0], kind="stable")
        return begin[size > 0][order], size[size > 0][order]

    def _uncut(self, first: int, count: int, *, held: bool) -> Bools:
        """Which of some documents are whole on a side."""
        uncut = self.whole[first : first + count] == held
        uncut[[number - first for number in self.parts if first <= number < first + count]] = False
        return np.asarray(uncut)


def split_documents(
    digests: Keys, sizes: Ints, shards: Iterable[Shard], *, share: float
) -> HeldOutSplit:
    """Split documents of so many tokens and sentences; the shards are read only where some are cut.

    Of the two digests of a document the second draws it.
    """
    tokens = sizes[:, 0]
    total = tokens.sum()

    def near(whole: Bools, miss: float) -> bool:
        held = tokens[whole].sum()
        return bool(share * total / miss <= held <= share * total * miss and held < total)

    whole = digests[:, 1].astype(np.float64) / 2.0**64 < share
    enough = (tokens[whole] > 0).sum() >= _ENOUGH
    if not share or near(whole, _MISS if enough else _FEW_MISS):
        return HeldOutSplit(whole)
    if enough and near(whole, _MOVED) and near(whole := _moved(digests, tokens, share), _MISS):
        return HeldOutSplit(whole)
    line = _Line(digests, tokens, share)
    whole, parts, number = np.zeros(len(digests), dtype=bool), {}, 0
    for shard in shards:
        for start, stop in pairwise(shard.documents.tolist()):
            bounds = shard.sentences[start : stop + 1] - shard.sentences[start]
            inside = line.inside(number, bounds)
            if inside.all():
                whole[number] = len(inside) > 0
            elif inside.any():
                parts[number] = _rows(inside, bounds)
            number += 1
    return HeldOutSplit(whole, parts)


def _moved(digests: Keys, tokens: Ints, share: float) -> Bools:
    """The documents below the hash at which their tokens come nearest to the share."""
    _, which = np.unique(digests[:, 1], return_inverse=True)  # equal documents are drawn together
    held = np.cumsum(np.bincount(which, weights=tokens))
    last = np.argmin(np.abs(held - share * held[-1]))
    return np.asarray(which <= last)


class _Line:
    """The documents' tokens end to end, and the stretches of them to be held out."""

    def __init__(self, digests: Keys, tokens: Ints, share: float) -> None:
        _, first, which, copies = np.unique(
            digests[:, ::-1], axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        which = which.reshape(-1)
        begins = offsets(tokens[first] * copies)
        smaller = min(share, 1 - share) * begins[-1]
        self.begins: Ints = begins[which]  # of each document; equal ones lie side by side
        self.copies: Ints = copies[which]  # how many documents are equal to it
        self.part = begins[-1] / np.clip(smaller // _STRETCH, 1, _STRETCHES)  # with one stretch
        self.share = share

    def inside(self, document: int, bounds: Ints) -> Bools:
        """Which of a document's sentences are held out: those whose middle lies in a stretch.

        Each stretch is the middle of its part of the line, and has at least the sentence that is
        there; the line's very first sentence is always left to be trained on.
        """
        at = self.begins[document] + bounds * self.copies[document]
        part, middle = self.part, (at[:-1] + at[1:]) / 2
        near = np.abs(middle % part - part / 2) < self.share * part / 2
        before = np.ceil(at / part - 0.5)  # how many parts have their middle before each bound
        return np.asarray((near | (np.diff(before) > 0)) & (at[:-1] > 0))


def _rows(inside: Bools, bounds: Ints) -> Ints:
    """The pieces of a document of which some sentences are held out."""
    edges = np.flatnonzero(np.diff(inside)) + 1
    first, stop = np.append(0, edges), np.append(edges, len(inside))
    return np.stack([first, stop, bounds[stop] - bounds[first], inside[first]], axis=1)

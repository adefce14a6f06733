"""Which text is held out: whole documents, or stretches of them if those would miss the share.

Documents are drawn by a hash of their text, so that equal ones are on the same side, whatever their
order and the number of workers. Of many documents this comes near the share. If twenty or more are
drawn and their tokens miss the share by more than a fifth, the threshold of the hash is moved,
which draws a few more or fewer. If that does not help, or the share is missed by more than a factor
of two, or fewer are drawn and miss it by more than a tenth, the documents are concatenated in the
order of their hashes, and stretches of whole sentences at equal distances are held out. What
remains of a document on either side of a stretch is trained on, as a document of its own. A row of
texts that belong together is never cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from clozelab.contracts import Bools, Ints, Keys
from clozelab.packed import offsets
from clozelab.text.store.shards import Shard

_ENOUGH = 20  # documents drawn, from which on the share may be missed by _MISS
_MISS, _FEW_MISS = 1.2, 1.1  # allowed factors above or below the share; the second for fewer
_MOVED = 2.0  # if the share is missed by more, moving the threshold is not tried
_STRETCH = 1024  # tokens of a stretch, at least: shorter ones would lack context
_STRETCHES = 100  # at most: more would cut more documents


@dataclass(frozen=True)
class HeldOutSplit:
    """Which documents, and which parts of documents, are held out."""

    whole: Bools  # documents held out as a whole
    # By number of a document that is cut: rows of [first sentence, stop, held out].
    parts: dict[int, Ints] = field(default_factory=dict)

    def sentences(self, shard: Shard, first: int, *, held: bool) -> tuple[Ints, Ints]:
        """First sentence and number of sentences of each piece of a shard that is on a side.

        `first` is the number of the shard's first document.
        """
        count = len(shard.documents) - 1
        cut = [number for number in self.parts if first <= number < first + count]
        uncut = self.whole[first : first + count] == held
        uncut[[number - first for number in cut]] = False
        begins, sizes = [shard.documents[:-1][uncut]], [np.diff(shard.documents)[uncut]]
        for number in cut:
            rows = self.parts[number][self.parts[number][:, 2] == held]
            begins.append(shard.documents[number - first] + rows[:, 0])
            sizes.append(rows[:, 1] - rows[:, 0])
        begin, size = np.concatenate(begins), np.concatenate(sizes)
        order = np.argsort(begin[size > 0], kind="stable")
        return begin[size > 0][order], size[size > 0][order]


def split_documents(
    digests: Keys, sizes: Ints, shards: Iterable[Shard], *, share: float
) -> HeldOutSplit:
    """Split documents with these digests and sizes; shards are read only if documents are cut.

    The second of the two digests of a document is the hash that draws it.
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
    if enough and near(whole, _MOVED) and near(whole := _redrawn(digests, tokens, share), _MISS):
        return HeldOutSplit(whole)
    stretches = _Stretches(digests, tokens, share)
    whole, parts, number = np.zeros(len(digests), dtype=bool), {}, 0
    for shard in shards:
        for index, (start, stop) in enumerate(pairwise(shard.documents.tolist())):
            bounds = shard.sentences[start : stop + 1] - shard.sentences[start]
            if len(shard.rows) and shard.rows[index] and stop > start:
                bounds = bounds[[0, -1]]  # as one sentence
            inside = stretches.inside(number, bounds)
            if inside.all():
                whole[number] = len(inside) > 0
            elif inside.any():
                parts[number] = _rows(inside)
            number += 1
    return HeldOutSplit(whole, parts)


def _redrawn(digests: Keys, tokens: Ints, share: float) -> Bools:
    """The documents up to the hash threshold at which their tokens come nearest to the share."""
    _, which = np.unique(digests[:, 1], return_inverse=True)  # equal documents are drawn together
    held = np.cumsum(np.bincount(which, weights=tokens))
    last = np.argmin(np.abs(held - share * held[-1]))
    return np.asarray(which <= last)


class _Stretches:
    """The tokens of all documents, concatenated by hash, and the stretches to be held out."""

    def __init__(self, digests: Keys, tokens: Ints, share: float) -> None:
        _, first, which, copies = np.unique(
            digests[:, ::-1], axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        which = which.reshape(-1)
        begins = offsets(tokens[first] * copies)
        smaller = min(share, 1 - share) * begins[-1]
        self.begins: Ints = begins[which]  # position of each document; equal ones share it
        self.copies: Ints = copies[which]  # how many documents are equal to it
        self.part = begins[-1] / np.clip(smaller // _STRETCH, 1, _STRETCHES)  # has one stretch
        self.share = share

    def inside(self, document: int, bounds: Ints) -> Bools:
        """Which of a document's sentences are held out: those whose middle is in a stretch.

        Each stretch is in the middle of an equal part of all tokens, and has at least the sentence
        there; the very first sentence is always trained on.
        """
        at = self.begins[document] + bounds * self.copies[document]
        part, middle = self.part, (at[:-1] + at[1:]) / 2
        near = np.abs(middle % part - part / 2) < self.share * part / 2
        before = np.ceil(at / part - 0.5)  # how many parts have their middle before each bound
        return np.asarray((near | (np.diff(before) > 0)) & (at[:-1] > 0))


def _rows(inside: Bools) -> Ints:
    """The rows of `parts` for a document of which some sentences are held out."""
    edges = np.flatnonzero(np.diff(inside)) + 1
    first, stop = np.append(0, edges), np.append(edges, len(inside))
    return np.stack([first, stop, inside[first]], axis=1)

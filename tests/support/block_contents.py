"""Blocks of `synthetic_documents.placed` read back: which tokens of the store lie where."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from support.synthetic_documents import PLACED

from clozelab.contracts import Blocks, Bools, Documents, Ints, Plan


def all_blocks(plan: Plan) -> Blocks:
    """All blocks of a plan."""
    return plan.blocks(np.arange(len(plan)))


def runs(blocks: Blocks) -> list[list[Ints]]:
    """For every block the stretches between its specials, as places in the store."""
    places, plain, rows = blocks.ids.astype(np.int64) - PLACED, ~blocks.fixed, blocks.rows
    goes_on = plain[1:] & plain[:-1] & neighbours(blocks)
    first = np.flatnonzero(plain & ~np.append(False, goes_on))
    last = np.flatnonzero(plain & ~np.append(goes_on, False))
    stretches: list[list[Ints]] = [[] for _ in blocks.starts[1:]]
    for row, begin, end in zip(rows[first], first, last + 1, strict=True):
        if places[begin] >= 0:
            stretches[row].append(places[begin:end])
    return stretches


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


def same(first: Blocks, second: Blocks) -> bool:
    """Whether two gatherings hold the same values everywhere."""
    arrays = ("ids", "starts", "marks", "segments", "fixed", "numbers", "labels", "reverse")
    pairs = [(getattr(first, field), getattr(second, field)) for field in arrays]
    if first.words is not None and second.words is not None:
        fields = ("starts", "ids", "characters")
        pairs += [(getattr(first.words, f), getattr(second.words, f)) for f in fields]
    return all((a is None and b is None) or np.array_equal(a, b) for a, b in pairs)


def neighbours(blocks: Blocks) -> Bools:
    """[N - 1] whether a token and the next lie in one block."""
    return blocks.rows[1:] == blocks.rows[:-1]


def cut_out(blocks: Blocks, at: int) -> Blocks:
    """One block of a gathering."""
    span = slice(blocks.starts[at], blocks.starts[at + 1])
    words = blocks.words
    if words is not None:
        of = slice(words.starts[at], words.starts[at + 1])
        starts = words.starts[at : at + 2] - words.starts[at]
        words = replace(words, starts=starts, ids=words.ids[of], characters=words.characters[of])
    return Blocks(
        ids=blocks.ids[span],
        starts=blocks.starts[at : at + 2] - blocks.starts[at],
        marks=blocks.marks[span],
        segments=blocks.segments[span],
        fixed=blocks.fixed[span],
        numbers=blocks.numbers[at : at + 1],
        labels=None if blocks.labels is None else blocks.labels[at : at + 1],
        reverse=None if blocks.reverse is None else blocks.reverse[at : at + 1],
        words=words,
    )

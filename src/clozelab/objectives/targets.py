"""What objectives predict in blocks: tokens or words, the insides of spans, a label a block."""

from __future__ import annotations

import numpy as np

from clozelab.contracts import Blocks, Corrupted, Hidden, Ints, Targets
from clozelab.packed import offsets, ranges


def chosen(blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
    """Every hidden token, with what the encoder saw in its place."""
    at = hidden.positions
    columns = {
        "at": blocks.positions[at],
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


def following(blocks: Blocks) -> Targets:
    """At every token but a block's last, the next."""
    at = np.flatnonzero(blocks.positions < np.repeat(blocks.lengths - 1, blocks.lengths))
    columns = {"at": blocks.positions[at], "labels": blocks.ids[at + 1].astype(np.int64)}
    return Targets(offsets(np.maximum(blocks.lengths - 1, 0)), columns)


def everything(blocks: Blocks) -> Targets:
    """Every token where it stands, specials too."""
    columns = {"at": blocks.positions, "labels": blocks.ids.astype(np.int64)}
    return Targets(blocks.starts, columns)


def around_words(blocks: Blocks, words: int) -> Targets:
    """At every word the next and the one before; the numbers from `words` on are unknown words."""
    spelled = blocks.words
    assert spelled is not None, "blocks of tokens have no words"
    numbers = np.where(spelled.ids < words, spelled.ids, 0).astype(np.int64)
    first, last = spelled.starts[:-1], spelled.starts[1:] - 1
    some = first <= last
    following, before = np.roll(numbers, -1), np.roll(numbers, 1)
    following[last[some]] = before[first[some]] = Targets.IGNORED
    lengths = np.diff(spelled.starts)
    places = np.arange(len(numbers)) - np.repeat(first, lengths)
    columns = {"at": places, "labels": following, "back_labels": before}
    return Targets(spelled.starts, columns)


def inside_spans(blocks: Blocks, hidden: Hidden, *, longest: int, specials: bool) -> Targets:
    """The first `longest` tokens of every hidden span between two seen tokens of its block.

    `specials` says whether these two may be specials.
    """
    start, end = _merged(hidden)
    row = blocks.rows[start]
    inside = (start > blocks.starts[row]) & (end < blocks.starts[row + 1])
    start, end = start[inside], end[inside]
    if not specials:
        content = ~(blocks.fixed[start - 1] | blocks.fixed[end])
        start, end = start[content], end[content]
    sizes = np.minimum(end - start, longest)
    at = ranges(start, sizes)
    columns = {
        "left": np.repeat(blocks.positions[start - 1], sizes),
        "right": np.repeat(blocks.positions[end], sizes),
        "offset": at - np.repeat(start, sizes),
        "labels": blocks.ids[at].astype(np.int64),
    }
    counts = np.bincount(blocks.rows[at], minlength=len(blocks))
    return Targets(offsets(counts), columns)


def _merged(hidden: Hidden) -> Ints:
    """The hidden spans, those that touch made one, so that what is around them is seen.

    Spans that touch over the edge of a block have nothing there to be predicted from either way.
    """
    first, last = hidden.spans[:, 0], hidden.spans[:, 1]
    apart = first[1:] > last[:-1]
    edge = np.ones(min(len(first), 1), dtype=bool)
    return np.stack([first[np.append(edge, apart)], last[np.append(apart, edge)]])

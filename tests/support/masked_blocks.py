"""Blocks for the tests of masking, views of what was hidden in them, and bounds of chance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray
from support.synthetic_documents import SPECIAL, vocabulary

from clozelab.contracts import Blocks, Bools, Hidden, Ints, Mark, Masking

WORDS = vocabulary(1000)
STRAY = -1  # among word lengths: a piece that begins no word


def make_blocks(words: list[list[int]], *, bare: bool = False, seed: int = 0) -> Blocks:
    """`[CLS] words [SEP]` blocks, or bare words: lengths in tokens, 0 one more [SEP], or STRAY."""
    ids, marks, starts = [], [], [0]
    for block in words:
        for length in block if bare else [None, *block, 0]:
            if length:
                ids += [len(SPECIAL)] * abs(length)  # any word, until all are drawn
                marks += [Mark.ALL if length > 0 else 0] + [0] * (abs(length) - 1)
            else:
                ids.append(SPECIAL["cls" if length is None else "sep"])
                marks.append(Mark.ALL)
        starts.append(len(ids))
    packed = np.array(ids, dtype=np.int32)
    fixed = packed < len(SPECIAL)
    packed[~fixed] = np.random.default_rng(seed).integers(6, WORDS.size, np.count_nonzero(~fixed))
    return Blocks(
        ids=packed,
        starts=np.array(starts, dtype=np.int64),
        marks=np.array(marks, dtype=np.uint8),
        segments=np.zeros(len(ids), dtype=np.uint8),
        fixed=fixed,
        numbers=np.arange(len(words), dtype=np.int64),
    )


def repeat(words: list[int], times: int, *, bare: bool = False) -> Blocks:
    """One block many times over, under different numbers."""
    block = make_blocks([words], bare=bare)
    size = len(block.ids)
    return Blocks(
        ids=np.tile(block.ids, times),
        starts=np.arange(times + 1) * size,
        marks=np.tile(block.marks, times),
        segments=np.tile(block.segments, times),
        fixed=np.tile(block.fixed, times),
        numbers=np.arange(times),
    )


def pieces(tokens: int, seed: int) -> list[int]:
    """Word lengths of so many tokens, a fifth of them continuations."""
    begins = np.random.default_rng(seed).random(tokens) >= 0.2
    begins[0] = True
    return np.diff(np.append(np.flatnonzero(begins), tokens)).tolist()


def pick(blocks: Blocks, rows: list[int]) -> Blocks:
    """Some of the blocks, in the order asked for."""
    at = np.concatenate([np.arange(blocks.starts[r], blocks.starts[r + 1]) for r in rows])
    return Blocks(
        ids=blocks.ids[at],
        starts=np.concatenate([[0], np.cumsum(blocks.lengths[rows])]),
        marks=blocks.marks[at],
        segments=blocks.segments[at],
        fixed=blocks.fixed[at],
        numbers=blocks.numbers[rows],
        reverse=None if blocks.reverse is None else blocks.reverse[rows],
    )


def with_units(blocks: Blocks, *, seed: int = 0) -> Blocks:
    """The same blocks with some words joined to phrases, entities and segmenter's words."""
    rng = np.random.default_rng(seed)
    marks = blocks.marks.copy()
    for bit, share in [(Mark.PHRASE, 0.4), (Mark.ENTITY, 0.6), (Mark.SEGMENT, 0.3)]:
        joins = (rng.random(len(marks)) < share) & ~blocks.fixed
        marks[joins] &= ~np.uint8(bit)
    return replace(blocks, marks=marks)


@st.composite
def ragged(draw: st.DrawFn) -> Blocks:
    """Batches of blocks of every sort: prose, long words, strays, specials only, single tokens."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kinds = ["prose", "short", "url", "strays", "specials", "single", "mixed"]
    words: list[list[int]] = []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=6)):
        prose = rng.geometric(0.7, rng.integers(1, 300)).tolist()
        short = rng.integers(1, 4, rng.integers(1, 8)).tolist()
        words.append(
            {
                "prose": prose,
                "short": short,
                "url": [int(rng.integers(30, 600))],
                "strays": [STRAY, *short, 0, STRAY, STRAY, *short, 0, 0, STRAY],
                "specials": [0] * int(rng.integers(1, 8)),
                "single": [1],
                "mixed": [*prose[:100], 0, 40, *short, 0, 90, 25],
            }[kind]
        )
    batch = with_units(make_blocks(words, bare=draw(st.booleans()), seed=1), seed=2)
    reverse = rng.random(len(batch)) < 0.5 if draw(st.booleans()) else None
    return replace(batch, numbers=rng.permutation(1000)[: len(batch)], reverse=reverse)


def hide(part: Masking, blocks: Blocks, key: int = 1) -> Hidden:
    return part.hide(blocks, key, vocabulary=WORDS)


def flags(blocks: Blocks, hidden: Hidden) -> Bools:
    """[N] whether each token is hidden."""
    out = np.zeros(len(blocks.ids), dtype=bool)
    out[hidden.positions] = True
    return out


def per_block(blocks: Blocks, values: ArrayLike) -> Ints:
    """[B] the sum of values over each block."""
    return np.bincount(blocks.rows, weights=np.asarray(values), minlength=len(blocks)).astype(int)


def groups(blocks: Blocks, bit: int = Mark.WORD) -> list[list[list[int]]]:
    """The units of each block by the card's rule, walked token by token: lists of positions."""
    out: list[list[list[int]]] = []
    for row in range(len(blocks)):
        mine: list[list[int]] = []
        joined = False
        for at in range(int(blocks.starts[row]), int(blocks.starts[row + 1])):
            if blocks.fixed[at]:
                joined = False
            elif joined and not blocks.marks[at] & bit:
                mine[-1].append(at)
            else:
                mine.append([at])
                joined = True
        out.append(mine)
    return out


def chi_square_limit(freedom: int, z: float = 4.5) -> float:
    """What χ² exceeds with the chance a normal exceeds z, about 3e-6 (Wilson and Hilferty)."""
    spread = 2 / (9 * freedom)
    return float(freedom * (1 - spread + z * spread**0.5) ** 3)


def assert_shares(counts: ArrayLike, shares: ArrayLike) -> None:
    """Counts of independent draws follow the shares: χ² stays under its limit."""
    seen = np.asarray(counts, dtype=float)
    wanted = np.asarray(shares, dtype=float)
    expected = seen.sum() * wanted / wanted.sum()
    assert expected.min() >= 5, "too few draws for χ²"
    assert ((seen - expected) ** 2 / expected).sum() < chi_square_limit(len(seen) - 1)


def assert_even(hits: NDArray[np.int64], draws: int, chosen: int) -> None:
    """`chosen` of the candidates, without replacement, `draws` times: each as often as any."""
    share = chosen / len(hits)
    assert hits.sum() == draws * chosen
    spread = draws * share * (1 - share) * len(hits) / (len(hits) - 1)
    statistic = ((hits - draws * share) ** 2).sum() / spread
    assert statistic < chi_square_limit(len(hits) - 1)
    assert statistic > chi_square_limit(len(hits) - 1, z=-4.5)  # too even is not chance either

"""Documents made for tests: ids that tell where they come from, words of several pieces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clozelab.contracts import Blocks, Documents, Mark, Spelling, Vocabulary
from clozelab.keys import fold

SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4, "eod": 5}
PLACED = len(SPECIAL)  # the id of the store's first token in `placed` documents


def vocabulary(size: int = 1000, *, counts: bool = True) -> Vocabulary:
    numbers = np.arange(size)[::-1].astype(np.int64) + 1
    numbers[:6] = 0
    special = np.arange(6, dtype=np.int32)
    return Vocabulary(size, SPECIAL, special, numbers if counts else None)


def documents(
    shape: list[list[int]], *, seed: int = 0, size: int = 1000, continued: float = 0.2
) -> Documents:
    """Documents of sentences of so many tokens; every token's id is drawn, marks are consistent."""
    rng = np.random.default_rng(seed)
    lengths = np.array([n for sentences in shape for n in sentences], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    total = int(offsets[-1])
    word = rng.random(total) >= continued
    phrase = word & (rng.random(total) >= 0.3)
    entity = rng.random(total) >= 0.15
    marks = word * Mark.WORD + phrase * Mark.PHRASE + entity * Mark.ENTITY
    marks = marks + (word & (rng.random(total) >= 0.2)) * Mark.SEGMENT
    marks[offsets[:-1][lengths > 0]] = Mark.ALL
    bounds = np.concatenate([[0], np.cumsum([len(s) for s in shape])]).astype(np.int64)
    ids = rng.integers(6, size, total).astype(np.uint16)
    marks = marks.astype(np.uint8)
    begins = np.flatnonzero(marks & Mark.WORD)
    known = np.unique(fold(ids, begins))[::2] if total else np.zeros(0, np.uint64)
    letters = np.arange(size, dtype=np.int64) % 7 + 1
    spelling = Spelling(
        letters=(np.arange(letters.sum()) % 256).astype(np.uint8),
        starts=np.concatenate([[0], np.cumsum(letters)]),
        words=known,
        numbers=np.arange(3, 3 + len(known), dtype=np.int32),
    )
    return Documents(ids, marks, offsets, bounds, vocabulary(size), spelling)


def placed(shape: list[list[int]], *, seed: int = 0) -> Documents:
    """The same documents, but a token's id tells its place in the store: see `PLACED`."""
    plain = documents(shape, seed=seed)
    total = len(plain.ids)
    size = total + PLACED
    ids = np.arange(PLACED, size, dtype=np.uint32)
    known = np.unique(fold(ids, np.flatnonzero(plain.marks & Mark.WORD)))[::2]
    letters = np.arange(size, dtype=np.int64) % 7 + 1
    spelling = Spelling(
        letters=(np.arange(letters.sum()) % 256).astype(np.uint8),
        starts=np.concatenate([[0], np.cumsum(letters)]),
        words=known,
        numbers=np.arange(3, 3 + len(known), dtype=np.int32),
    )
    return replace(plain, ids=ids, vocabulary=vocabulary(size), spelling=spelling)


def prose(count: int = 200, *, seed: int = 1, size: int = 1000) -> Documents:
    """Documents of 1 to 30 sentences of 1 to 60 tokens."""
    rng = np.random.default_rng(seed)
    shape = [rng.integers(1, 60, rng.integers(1, 30)).tolist() for _ in range(count)]
    return documents(shape, seed=seed, size=size)


def blocks_of(
    words: list[list[int]], *, size: int = 1000, seed: int = 0, numbers: list[int] | None = None
) -> Blocks:
    """`[CLS] words [SEP]` blocks; a list of word lengths each, 0 standing for one more [SEP]."""
    rng = np.random.default_rng(seed)
    ids: list[int] = []
    marks: list[int] = []
    fixed: list[bool] = []
    starts = [0]
    for block in words:
        ids.append(SPECIAL["cls"])
        marks.append(Mark.ALL)
        fixed.append(True)
        for length in [*block, 0]:
            if length:
                ids += rng.integers(6, size, length).tolist()
                marks += [Mark.ALL] + [0] * (length - 1)
                fixed += [False] * length
            else:
                ids.append(SPECIAL["sep"])
                marks.append(Mark.ALL)
                fixed.append(True)
        starts.append(len(ids))
    return Blocks(
        ids=np.array(ids, dtype=np.int32),
        starts=np.array(starts, dtype=np.int64),
        marks=np.array(marks, dtype=np.uint8),
        segments=np.zeros(len(ids), dtype=np.uint8),
        fixed=np.array(fixed),
        numbers=np.arange(len(words)) if numbers is None else np.array(numbers),
    )

"""Blocks of words with their characters: sentences of one document (ELMo §3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar

import numpy as np

from clozelab.blocks.block_table import Chain, TableFormat, tabulate
from clozelab.blocks.planned import PlanPieces
from clozelab.blocks.visits import Entries, VisitOrder, Window, entries, visit_order
from clozelab.contracts import (
    Blocks,
    Bools,
    Documents,
    Ints,
    Mark,
    Plan,
    PlanStretch,
    Spelled,
    Spelling,
)
from clozelab.errors import UserError
from clozelab.keys import fold
from clozelab.packed import look_up, offsets, ranges, sums
from clozelab.ranges import at_least

UNKNOWN, OPEN, CLOSE = 0, 1, 2  # word numbers; the store's words follow
_STRETCH = 1 << 16  # sentences whose words are counted at a time
_OPEN, _CLOSE, _BEGIN, _END, _PAD = 256, 257, 258, 259, 260  # after the 256 bytes


@dataclass(frozen=True)
class WordBlocks:
    """A `Plan` whose blocks have the numbers and characters of their words."""

    table: Plan
    spelling: Spelling
    characters: int

    @property
    def notes(self) -> Mapping[str, float]:
        """Counts of what was skipped or split."""
        return self.table.notes

    def __len__(self) -> int:
        return len(self.table)

    def lengths(self, numbers: Ints) -> Ints:
        """The number of words of blocks, specials included."""
        blocks = self.table.blocks(numbers)
        return sums(_begins(blocks), blocks.starts)

    def blocks(self, numbers: Ints) -> Blocks:
        """Gather the blocks of these numbers, and spell their words."""
        blocks = self.table.blocks(numbers)
        return replace(blocks, words=spell(blocks, self.spelling, length=self.characters))


@dataclass(frozen=True)
class WordSentences(TableFormat):
    """`[CLS] sentences [SEP]` of at most `length` words, specials included."""

    provides: ClassVar[frozenset[str]] = frozenset({"words"})

    length: Annotated[int, at_least(3)] = 128  # the most words of a block, specials included
    characters: Annotated[int, at_least(3)] = 50  # of a word, its begin and end included

    def visits(self, documents: Documents, key: int, pieces: PlanPieces) -> VisitOrder:
        """The order in which a pass visits the sentences."""
        if documents.spelling is None:
            raise UserError(
                "blocks words needs a corpus with a word vocabulary; build the corpus again"
            )
        return visit_order(
            documents,
            key,
            values=partial(word_counts, documents),
            refine=partial(_split_long, documents, room=self.length - 2),
            pieces=pieces,
        )

    def table(self, window: Window, key: int, chain: Chain) -> PlanStretch:
        """The table of the blocks that begin in a window."""
        room = self.length - 2
        words = window.running(room, window.visits.values_of)
        stops = np.minimum(window.fits(words, room), window.ends)
        first = chain.follow(window, stops)
        return tabulate(window, window.segments(first, stops))

    def opened(self, documents: Documents, key: int, table: PlanStretch) -> Plan:
        """The plan of a table."""
        assert documents.spelling is not None
        plan = super().opened(documents, key, table)
        return WordBlocks(plan, documents.spelling, self.characters)


def _split_long(documents: Documents, visits: Entries, *, room: int) -> Entries:
    """The entries with sentences of more than `room` words (their values) split at words."""
    assert visits.values is not None
    columns = np.stack([visits.starts, visits.sizes, visits.documents, visits.values])
    parts, done = [], 0
    long = np.flatnonzero(visits.values > room)
    for entry in long.tolist():
        start, size, document, words = columns[:, entry]
        begins = np.flatnonzero(documents.marks[start : start + size] & Mark.WORD)[::room]
        begins[0] = 0
        lengths = np.minimum(words - room * np.arange(len(begins)), room)
        owner = np.full(len(begins), document)
        split = [start + begins, np.diff(np.append(begins, size)), owner, lengths]
        parts += [columns[:, done:entry], np.stack(split)]
        done = entry + 1
    starts, sizes, owners, words = np.concatenate([*parts, columns[:, done:]], axis=1)
    return entries(starts, sizes, owners, values=words, split=len(long))


def word_counts(documents: Documents, first: int, last: int) -> Ints:
    """The number of words of each sentence from `first` to `last`, some at a time."""
    counts = np.zeros(last - first, dtype=np.int64)
    for low in range(first, last, _STRETCH):
        bounds = np.asarray(documents.sentences[low : min(low + _STRETCH, last) + 1])
        running = offsets((documents.marks[bounds[0] : bounds[-1]] & Mark.WORD) != 0)
        counts[low - first : low - first + len(bounds) - 1] = np.diff(running[bounds - bounds[0]])
    return counts


def _begins(blocks: Blocks) -> Bools:
    """[N] which tokens begin a word, special tokens included."""
    return np.asarray(((blocks.marks & Mark.WORD) != 0) | blocks.fixed)


def spell(blocks: Blocks, spelling: Spelling, *, length: int) -> Spelled:
    """The words of blocks: numbers in the vocabulary, and at most `length` characters each."""
    first = np.flatnonzero(_begins(blocks))
    size = np.diff(np.append(first, len(blocks.ids)))
    rows = blocks.rows[first]
    starts = offsets(np.bincount(rows, minlength=len(blocks)))
    special = blocks.fixed[first]
    opening = special & (blocks.positions[first] == 0)
    keys = fold(blocks.ids, first)
    numbers = look_up(spelling.words, spelling.numbers, keys, default=UNKNOWN)
    numbers[special] = CLOSE
    numbers[opening] = OPEN
    letters = spelling.starts[blocks.ids + 1] - spelling.starts[blocks.ids]
    letters[blocks.fixed] = 0
    word = np.repeat(np.repeat(np.arange(len(first)), size), letters)
    before = np.cumsum(letters) - letters
    column = 1 + np.arange(len(word)) - before[first][word]
    fits = column < length - 1
    characters = np.full((len(first), length), _PAD, dtype=np.uint16)
    spelled = spelling.letters[ranges(spelling.starts[blocks.ids], letters)]
    characters[word[fits], column[fits]] = spelled[fits]
    lengths = np.minimum(np.add.reduceat(letters, first), length - 2)
    lengths[special] = 1
    characters[special, 1] = np.where(opening[special], _OPEN, _CLOSE)
    characters[:, 0] = _BEGIN
    characters[np.arange(len(first)), lengths + 1] = _END
    return Spelled(starts, numbers, characters)

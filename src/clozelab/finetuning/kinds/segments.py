"""A document → segments an encoder can read, ending at sentence ends if possible (SpanBERT §4.2),
with a row for each word and each mention in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from clozelab.contracts import Array, Ints, Reader, Row, Targets
from clozelab.finetuning.examples import Document
from clozelab.packed import offsets

WORD, AGAIN, MENTION = 1, 2, 3  # kinds of rows: a word, a word in the second pass, a mention
COLUMNS = ("kind", "at", "right", "word", "last", "sentence", "cluster", "labels")


class DocumentWords(NamedTuple):
    """The words of a document that have tokens."""

    columns: Mapping[str, Array]  # a row a token
    starts: Ints  # [n + 1] first token of each word
    numbers: Ints  # [n] which word of the document it is
    sentences: Ints  # [n] which sentence it is in


def spelled(document: Document, reader: Reader, *, most: int) -> DocumentWords:
    """A document's words in tokens; of a word longer than `most` tokens its first ones."""
    pieces = reader.words(document.sentences)
    sentence = np.repeat(np.arange(len(document.sentences)), np.diff(pieces.starts))
    number = offsets([len(words) for words in document.sentences])[sentence] + pieces.words
    numbers, begins, sizes = np.unique(number, return_index=True, return_counts=True)
    fits = np.arange(len(number)) - np.repeat(begins, sizes) < most
    return DocumentWords(
        columns={name: values[fits] for name, values in pieces.columns.items()},
        starts=offsets(np.minimum(sizes, most)),
        numbers=numbers,
        sentences=sentence[begins],
    )


def stretches(words: DocumentWords, begin: int, end: int, *, room: int) -> list[tuple[int, int]]:
    """Words `begin` to `end` cut into stretches of at most `room` tokens.

    Each ends at the last sentence end there is room for; a sentence longer than that is cut.
    """
    ends = np.flatnonzero(np.diff(words.sentences[:end], append=-1)) + 1
    cuts = []
    while begin < end:
        reach = int(np.searchsorted(words.starts, words.starts[begin] + room, side="right")) - 1
        reach = min(max(reach, begin + 1), end)
        whole = ends[(ends > begin) & (ends <= reach)]
        stop = int(whole[-1]) if len(whole) else reach
        cuts.append((begin, stop))
        begin = stop
    return cuts or [(begin, begin)]


def shifted(words: DocumentWords, begin: int, end: int, *, room: int) -> list[tuple[int, int]]:
    """The second pass: as `stretches`, from the middle of the first one on.

    What fits one stretch has none, nor has the half that comes before: nothing would change there.
    """
    if words.starts[end] - words.starts[begin] <= room:
        return []
    _, middle = stretches(words, begin, end, room=max(1, room // 2))[0]
    return stretches(words, middle, end, room=room) if middle < end else []


def block(
    words: DocumentWords, stretch: tuple[int, int], reader: Reader, *, kind: int
) -> tuple[Row, Ints]:
    """A stretch as a block, and a row of `COLUMNS` for each of its words."""
    begin, stop = stretch
    tokens = slice(int(words.starts[begin]), int(words.starts[stop]))
    row = reader.lay({name: values[tokens] for name, values in words.columns.items()})
    table = np.zeros((stop - begin, len(COLUMNS)), dtype=np.int64)
    places = words.starts[begin : stop + 1] - tokens.start + row.first.start
    table[:, COLUMNS.index("kind")] = kind
    table[:, COLUMNS.index("at")] = places[:-1]
    table[:, COLUMNS.index("right")] = places[1:] - 1
    table[:, COLUMNS.index("word")] = words.numbers[begin:stop]
    table[:, COLUMNS.index("sentence")] = words.sentences[begin:stop]
    table[:, COLUMNS.index("labels")] = Targets.IGNORED
    return row, table


def mentions(document: Document, words: DocumentWords, begin: int, end: int) -> Ints:
    """A row of `COLUMNS` for each mention among the words `begin` to `end`; clusters from 1."""
    if document.clusters is None or begin == end:
        return np.zeros((0, len(COLUMNS)), dtype=np.int64)
    low, high = words.numbers[begin], words.numbers[end - 1]
    rows = [
        (MENTION, 0, 0, mention.first, mention.last, 0, number, Targets.IGNORED)
        for number, cluster in enumerate(document.clusters, start=1)
        for mention in cluster
        if low <= mention.first and mention.last <= high
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, len(COLUMNS))

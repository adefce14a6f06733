"""A document → segments that an encoder can read, ending at sentence ends if possible (SpanBERT
§4.2), with a row for each word and each mention in them.
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
    numbers: Ints  # [n] its index in the document
    sentences: Ints  # [n] the index of its sentence


def spelled(document: Document, reader: Reader, *, most: int) -> DocumentWords:
    """The tokens of a document's words, each word truncated to `most` tokens."""
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
    """The words `begin` to `end` split into ranges of at most `room` tokens.

    Each ends at the last sentence end that fits; a longer sentence is split.
    """
    ends = np.flatnonzero(np.diff(words.sentences[:end], append=-1)) + 1
    cuts = []
    while begin < end:
        reach = int(np.searchsorted(words.starts, words.starts[begin] + room, side="right")) - 1
        reach = min(max(reach, begin + 1), end)
        sentence_ends = ends[(ends > begin) & (ends <= reach)]
        stop = int(sentence_ends[-1]) if len(sentence_ends) else reach
        cuts.append((begin, stop))
        begin = stop
    return cuts or [(begin, begin)]


def shifted(words: DocumentWords, begin: int, end: int, *, room: int) -> list[tuple[int, int]]:
    """The ranges of the second pass: as `stretches`, from the middle of the first range on.

    There are none if all fits one range, and none for the first half, where nothing would change.
    """
    if words.starts[end] - words.starts[begin] <= room:
        return []
    _, middle = stretches(words, begin, end, room=max(1, room // 2))[0]
    return stretches(words, middle, end, room=room) if middle < end else []


def block(
    words: DocumentWords, stretch: tuple[int, int], reader: Reader, *, kind: int
) -> tuple[Row, dict[str, Array]]:
    """A range of words as a block, and a slot for each word."""
    begin, stop = stretch
    tokens = slice(int(words.starts[begin]), int(words.starts[stop]))
    row = reader.with_special_tokens(
        {name: values[tokens] for name, values in words.columns.items()}
    )
    positions = words.starts[begin : stop + 1] - tokens.start + row.first.start
    zeros = np.zeros(stop - begin, dtype=np.int64)
    return row, {
        "kind": zeros + kind,
        "at": positions[:-1],
        "right": positions[1:] - 1,
        "word": words.numbers[begin:stop],
        "last": zeros,
        "sentence": words.sentences[begin:stop],
        "cluster": zeros,
        "labels": zeros + Targets.IGNORED,
    }


def mentions(document: Document, words: DocumentWords, begin: int, end: int) -> dict[str, Array]:
    """A slot for each mention among the words `begin` to `end`; clusters from 1."""
    inside = words.numbers[begin:end]
    rows = [
        (MENTION, 0, 0, mention.first, mention.last, 0, number, Targets.IGNORED)
        for number, cluster in enumerate(document.clusters or (), start=1)
        for mention in cluster
        if len(inside) and inside[0] <= mention.first and mention.last <= inside[-1]
    ]
    table = np.array(rows, dtype=np.int64).reshape(-1, len(COLUMNS))
    return dict(zip(COLUMNS, table.T, strict=True))

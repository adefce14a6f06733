"""All documents as one endless text, an end-of-document token after each.

Positions in this stream are virtual: the store holds no such tokens, so a position is mapped to
its document first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from clozelab.contracts import Bools, Bytes, Documents, Ids, Ints, Mark
from clozelab.errors import UserError
from clozelab.keys import mix
from clozelab.packed import offsets, ranges


@dataclass(frozen=True)
class Stream:
    """The documents in the order the key gives them."""

    documents: Documents
    key: int

    @cached_property
    def visit(self) -> Ints:
        """[D] which document comes when; those without a token are left out."""
        first = np.asarray(self.documents.sentences)[self.documents.documents]
        order = np.argsort(mix(self.key, np.arange(len(self.documents))), kind="stable")
        return np.asarray(order[np.diff(first)[order] > 0])

    @cached_property
    def tokens(self) -> Ints:
        """[D] first token in the store of each visited document."""
        return np.asarray(self.documents.sentences)[self.documents.documents[self.visit]]

    @cached_property
    def starts(self) -> Ints:
        """[D + 1] where each visited document begins in the stream."""
        stops = np.asarray(self.documents.sentences)[self.documents.documents[self.visit + 1]]
        return offsets(stops - self.tokens + 1)

    def __len__(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def sentences(self) -> Ints:
        """Where sentences begin in the stream, ascending; empty ones begin nowhere."""
        first = self.documents.documents[self.visit]
        counts = self.documents.documents[self.visit + 1] - first
        document = np.repeat(np.arange(len(first)), counts)
        sentence = ranges(first, counts)
        bounds = np.asarray(self.documents.sentences)
        token = bounds[sentence]
        begin = token - self.tokens[document] + self.starts[document]
        return np.asarray(begin[bounds[sentence + 1] > token])

    def read(self, positions: Ints) -> tuple[Ids, Bytes, Bools]:
        """Ids, marks in text order, and which are end-of-document tokens."""
        document = np.searchsorted(self.starts, positions, side="right") - 1
        ends = positions + 1 == self.starts[document + 1]
        source = np.where(ends, 0, self.tokens[document] + positions - self.starts[document])
        ids = self.documents.ids[source].astype(np.int32)
        ids[ends] = self.documents.vocabulary.role("eod")
        marks = np.asarray(self.documents.marks[source])
        marks = np.where(ends, np.uint8(Mark.ALL), marks)
        return ids, marks, ends

    def check(self, least: int) -> None:
        """Refuse a stream shorter than one block."""
        if len(self) < least:
            raise UserError(
                f"the corpus has {len(self)} tokens and one block of this format takes {least}:"
                " add text, or use shorter blocks (blocks.length) or fewer rows"
            )

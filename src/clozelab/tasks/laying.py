"""Examples → packed blocks: what a kind of task asks of whoever tokenises, and what it hands back.

A `Reader` knows the tokenizer and the marks of one encoder ([CLS] A [SEP] B [SEP], XLNet's
A <sep> B <sep> <cls>, …); kinds of tasks know neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from clozelab.contracts import Array, Bools, Counts, Ints, Targets
from clozelab.packed import offsets


class Pieces(NamedTuple):
    """Some texts as tokens, packed; for an encoder that reads words, a token is a word."""

    columns: Mapping[str, Array]  # "ids" and what else the encoder reads, a row a token
    starts: Ints  # [T + 1] first token of each text
    spans: Ints  # [N, 2] the characters of its text that each stands for
    begins: Bools  # [N] which begin a word
    words: Ints  # [N] the word of its text that each belongs to

    def text(self, number: int) -> slice:
        """The tokens of one text."""
        return slice(int(self.starts[number]), int(self.starts[number + 1]))

    def part(self, where: slice) -> dict[str, Array]:
        """The columns of some tokens, to be laid."""
        return {name: values[where] for name, values in self.columns.items()}


class Row(NamedTuple):
    """One block: one text or two with the marks of the encoder's kind around them."""

    columns: dict[str, Array]  # a row a token, marks included
    first: slice  # where the first text lies
    second: slice  # where the second does; empty if there is none
    mark: int  # the position whose vector stands for the whole block


class Reader(Protocol):
    """Texts as one encoder reads them."""

    @property
    def length(self) -> int:
        """The most tokens a block may have, marks included."""
        ...

    @property
    def passage_first(self) -> bool:
        """Whether a passage comes before its question (XLNet) or after it."""
        ...

    def pieces(self, texts: Sequence[str]) -> Pieces:
        """Texts as tokens."""
        ...

    def words(self, sentences: Sequence[Sequence[str]]) -> Pieces:
        """Sentences in words as tokens: `begins` and `words` go by the words given.

        A word that the tokenizer makes nothing of has no token.
        """
        ...

    def marks(self, texts: int) -> int:
        """How many tokens of a block of one text, or two, are not theirs."""
        ...

    def lay(self, first: Mapping[str, Array], second: Mapping[str, Array] | None = None) -> Row:
        """Texts, cut to fit, with the marks around them."""
        ...


@dataclass(frozen=True)
class Laid:
    """Examples as packed blocks with what is to be predicted in them.

    A group is what is judged together and drawn together: the choices of a question, the segments
    of a document, and otherwise one block.
    """

    columns: Mapping[str, Array]  # [N] what the encoder reads
    starts: Ints  # [B + 1] first token of each block
    targets: Targets
    groups: Ints  # [G + 1] first block of each group
    owners: Ints  # [G] the example that each group was made of
    kept: Mapping[str, Array] = field(default_factory=dict)  # [N] for reading predictions alone
    counts: Counts = field(default_factory=Counts)  # what was cut or left out


def stacked(
    rows: Sequence[Row],
    targets: Targets,
    *,
    groups: Ints | None = None,
    owners: Ints | None = None,
    kept: Mapping[str, Array] | None = None,
    counts: Counts | None = None,
) -> Laid:
    """Rows one after another; unless told otherwise, each is a group and an example of its own."""
    names = rows[0].columns if rows else {}
    groups = np.arange(len(rows) + 1) if groups is None else groups
    return Laid(
        columns={name: np.concatenate([row.columns[name] for row in rows]) for name in names},
        starts=offsets([len(row.columns["ids"]) for row in rows]),
        targets=targets,
        groups=groups,
        owners=np.arange(len(groups) - 1) if owners is None else owners,
        kept=kept or {},
        counts=counts or Counts(),
    )


def trimmed(first: int, second: int, room: int) -> tuple[int, int]:
    """How much of two texts to keep: the longer loses its last tokens, then both in turn.

    So does BERT's code, where the second one loses the first of those.
    """
    over = max(0, first + second - room)
    most = min(over, abs(first - second))
    rest = over - most
    first -= most * (first > second) + rest // 2
    second -= most * (second > first) + (rest + 1) // 2
    return max(first, 0), max(second, 0)

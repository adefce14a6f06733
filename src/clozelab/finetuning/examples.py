"""Labelled examples, what a fine-tuned model says of them, and examples in tokens: the values of
each kind of task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clozelab.contracts import Array, Counts, Ints, Row, Targets
from clozelab.packed import offsets


class Sentences(NamedTuple):
    """One text, or two, with a class or a number."""

    id: str
    first: str
    second: str | None = None
    label: str | float | None = None  # None: not known


class Tagged(NamedTuple):
    """A sentence in words, with a tag for each."""

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None


class GoldAnswer(NamedTuple):
    """A stretch of a passage: its text, and the character it begins at."""

    text: str
    start: int


class Question(NamedTuple):
    """A question about a passage, with every answer that counts as right.

    No answers at all: the passage has none. None: they are not known.
    """

    id: str
    question: str
    passage: str
    answers: tuple[GoldAnswer, ...] | None = None


class Choice(NamedTuple):
    """A text and its possible continuations."""

    id: str
    first: str
    seconds: tuple[str, ...]
    label: int | None = None  # which continues it, counted from 0


class Mention(NamedTuple):
    """A stretch of a document's words, both ends included."""

    first: int
    last: int


class Pronoun(NamedTuple):
    """What GAP asks of a document: which of two names a pronoun stands for, if either."""

    word: str  # the pronoun itself, which tells its gender
    mention: Mention
    a: Mention
    b: Mention
    is_a: bool | None  # None: not known
    is_b: bool | None


class Document(NamedTuple):
    """A document in sentences of words, with the mentions of each entity."""

    id: str
    sentences: tuple[tuple[str, ...], ...]
    clusters: tuple[tuple[Mention, ...], ...] | None = None  # None: not known
    pronoun: Pronoun | None = None  # of GAP


Floats = NDArray[np.floating]


class Class(NamedTuple):
    """The likeliest label, and how likely each is."""

    label: str
    probabilities: dict[str, float]


class Number(NamedTuple):
    """A number on the scale of the examples."""

    value: float


class Picked(NamedTuple):
    """The likeliest continuation, counted from 0, and how likely each is."""

    label: int
    probabilities: tuple[float, ...]


class Tags(NamedTuple):
    """A tag for each word, and how likely it is; 0 for a word that the tokenizer left out."""

    tags: tuple[str, ...]
    probabilities: tuple[float, ...]


class Clusters(NamedTuple):
    """The mentions of each thing that a document mentions more than once."""

    clusters: tuple[tuple[Mention, ...], ...]


class Candidate(NamedTuple):
    """A possible answer: how likely it is among its rivals, and the character it begins at."""

    text: str
    probability: float
    start: int


class Span(NamedTuple):
    """A stretch of a passage, or none: an empty text."""

    text: str
    score: float  # of the best candidate, whether it is given as the answer or not
    null: float | None  # over the task's threshold there is no answer; None: there always is one
    best: tuple[Candidate, ...]  # the likeliest first


def likelihoods(logits: Floats) -> NDArray[np.float64]:
    """Softmax over the last dimension."""
    doubles = np.asarray(logits, dtype=np.float64)
    powers = np.exp(doubles - doubles.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


@dataclass(frozen=True)
class TokenizedExamples:
    """Examples as packed blocks with what is to be predicted in them.

    A group is what is judged together and drawn together: the choices of a question, the segments
    of a document, and otherwise one block.
    """

    columns: Mapping[str, Array]  # [N] what the encoder reads
    starts: Ints  # [B + 1] first token of each block
    targets: Targets
    groups: Ints  # [G + 1] first block of each group
    owners: Ints  # [G] the example that each group was made of
    token_facts: Mapping[str, Array] = field(default_factory=dict)  # [N] for decoding alone
    counts: Counts = field(default_factory=Counts)  # what was cut or left out


def joined(tables: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """Tables of the same columns, one under another."""
    names = tables[0] if tables else {}
    return {name: np.concatenate([table[name] for table in tables]) for name in names}


def slots(tables: Sequence[Mapping[str, Any]]) -> Targets:
    """Targets by what each block has in its slots, in columns."""
    return Targets(offsets([len(table["labels"]) for table in tables]), joined(tables))


def stacked(
    rows: Sequence[Row],
    targets: Targets,
    *,
    groups: Ints | None = None,
    owners: Ints | None = None,
    token_facts: Mapping[str, Array] | None = None,
    counts: Counts | None = None,
) -> TokenizedExamples:
    """Rows one after another; unless told otherwise, each is a group and an example of its own."""
    groups = np.arange(len(rows) + 1) if groups is None else groups
    return TokenizedExamples(
        columns=joined([row.columns for row in rows]),
        starts=offsets([len(row.columns["ids"]) for row in rows]),
        targets=targets,
        groups=groups,
        owners=np.arange(len(groups) - 1) if owners is None else owners,
        token_facts=token_facts or {},
        counts=counts or Counts(),
    )

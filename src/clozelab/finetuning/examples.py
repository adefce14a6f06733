"""The values of each kind of task: labelled examples, predictions, and tokenised examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from clozelab.contracts import Array, Counts, Ints, Row, Targets
from clozelab.packed import offsets


class Id(str):
    """The id of an example from a file, which remembers the file and line of the example."""

    place: str

    def __new__(cls, name: str, place: str = "") -> Self:
        """The id `name` of an example at `place`."""
        self = super().__new__(cls, name)
        self.place = place
        return self


def place_of(example: Any) -> str:
    """An example in messages: its file and line, or else its id."""
    return getattr(example.id, "place", "") or f"example {example.id}"


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
    """A span of a passage: its text, and the character it begins at."""

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
    """A span of a document's words, both ends included."""

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
    """The most probable label, and the probability of each."""

    label: str
    probabilities: dict[str, float]


class Number(NamedTuple):
    """A number on the scale of the examples."""

    value: float


class Picked(NamedTuple):
    """The most probable continuation, counted from 0, and the probability of each."""

    label: int
    probabilities: tuple[float, ...]


class Tags(NamedTuple):
    """A tag for each word, and its probability; 0 for a word without tokens."""

    tags: tuple[str, ...]
    probabilities: tuple[float, ...]


class Clusters(NamedTuple):
    """The mentions of each entity that a document mentions more than once."""

    clusters: tuple[tuple[Mention, ...], ...]


class Candidate(NamedTuple):
    """A possible answer: its probability among all, and the character it begins at."""

    text: str
    probability: float
    start: int


class Span(NamedTuple):
    """An answer: a span of a passage, or an empty text for none."""

    text: str
    score: float  # of the best candidate, even if there is no answer
    null: float | None  # above the threshold there is no answer; None: there always is one
    best: tuple[Candidate, ...]  # the most probable first


def likelihoods(logits: Floats) -> NDArray[np.float64]:
    """Softmax over the last dimension."""
    doubles = np.asarray(logits, dtype=np.float64)
    powers = np.exp(doubles - doubles.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


@dataclass(frozen=True)
class TokenizedExamples:
    """Examples as packed blocks with their targets.

    A group is sampled and predicted together: the choices of a question, the segments of a
    document, and otherwise a single block.
    """

    columns: Mapping[str, Array]  # [N] what the encoder reads
    starts: Ints  # [B + 1] first token of each block
    targets: Targets
    groups: Ints  # [G + 1] first block of each group
    owners: Ints  # [G] the example that each group was made of
    token_facts: Mapping[str, Array] = field(default_factory=dict)  # [N] only for decoding
    counts: Counts = field(default_factory=Counts)  # what was truncated or left out


def joined(tables: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """Concatenate tables of the same columns."""
    names = tables[0] if tables else {}
    return {name: np.concatenate([table[name] for table in tables]) for name in names}


def slots(tables: Sequence[Mapping[str, Any]]) -> Targets:
    """The targets of blocks from a table of slots for each block."""
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
    """Concatenate rows to blocks; by default each is a group and an example of its own."""
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

"""Labelled examples, as files hold them and predictions are made for; labels go by name."""

from __future__ import annotations

from typing import NamedTuple


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


class Answer(NamedTuple):
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
    answers: tuple[Answer, ...] | None = None


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

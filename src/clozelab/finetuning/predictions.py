"""What a fine-tuned model says of an example: one small value for each kind of task."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clozelab.finetuning.examples import Mention

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
    wide = np.asarray(logits, dtype=np.float64)
    raised = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))

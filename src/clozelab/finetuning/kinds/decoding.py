"""From scores to an answer: the likeliest legal stretches of a passage, as text of that passage.

BERT's SQuAD code for scores of every token, XLNet's for the beams of its head; the text is found
by characters, so that it is a substring of the passage whatever the tokenizer did to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clozelab.contracts import Bools, Ints
from clozelab.finetuning.examples import Candidate, Floats, likelihoods

Wide = NDArray[np.float64]


class Stretches(NamedTuple):
    """Some stretches of a window's tokens with their scores, larger is better."""

    first: Ints
    last: Ints
    score: Wide


class Read(NamedTuple):
    """What one window says."""

    legal: Stretches  # those that may be the answer
    single: Stretches  # each token with most context here, for want of anything else
    null: float  # larger: rather no answer


class Inside(NamedTuple):
    """Some facts about a window's tokens."""

    passage: Bools  # belongs to the passage
    most: Bools  # and has more context here than in any other window
    mark: int  # the token that stands for no answer


def read_scores(scores: Floats, inside: Inside, *, best: int, longest: int) -> Read:
    """From [n, 2] scores of each token as the first and as the last of the answer.

    Differs from BERT's code: it takes the `best` of all tokens and then drops those that may not
    be; here the best of those that may.
    """
    start, end = np.asarray(scores, dtype=np.float64).T
    first, last = _top(start, inside.most, best), _top(end, inside.passage, best)
    total = start[first][:, None] + end[last]
    alone = np.flatnonzero(inside.most)
    return Read(
        _legal(first[:, None], last, total, longest),
        Stretches(alone, alone, start[alone] + end[alone]),
        float(start[inside.mark] + end[inside.mark]),
    )


def read_beams(row: Floats, inside: Inside, *, beams: int, longest: int) -> Read:
    """From a row of the beam head (heads/beam.py says what is where)."""
    numbers = np.asarray(row, dtype=np.float64)
    parts = np.split(numbers[:-1], np.cumsum([beams, beams, beams * beams]))
    start, end = parts[0], parts[2].reshape(beams, beams)
    first, last = parts[1].astype(np.int64), parts[3].astype(np.int64).reshape(beams, beams)
    # A block of fewer tokens than beams has beams that are none: they count as outside.
    size = len(inside.passage)
    most, passage = np.pad(inside.most, (0, 1)), np.pad(inside.passage, (0, 1))
    first, last = np.minimum(first, size), np.minimum(last, size)
    total = np.where(most[first][:, None] & passage[last], start[:, None] + end, -np.inf)
    chance = np.full(size + 1, start.min())
    chance[first] = start
    alone = np.flatnonzero(inside.most)
    return Read(
        _legal(first[:, None], last, total, longest),
        Stretches(alone, alone, chance[alone]),
        float(numbers[-1]),
    )


def candidates(
    windows: Sequence[tuple[Read, Ints, Ints]], passage: str, *, best: int
) -> tuple[tuple[Candidate, ...], float]:
    """The `best` different answers over a question's windows, and the score of the first.

    A window comes with the characters at which its tokens begin and end. Where no stretch is legal
    the best token is the answer, and where there is none either there are no candidates.
    """
    found = _ranked([(read.legal, begin, end) for read, begin, end in windows])
    texts = _different(found, passage, best)
    if not texts:
        found = _ranked([(read.single, begin, end) for read, begin, end in windows])
        texts = _different(found, passage, 1)
    if not texts:
        return (), 0.0
    chances = likelihoods(np.array([score for _, _, score in texts]))
    made = (
        Candidate(text, float(chance), start)
        for (text, start, _), chance in zip(texts, chances, strict=True)
    )
    return tuple(made), texts[0][2]


def _top(scores: Wide, allowed: Bools, count: int) -> Ints:
    """The allowed tokens of the highest scores; of equal ones, the first."""
    tokens = np.flatnonzero(allowed)
    return tokens[np.argsort(-scores[tokens], kind="stable")[:count]]


def _legal(first: Ints, last: Ints, total: Wide, longest: int) -> Stretches:
    """The pairs that end where they begin or after, and are not too long."""
    first, last = np.broadcast_arrays(first, last)
    legal = (last >= first) & (last - first < longest) & np.isfinite(total)
    return Stretches(first[legal], last[legal], total[legal])


def _ranked(windows: Sequence[tuple[Stretches, Ints, Ints]]) -> Iterator[tuple[int, int, float]]:
    """Characters and score of every stretch, best first; of equal ones the first, the shortest."""
    begin = np.concatenate([begins[some.first] for some, begins, _ in windows])
    end = np.concatenate([ends[some.last] for some, _, ends in windows])
    score = np.concatenate([some.score for some, _, _ in windows])
    order = np.lexsort((end, begin, -score))
    return ((int(begin[i]), int(end[i]), float(score[i])) for i in order)


def _different(
    found: Iterator[tuple[int, int, float]], passage: str, count: int
) -> list[tuple[str, int, float]]:
    """The first `count` texts, blanks around them and repetitions left out."""
    texts: dict[str, tuple[str, int, float]] = {}
    for begin, end, score in found:
        whole = passage[begin:end]
        text = whole.strip()
        if text and text not in texts:
            texts[text] = (text, begin + whole.index(text), score)
            if len(texts) == count:
                break
    return list(texts.values())

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
from clozelab.finetuning.examples import Candidate, Floats, TokenizedExamples, likelihoods

Doubles = NDArray[np.float64]


class WindowTokens(NamedTuple):
    """Some facts about a window's tokens."""

    passage: Bools  # belongs to the passage
    most: Bools  # and has more context here than in any other window
    begin: Ints  # the character of the passage at which it begins
    end: Ints
    mark: int  # the token that stands for no answer


class Stretches(NamedTuple):
    """Some stretches of a window's tokens with their scores, larger is better."""

    first: Ints
    last: Ints
    score: Doubles


class WindowScores(NamedTuple):
    """What one window says."""

    tokens: WindowTokens
    legal: Stretches  # those that may be the answer
    single: Stretches  # each token with most context here, for want of anything else
    null: float  # larger: rather no answer


def window_tokens(tokenized: TokenizedExamples, window: int) -> WindowTokens:
    """The facts that `windows.tokenize` wrote down."""
    part = slice(int(tokenized.starts[window]), int(tokenized.starts[window + 1]))
    facts = {name: values[part] for name, values in tokenized.token_facts.items()}
    slot = int(tokenized.targets.starts[window])
    return WindowTokens(**facts, mark=int(tokenized.targets.columns["at"][slot]))  # type: ignore[arg-type]


def read_scores(scores: Floats, tokens: WindowTokens, *, best: int, longest: int) -> WindowScores:
    """From [n, 2] scores of each token as the first and as the last of the answer.

    Differs from BERT's code: it takes the `best` of all tokens and then drops those that may not
    be; here the best of those that may.
    """
    start, end = np.asarray(scores, dtype=np.float64).T
    first, last = _top(start, tokens.most, best), _top(end, tokens.passage, best)
    total = start[first][:, None] + end[last]
    null = float(start[tokens.mark] + end[tokens.mark])
    return WindowScores(
        tokens, _legal(first[:, None], last, total, longest), _single(tokens, start + end), null
    )


def read_beams(row: Floats, tokens: WindowTokens, *, beams: int, longest: int) -> WindowScores:
    """From a row of the beam head (heads/answer.py says what is where)."""
    numbers = np.asarray(row, dtype=np.float64)
    parts = np.split(numbers[:-1], np.cumsum([beams, beams, beams * beams]))
    start, end = parts[0], parts[2].reshape(beams, beams)
    first, last = parts[1].astype(np.int64), parts[3].astype(np.int64).reshape(beams, beams)
    # A block of fewer tokens than beams has beams that are none: they count as outside.
    size = len(tokens.passage)
    most, passage = np.pad(tokens.most, (0, 1)), np.pad(tokens.passage, (0, 1))
    first, last = np.minimum(first, size), np.minimum(last, size)
    total = np.where(most[first][:, None] & passage[last], start[:, None] + end, -np.inf)
    starts = np.full(size + 1, start.min())
    starts[first] = start
    legal = _legal(first[:, None], last, total, longest)
    return WindowScores(tokens, legal, _single(tokens, starts), float(numbers[-1]))


def candidates(
    windows: Sequence[WindowScores], passage: str, *, best: int
) -> tuple[tuple[Candidate, ...], float]:
    """The `best` different answers over a question's windows, and the score of the first.

    Where no stretch is legal the best token is the answer, and where there is none either there are
    no candidates.
    """
    texts = _different(_ranked([(w.tokens, w.legal) for w in windows]), passage, best)
    if not texts:
        texts = _different(_ranked([(w.tokens, w.single) for w in windows]), passage, 1)
    if not texts:
        return (), 0.0
    probabilities = likelihoods(np.array([score for _, _, score in texts])).tolist()
    pairs = zip(texts, probabilities, strict=True)
    return tuple(Candidate(text, p, start) for (text, start, _), p in pairs), texts[0][2]


def _top(scores: Doubles, allowed: Bools, count: int) -> Ints:
    """The allowed tokens of the highest scores; of equal ones, the first."""
    tokens = np.flatnonzero(allowed)
    return tokens[np.argsort(-scores[tokens], kind="stable")[:count]]


def _single(tokens: WindowTokens, scores: Doubles) -> Stretches:
    alone = np.flatnonzero(tokens.most)
    return Stretches(alone, alone, scores[alone])


def _legal(first: Ints, last: Ints, total: Doubles, longest: int) -> Stretches:
    """The pairs that end where they begin or after, and are not too long."""
    first, last = np.broadcast_arrays(first, last)
    legal = (last >= first) & (last - first < longest) & np.isfinite(total)
    return Stretches(first[legal], last[legal], total[legal])


def _ranked(windows: Sequence[tuple[WindowTokens, Stretches]]) -> Iterator[tuple[int, int, float]]:
    """Characters and score of every stretch, best first; of equal ones the first, the shortest."""
    begin = np.concatenate([tokens.begin[some.first] for tokens, some in windows])
    end = np.concatenate([tokens.end[some.last] for tokens, some in windows])
    score = np.concatenate([some.score for _, some in windows])
    order = np.lexsort((end, begin, -score))
    return ((int(begin[i]), int(end[i]), float(score[i])) for i in order)


def _different(
    stretches: Iterator[tuple[int, int, float]], passage: str, count: int
) -> list[tuple[str, int, float]]:
    """The first `count` texts, blanks around them and repetitions left out."""
    texts: dict[str, tuple[str, int, float]] = {}
    for begin, end, score in stretches:
        whole = passage[begin:end]
        text = whole.strip()
        if text and text not in texts:
            texts[text] = (text, begin + whole.index(text), score)
            if len(texts) == count:
                break
    return list(texts.values())

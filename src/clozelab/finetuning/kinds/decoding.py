"""From scores to an answer: the best legal spans of a passage, as text of that passage.

As in BERT's SQuAD code for scores of every token, and in XLNet's for the beams of its head; the
text is found by characters, so that it is always a substring of the passage.
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
    """What decoding needs of a window's tokens."""

    passage: Bools  # whether it belongs to the passage
    most: Bools  # and has the most context in this window
    begin: Ints  # the character of the passage at which it begins
    end: Ints
    mark: int  # the position that stands for no answer


class Stretches(NamedTuple):
    """Some spans of a window's tokens with their scores; larger is better."""

    first: Ints
    last: Ints
    score: Doubles


class WindowScores(NamedTuple):
    """The scores of one window."""

    tokens: WindowTokens
    legal: Stretches  # the possible answers
    single: Stretches  # each token with most context here, as a fallback
    null: float  # larger: no answer is more likely


def window_tokens(tokenized: TokenizedExamples, window: int) -> WindowTokens:
    """The facts about a window's tokens from `windows.tokenize`."""
    part = slice(int(tokenized.starts[window]), int(tokenized.starts[window + 1]))
    facts = {name: values[part] for name, values in tokenized.token_facts.items()}
    slot = int(tokenized.targets.starts[window])
    return WindowTokens(**facts, mark=int(tokenized.targets.columns["at"][slot]))  # type: ignore[arg-type]


def read_scores(scores: Floats, tokens: WindowTokens, *, best: int, longest: int) -> WindowScores:
    """From [n, 2] scores of each token as the first and as the last of the answer.

    Differs from BERT's code: it takes the `best` of all tokens and then drops illegal ones; here
    they are the best of the legal ones.
    """
    start, end = np.asarray(scores, dtype=np.float64).T
    first, last = _top_tokens(start, tokens.most, best), _top_tokens(end, tokens.passage, best)
    total = start[first][:, None] + end[last]
    null = float(start[tokens.mark] + end[tokens.mark])
    return WindowScores(
        tokens, _legal(first[:, None], last, total, longest), _single(tokens, start + end), null
    )


def read_beams(row: Floats, tokens: WindowTokens, *, beams: int, longest: int) -> WindowScores:
    """From a row of the beam head, whose layout is in heads/answer.py."""
    numbers = np.asarray(row, dtype=np.float64)
    parts = np.split(numbers[:-1], np.cumsum([beams, beams, beams * beams]))
    start, end = parts[0], parts[2].reshape(beams, beams)
    first, last = parts[1].astype(np.int64), parts[3].astype(np.int64).reshape(beams, beams)
    # A block with fewer tokens than beams has empty beams, which are not legal.
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

    If no span is legal the best single token is the answer; without one there are no candidates.
    """
    texts = _distinct_texts(_rank([(w.tokens, w.legal) for w in windows]), passage, best)
    if not texts:
        texts = _distinct_texts(_rank([(w.tokens, w.single) for w in windows]), passage, 1)
    if not texts:
        return (), 0.0
    probabilities = likelihoods(np.array([score for _, _, score in texts])).tolist()
    pairs = zip(texts, probabilities, strict=True)
    return tuple(Candidate(text, p, start) for (text, start, _), p in pairs), texts[0][2]


def _top_tokens(scores: Doubles, allowed: Bools, count: int) -> Ints:
    """The allowed tokens with the highest scores; ties by position."""
    tokens = np.flatnonzero(allowed)
    return tokens[np.argsort(-scores[tokens], kind="stable")[:count]]


def _single(tokens: WindowTokens, scores: Doubles) -> Stretches:
    at = np.flatnonzero(tokens.most)
    return Stretches(at, at, scores[at])


def _legal(first: Ints, last: Ints, total: Doubles, longest: int) -> Stretches:
    """The spans that do not end before they begin, and are not too long."""
    first, last = np.broadcast_arrays(first, last)
    legal = (last >= first) & (last - first < longest) & np.isfinite(total)
    return Stretches(first[legal], last[legal], total[legal])


def _rank(windows: Sequence[tuple[WindowTokens, Stretches]]) -> Iterator[tuple[int, int, float]]:
    """The characters and score of every span, best first; ties by position and length."""
    begin = np.concatenate([tokens.begin[spans.first] for tokens, spans in windows])
    end = np.concatenate([tokens.end[spans.last] for tokens, spans in windows])
    score = np.concatenate([spans.score for _, spans in windows])
    order = np.lexsort((end, begin, -score))
    return ((int(begin[i]), int(end[i]), float(score[i])) for i in order)


def _distinct_texts(
    stretches: Iterator[tuple[int, int, float]], passage: str, count: int
) -> list[tuple[str, int, float]]:
    """The first `count` distinct texts, stripped of white space."""
    texts: dict[str, tuple[str, int, float]] = {}
    for begin, end, score in stretches:
        raw = passage[begin:end]
        text = raw.strip()
        if text and text not in texts:
            texts[text] = (text, begin + raw.index(text), score)
            if len(texts) == count:
                break
    return list(texts.values())

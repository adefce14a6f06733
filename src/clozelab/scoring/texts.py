"""Texts with the likelihoods of their tokens, words and sentences, for users."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from clozelab.scoring.likelihood import Likelihoods, TextScorer

Unit = Literal["token", "word", "sentence"]
LEVELS = (0.0, 1.0, 3.0, 5.0, 8.0, 12.0)  # nats, from expected to unexpected: a colour for each
_SEPARATORS = re.compile("[\t\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")  # of a field or of a line


@dataclass(frozen=True)
class ScoredPiece:
    """A token or a word; without a likelihood if nothing predicts it."""

    text: str
    start: int  # its first character in the text
    stop: int
    log_likelihood: float | None  # in nats

    @property
    def surprisal(self) -> float:
        """How unexpected it is, in nats."""
        return 0.0 if self.log_likelihood is None else -self.log_likelihood

    @property
    def level(self) -> int:
        """The index of the last of `LEVELS` that its surprisal reaches."""
        return max(sum(self.surprisal >= nats for nats in LEVELS) - 1, 0)


@dataclass(frozen=True)
class ScoredText:
    """One text: its log-likelihood is the sum of its tokens'."""

    text: str
    tokens: tuple[ScoredPiece, ...]
    words: tuple[ScoredPiece, ...]
    log_likelihood: float  # in nats

    @property
    def predicted(self) -> int:
        """How many tokens have a likelihood."""
        return sum(token.log_likelihood is not None for token in self.tokens)

    @property
    def perplexity(self) -> float:
        """exp of the mean surprisal of a token; NaN for an empty text."""
        return _exp(-self.log_likelihood / self.predicted) if self.tokens else math.nan

    def strip(self, by: Unit) -> Iterator[tuple[str, ScoredPiece | None]]:
        """Yield the text in order: tokens or words, and the text between them."""
        end, pieces = 0, {"token": self.tokens, "word": self.words, "sentence": ()}[by]
        for piece in pieces:
            yield self.text[end : max(end, piece.start)], None
            yield self.text[max(end, piece.start) : piece.stop], piece
            end = max(end, piece.stop)
        yield self.text[end:], None

    def as_json(self) -> dict[str, Any]:
        """All of it; pieces as [text, log-likelihood]."""
        return {
            "text": self.text,
            "log_likelihood": self.log_likelihood,
            "perplexity": self.perplexity if self.tokens else None,
            "tokens": [[token.text, token.log_likelihood] for token in self.tokens],
            "words": [[word.text, word.log_likelihood] for word in self.words],
        }


@dataclass(frozen=True, repr=False)
class TextScores(Sequence[ScoredText]):
    """Scored texts, in their order."""

    texts: tuple[ScoredText, ...]
    method: str  # what was computed: see `clozelab.scoring.likelihood`
    unknown: int  # the number of unknown tokens

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, number: Any) -> Any:
        return self.texts[number]

    def __repr__(self) -> str:
        lines = []
        for each in self.texts:
            perplexity = f", perplexity {each.perplexity:,.1f}" if each.tokens else ""
            lines.append(f"{each.log_likelihood:,.2f} nats{perplexity}: {each.text}")
        return "\n".join(lines)

    @property
    def log_likelihood(self) -> float:
        """Of all texts together, in nats."""
        return math.fsum(text.log_likelihood for text in self.texts)

    @property
    def perplexity(self) -> float:
        """Of a token, over all texts."""
        return _exp(-self.log_likelihood / sum(text.predicted for text in self.texts))

    def lines(self, *, by: Unit = "word", as_json: bool = False) -> Iterator[str]:
        """For other programs: a line of JSON for each text, or fields with tabs between them.

        By sentences these are the log-likelihood, the perplexity and the text; by words or tokens
        the number of the text, the log-likelihood and the piece.
        """
        for number, text in enumerate(self.texts, 1):
            if as_json:
                yield json.dumps(text.as_json(), ensure_ascii=False)
            elif by == "sentence":
                flat_text = _SEPARATORS.sub(" ", text.text)
                perplexity = f"{text.perplexity:.4f}" if text.tokens else ""
                yield f"{text.log_likelihood:.6f}\t{perplexity}\t{flat_text}"
            else:
                for piece in text.tokens if by == "token" else text.words:
                    nats = piece.log_likelihood
                    column = "" if nats is None else f"{nats:.6f}"
                    yield f"{number}\t{column}\t{_SEPARATORS.sub(' ', piece.text)}"


def scored(text_scorer: TextScorer, texts: Sequence[str], likelihoods: Likelihoods) -> TextScores:
    """The scores of texts from the likelihoods of their tokens."""
    pieces = likelihoods.pieces
    ids = pieces.columns["ids"]
    unknown = text_scorer.model.vocabulary.roles.get("unk")
    if text_scorer.kind == "two_directions":
        unknown = 0
    rows = tuple(
        _score_text(text_scorer, text, likelihoods, number) for number, text in enumerate(texts)
    )
    count = 0 if unknown is None else int(np.equal(ids, unknown).sum())
    return TextScores(rows, likelihoods.method, count)


def with_empty(scores: TextScores, texts: Sequence[str]) -> TextScores:
    """The scores with the empty ones among `texts`, which have no tokens, in their places."""
    rows = iter(scores)
    all_texts = (next(rows) if text.strip() else ScoredText(text, (), (), 0.0) for text in texts)
    return replace(scores, texts=tuple(all_texts))


def _score_text(
    text_scorer: TextScorer, text: str, likelihoods: Likelihoods, number: int
) -> ScoredText:
    own = likelihoods.pieces.text(number)
    spans, words = likelihoods.pieces.spans[own].tolist(), likelihoods.pieces.words[own].tolist()
    nats = [None if math.isnan(value) else value for value in likelihoods.nats[own].tolist()]
    ids = likelihoods.pieces.columns["ids"][own].tolist()
    tokens = []
    for (start, stop), token_id, value in zip(spans, ids, nats, strict=True):
        piece = text[start:stop]
        if not piece:  # part of the bytes of a character
            piece = text_scorer.model.tokenizer.id_to_token(token_id) or ""
        tokens.append(ScoredPiece(piece, start, stop, value))
    starts = [n for n, word in enumerate(words) if n == 0 or word != words[n - 1]]
    scored_words = []
    for first, end in zip(starts, [*starts[1:], len(words)], strict=True):
        predicted = [value for value in nats[first:end] if value is not None]
        start, stop = spans[first][0], spans[end - 1][1]
        total = math.fsum(predicted) if len(predicted) == end - first else None
        scored_words.append(ScoredPiece(text[start:stop], start, stop, total))
    return ScoredText(text, tuple(tokens), tuple(scored_words), float(likelihoods.sums[number]))


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf

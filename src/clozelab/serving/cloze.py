"""Cloze: a text as words, and a model's guesses for hidden words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from clozelab.errors import UserError
from clozelab.text.vocabulary import ROLES
from clozelab.text.words import words

if TYPE_CHECKING:
    from clozelab.models.fill import TokenPrediction
    from clozelab.models.model import Model

_BLANK = re.compile("|".join(map(re.escape, ROLES["mask"])))
_SPACES = "▁Ġ"  # a token of a space alone adds no text
_MOST_HIDDEN = 64  # words; each may have several tokens


class TextWord(NamedTuple):
    """A word of a text."""

    start: int
    stop: int
    blank: bool  # the user wrote a blank there, not a word


def words_of(text: str) -> list[TextWord]:
    """The words of a text, the same for every model; a written blank is a word."""
    text_words, end = [], 0
    for blank in _BLANK.finditer(text):
        text_words += _words_between(text, end, blank.start())
        text_words.append(TextWord(*blank.span(), True))
        end = blank.end()
    return [*text_words, *_words_between(text, end, len(text))]


def _words_between(text: str, first: int, last: int) -> list[TextWord]:
    return [TextWord(first + a, first + b, False) for a, b in words(text[first:last])]


def as_json(text: str) -> dict[str, Any]:
    """A text as words, each with the text before it, and the text after the last."""
    text_words = words_of(text)
    ends = [0, *(word.stop for word in text_words)]
    return {
        "words": [
            {
                "before": text[end : word.start],
                "text": text[word.start : word.stop],
                "blank": word.blank,
            }
            for end, word in zip(ends, text_words, strict=False)
        ],
        "after": text[ends[-1] :],
    }


class _Blanks(NamedTuple):
    """A text with words hidden, for one model."""

    parts: list[str]  # the text around the blanks
    word: list[int]  # the word of each blank
    tokens: list[int | None]  # the original token of each blank


def guesses(model: Model, text: str, hidden: Sequence[int], *, top: int) -> dict[str, Any]:
    """A model's guesses for some words, given by their numbers.

    A word is replaced by as many blanks as it has tokens, as in whole-word masking.
    """
    from clozelab.models.fill import fill_between
    from clozelab.models.generator import predicting

    predictor = predicting(model)
    blanks = _split_at_hidden(predictor, text, hidden)
    asked = [0 if number is None else number for number in blanks.tokens]
    filled = fill_between(predictor, blanks.parts, top=top, about=asked)
    rows = zip(blanks.word, blanks.tokens, filled.blanks, filled.asked, strict=True)
    return {
        "step": predictor.step,
        "left_only": filled.left_only,
        "generator": predictor is not model,
        "blanks": [
            {
                "word": word,
                "guesses": [_guess(predictor, token) for token in best],
                "hidden": None if number is None else _guess(predictor, original),
            }
            for word, number, best, original in rows
        ],
    }


def _guess(model: Model, prediction: TokenPrediction) -> dict[str, Any]:
    """A token as text, whether it continues the word before it, and its probability."""
    from clozelab.models.fill import written

    text, joins = written(model.tokenizer, prediction.number)
    text = text.removeprefix("##").strip(_SPACES) and text.removeprefix("##")
    return {"text": text, "joins": joins, "probability": prediction.probability}


def _split_at_hidden(model: Model, text: str, hidden: Sequence[int]) -> _Blanks:
    """The text split at the hidden words."""
    text_words, chosen = words_of(text), sorted({*hidden})
    if not chosen:
        raise UserError("no word is masked; choose one")
    if len(chosen) > _MOST_HIDDEN:
        raise UserError(f"{len(chosen)} words are masked; mask at most {_MOST_HIDDEN}")
    count = len(text_words)
    if chosen[-1] >= count:
        raise UserError(f"the text has {count} words, and word {chosen[-1]} is to be hidden")
    spans, ids = _spans_and_ids(model, text)
    unknown = model.vocabulary.roles.get("unk")
    parts, word_of, tokens = list[str](), list[int](), list[int | None]()
    for before, number in pairwise([None, *chosen]):
        assert number is not None
        word = text_words[number]
        end = 0 if before is None else text_words[before].stop
        parts.append(text[end : word.start])
        inside = [at for at, (first, _) in enumerate(spans) if word.start <= first < word.stop]
        is_complete = all(spans[at][1] <= word.stop for at in inside) and not word.blank
        originals = [ids[at] if is_complete and ids[at] != unknown else None for at in inside]
        originals = [None] if word.blank or not inside else originals
        parts += [""] * (len(originals) - 1)
        word_of += [number] * len(originals)
        tokens += originals
    return _Blanks([*parts, text[text_words[chosen[-1]].stop :]], word_of, tokens)


def _spans_and_ids(model: Model, text: str) -> tuple[list[list[int]], list[int]]:
    """The characters that each token covers, and its id."""
    pieces = model.reader().pieces([text])
    return pieces.spans.tolist(), pieces.columns["ids"].tolist()

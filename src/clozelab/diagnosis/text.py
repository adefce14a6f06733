"""Statistics of a text: entropies, words, repetition, and overlap of held-out text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from clozelab.contracts import Array, Bytes, Counts, Documents, Ints, Keys, Mark
from clozelab.keys import fold
from clozelab.packed import contains, look_up
from clozelab.runs.diagnostics import repeated_share, token_counts, unigram_entropy
from clozelab.text.encoding import CachedTokenizer
from clozelab.text.sequences import SingleBytes
from clozelab.text.store import Corpus
from clozelab.text.store.corpus import Store
from clozelab.text.tokenizers import Chars, part_of
from clozelab.text.vocabulary import describe

_TRAIN, _HELD_OUT = 4_000_000, 400_000  # tokens for counting bigrams, and for predicting them
_COMPARED = 20_000_000  # tokens of training text in which held-out sentences are searched
_LEAST_TOKENS = 8  # tokens; shorter sentences, as "He said so.", occur in many texts
_RETOKENISED = 4_000  # sentences to tokenise with another tokenizer


@dataclass(frozen=True)
class TextFacts:
    """The statistics of a text under a tokenizer."""

    place: str
    tokens: int  # of the training text, or of the sample if tokenised again
    held_out: int  # tokens of the held-out text
    vocabulary: int  # ids
    unigram: float  # nats per token
    bigram: float | None  # nats per token of held-out text, given the token before
    commonest: float  # the share of the most frequent token
    tokens_a_word: float
    unknown: float  # the share of unknown tokens
    repeated: float  # the share of the text in repeated sentences
    shared: float | None  # the share of held-out text in sentences of the training text
    example: str = ""  # such a sentence
    characters: bool = False  # the tokenizer is one of characters, so words are split on purpose


class _Split(NamedTuple):
    """Sentences of tokens."""

    ids: Array
    marks: Bytes
    sentences: Ints  # first token of each, then the end

    @classmethod
    def of(cls, documents: Documents) -> _Split:
        return cls(documents.ids, documents.marks, documents.sentences)


def facts_of(stores: Sequence[Store]) -> TextFacts:
    """The statistics of a run's corpora; samples are of the first."""
    corpus = stores[0][0]
    train, held_out = (_Split.of(corpus.documents(split)) for split in ("train", "held_out"))
    return _facts(
        str(corpus.path),
        train,
        held_out,
        corpus.tokenizer,
        counts=token_counts(stores),
        repeated=repeated_share(corpus),
    )


def retokenised(corpus: Corpus, tokenizer: Tokenizer) -> TextFacts:
    """The statistics of a corpus's first sentences under another tokenizer."""
    encoder = CachedTokenizer(tokenizer, segment=False, counts=Counts())
    splits = []
    for split in ("train", "held_out"):
        documents = corpus.documents(split)
        bounds = np.asarray(documents.sentences[: _RETOKENISED + 1])
        ids = np.asarray(documents.ids[: bounds[-1]])
        texts = [corpus.decode(part) for part in np.split(ids, bounds[1:-1])] if len(ids) else []
        encoded = encoder.encode(texts)
        splits.append(_Split(encoded.ids, encoded.marks, encoded.starts))
    train, held_out = splits
    vocabulary = describe(tokenizer)
    counts = np.bincount(train.ids, minlength=vocabulary.size)[vocabulary.ordinary]
    return _facts(
        str(corpus.path), train, held_out, tokenizer, counts=counts, repeated=repeated_share(corpus)
    )


def _facts(
    place: str,
    train: _Split,
    held_out: _Split,
    tokenizer: Tokenizer,
    *,
    counts: NDArray[np.int64] | NDArray[np.float64],
    repeated: float,
) -> TextFacts:
    vocabulary = describe(tokenizer)
    sample = np.asarray(train.ids[:_TRAIN])
    unknown = vocabulary.roles.get("unk", -1)
    shared, at = shared_share(held_out, train)
    sentence = [] if at is None else list(held_out.ids[slice(*held_out.sentences[at : at + 2])])
    test = np.asarray(held_out.ids[:_HELD_OUT])
    if len(test) < 2:  # nothing is held out: use the last tenth of the sample
        sample, test = np.split(sample, [len(sample) * 9 // 10])
    return TextFacts(
        place=place,
        tokens=len(train.ids),
        held_out=len(held_out.ids),
        vocabulary=vocabulary.size,
        unigram=unigram_entropy(counts) if counts.any() else 0.0,
        bigram=bigram_entropy(sample, test, vocabulary.size),
        commonest=float(counts.max() / max(counts.sum(), 1)) if len(counts) else 0.0,
        tokens_a_word=tokens_a_word(train.marks[:_TRAIN]),
        unknown=float((sample == unknown).mean()) if len(sample) else 0.0,
        repeated=repeated,
        shared=shared,
        example=tokenizer.decode([int(number) for number in sentence]),
        characters=isinstance(part_of(tokenizer), Chars | SingleBytes),
    )


def tokens_a_word(marks: Bytes) -> float:
    """The mean number of tokens per word."""
    words = int(((np.asarray(marks) & Mark.WORD) != 0).sum())
    return len(marks) / max(words, 1)


def bigram_entropy(train: Array, test: Array, size: int) -> float | None:
    """The nats per token of `test` under a bigram model of `train`.

    By Witten and Bell's smoothing: a new pair is as likely as its first token was followed by
    something new, times the frequency of its second token. At most it is the unigram entropy, or
    that of guessing, as with too few pairs.
    """
    if len(train) < 2 or len(test) < 2:
        return None
    frequencies = np.bincount(train, minlength=size) + 1.0
    frequencies /= frequencies.sum()
    pairs, counts = np.unique(_pair_keys(train, size), return_counts=True)
    before = pairs // np.uint64(size)
    followed = np.bincount(before, weights=counts, minlength=size)
    kinds = np.bincount(before, minlength=size)
    seen = look_up(pairs, counts, _pair_keys(test, size), default=0)
    first, second = test[:-1], test[1:]
    total = np.maximum(followed[first] + kinds[first], 1)
    new = np.where(kinds[first] > 0, kinds[first], 1)
    probabilities = (seen + new * frequencies[second]) / total
    unigram = float(-np.log(frequencies[second]).mean())
    return min(float(-np.log(probabilities).mean()), unigram, float(np.log(size)))


def _pair_keys(ids: Array, size: int) -> Keys:
    numbers = np.asarray(ids).astype(np.uint64)
    return np.asarray(numbers[:-1] * np.uint64(size) + numbers[1:])


def shared_share(held_out: _Split, train: _Split) -> tuple[float | None, int | None]:
    """The share of held-out text in sentences of the training text, and the index of one."""
    bounds = np.asarray(held_out.sentences)
    bounds = bounds[: np.searchsorted(bounds, _HELD_OUT) + 1]
    lengths = np.diff(bounds)
    if not (lengths >= _LEAST_TOKENS).any():
        return None, None
    keys = fold(np.asarray(held_out.ids[: bounds[-1]]), bounds[:-1])
    known = np.zeros(len(keys), dtype=bool)
    ends = np.asarray(train.sentences)
    ends = ends[: np.searchsorted(ends, _COMPARED) + 1]
    step = 100_000  # sentences at a time, to save memory
    for first in range(0, len(ends) - 1, step):
        chunk = ends[first : first + step + 1]
        train_keys = fold(np.asarray(train.ids[chunk[0] : chunk[-1]]), chunk[:-1] - chunk[0])
        known |= contains(np.unique(train_keys), keys)
    known &= lengths >= _LEAST_TOKENS
    at = int(np.flatnonzero(known)[0]) if known.any() else None
    return float(lengths[known].sum() / max(lengths.sum(), 1)), at

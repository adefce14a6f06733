"""What a text is like: entropies, words, repetition, and what its held-out part shares with it."""

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

_TRAIN, _HELD_OUT = 4_000_000, 400_000  # tokens that bigrams are counted in, and predicted in
_COMPARED = 20_000_000  # tokens of the training text that held-out sentences are looked for in
_LONG = 8  # tokens: shorter sentences, as "He said so.", are in many texts
_DECODED = 4_000  # sentences that are tokenised again by another tokenizer


@dataclass(frozen=True)
class TextFacts:
    """A text by its tokenizer."""

    place: str
    tokens: int  # of the training text; of one that was tokenised again, of the sample
    held_out: int  # tokens of the held-out text
    vocabulary: int  # ids
    unigram: float  # nats a token
    bigram: float | None  # nats a token of held-out text, for whoever knows the token before
    commonest: float  # the share of the most frequent token
    tokens_a_word: float
    unknown: float  # the share of tokens that the tokenizer does not know
    repeated: float  # the share of the text in sentences that were there before
    shared: float | None  # the share of the held-out text in sentences that are trained on
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
    """What is known of the stores of a run; what is sampled is of the first."""
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
    """What is known of a corpus's text by another tokenizer, of its first sentences."""
    encoder = CachedTokenizer(tokenizer, segment=False, counts=Counts())
    splits = []
    for split in ("train", "held_out"):
        documents = corpus.documents(split)
        bounds = np.asarray(documents.sentences[: _DECODED + 1])
        ids = np.asarray(documents.ids[: bounds[-1]])
        texts = [corpus.decode(one) for one in np.split(ids, bounds[1:-1])] if len(ids) else []
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
    if len(test) < 2:  # nothing is held out: the last tenth of the sample stands in
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
    """Tokens of some text for each of its words."""
    words = int(((np.asarray(marks) & Mark.WORD) != 0).sum())
    return len(marks) / max(words, 1)


def bigram_entropy(train: Array, test: Array, size: int) -> float | None:
    """Nats a token of `test` for whoever has counted pairs of tokens in `train`.

    By Witten and Bell's smoothing: a pair that is new is as likely as the token before it was
    followed by something new, times the frequency of the token itself. Where so few pairs were
    counted that they tell nothing, it is that of the frequencies alone, or of guessing.
    """
    if len(train) < 2 or len(test) < 2:
        return None
    single = np.bincount(train, minlength=size) + 1.0
    single /= single.sum()
    pairs, counts = np.unique(_pairs(train, size), return_counts=True)
    before = pairs // np.uint64(size)
    followed = np.bincount(before, weights=counts, minlength=size)
    kinds = np.bincount(before, minlength=size)
    seen = look_up(pairs, counts, _pairs(test, size), default=0)
    first, second = test[:-1], test[1:]
    total = np.maximum(followed[first] + kinds[first], 1)
    new = np.where(kinds[first] > 0, kinds[first], 1)
    likely = (seen + new * single[second]) / total
    alone = float(-np.log(single[second]).mean())
    return min(float(-np.log(likely).mean()), alone, float(np.log(size)))


def _pairs(ids: Array, size: int) -> Keys:
    numbers = np.asarray(ids).astype(np.uint64)
    return np.asarray(numbers[:-1] * np.uint64(size) + numbers[1:])


def shared_share(held_out: _Split, train: _Split) -> tuple[float | None, int | None]:
    """The share of held-out text in sentences that are in the training text, and one of them."""
    bounds = np.asarray(held_out.sentences)
    bounds = bounds[: np.searchsorted(bounds, _HELD_OUT) + 1]
    lengths = np.diff(bounds)
    if not (lengths >= _LONG).any():
        return None, None
    keys = fold(np.asarray(held_out.ids[: bounds[-1]]), bounds[:-1])
    known = np.zeros(len(keys), dtype=bool)
    ends = np.asarray(train.sentences)
    ends = ends[: np.searchsorted(ends, _COMPARED) + 1]
    step = 100_000  # sentences at a time, to be light on memory
    for first in range(0, len(ends) - 1, step):
        some = ends[first : first + step + 1]
        own = fold(np.asarray(train.ids[some[0] : some[-1]]), some[:-1] - some[0])
        known |= contains(np.unique(own), keys)
    known &= lengths >= _LONG
    at = int(np.flatnonzero(known)[0]) if known.any() else None
    return float(lengths[known].sum() / max(lengths.sum(), 1)), at

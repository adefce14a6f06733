"""How a text uses a tokenizer's vocabulary: counts of ids and words, and a sample of lines."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field

import numpy as np
from tokenizers import Tokenizer, models

from clozelab.contracts import Counts, Ints, Mark
from clozelab.keys import mix, root
from clozelab.text.batches import batches
from clozelab.text.encoding import CachedTokenizer
from clozelab.text.extension import WordCounts
from clozelab.text.reading.layouts import RawDocument
from clozelab.text.reading.sentences import LONGEST, lines, splitter
from clozelab.text.reading.sources import BytesRead
from clozelab.text.vocabulary import describe

_SAMPLE = 8192  # lines
_BATCH = 1_000_000  # characters of documents that are tokenised together


@dataclass(frozen=True)
class Tokenization:
    """Counts of the tokens and words of some lines."""

    tokens: int
    words: int
    unknown: int  # how many of the tokens are the unknown token

    @property
    def tokens_per_word(self) -> float:
        """Tokens per word; a sign and an ideograph are words."""
        return self.tokens / max(self.words, 1)


@dataclass
class Usage:
    """How a text uses a tokenizer's vocabulary."""

    counts: Ints  # [V] how often each id occurs, in whole paragraphs and in sentences by themselves
    words: WordCounts
    unknown: set[str] = field(default_factory=set)  # words that are unknown to WordPiece
    sample: list[str] = field(default_factory=list)  # lines

    @property
    def used(self) -> int:
        """How many ids occur."""
        return int((self.counts > 0).sum())


def usage(
    tokenizer: Tokenizer, documents: Iterable[RawDocument], *, progress: BytesRead
) -> Generator[int, None, Usage]:
    """Count the tokens of all documents; yields the bytes read after every batch of documents.

    Sentences are counted both inside their paragraph and by themselves, since the first word of a
    sentence may be another token there.
    """
    vocabulary, split = describe(tokenizer), splitter("auto").split
    encoder = CachedTokenizer(tokenizer, segment=False, counts=Counts())
    result = Usage(np.zeros(vocabulary.size, np.int64), WordCounts(tokenizer))
    sample = _Sample()
    for batch in batches(documents, size=lambda document: len(document.text), least=_BATCH):
        paragraphs = [piece for document in batch for piece in _paragraphs(document.text)]
        cuts = ((lines if doc.is_split else split)(doc.text) for doc in batch)
        sentences = (sentence for cut in cuts for sentence in cut)
        sentences_alone = {*map(str.strip, sentences)} - {*paragraphs}
        encoder.forget()
        for rows in (paragraphs, sorted(sentences_alone)):
            tokenised = encoder.encode(rows)
            result.counts += np.bincount(tokenised.ids, minlength=vocabulary.size)
            at = np.flatnonzero(tokenised.ids == vocabulary.roles.get("unk", -1))
            if isinstance(tokenizer.model, models.WordPiece):
                rows_with = np.unique(np.searchsorted(tokenised.starts, at, side="right") - 1)
                result.unknown |= _unknown_words(tokenizer, [rows[row] for row in rows_with])
        result.words.update(paragraphs)
        sample.add(paragraphs)
        yield progress.done
    result.sample = sample.lines
    return result


def read(tokenizer: Tokenizer, texts: list[str]) -> Tokenization:
    """Count the tokens, words and unknown tokens of some lines."""
    tokenised = CachedTokenizer(tokenizer, segment=False, counts=Counts()).encode(texts)
    words = int(((tokenised.marks & Mark.WORD) != 0).sum())
    unknown = int((tokenised.ids == describe(tokenizer).roles.get("unk", -1)).sum())
    return Tokenization(len(tokenised.ids), words, unknown)


def _paragraphs(text: str) -> list[str]:
    """The paragraphs of a document; very long ones are cut into sentences."""
    paragraphs = (line for line in text.split("\n") if line.strip())
    return [
        piece for line in paragraphs for piece in ([line] if len(line) <= LONGEST else lines(line))
    ]


def _unknown_words(tokenizer: Tokenizer, texts: list[str]) -> set[str]:
    """The words of some texts that are unknown to the tokenizer."""
    split = tokenizer.pre_tokenizer  # without one, a whole text is a word
    unknown, words = describe(tokenizer).roles.get("unk"), set[str]()
    for text in texts:
        normal = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
        words |= {word for word, _ in split.pre_tokenize_str(normal)} if split else {normal}
    return {word for word in words if any(t.id == unknown for t in tokenizer.model.tokenize(word))}


class _Sample:
    """A uniform random sample of all lines that are added."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._keys = np.zeros(0, np.uint64)
        self._seen = 0

    def add(self, lines: list[str]) -> None:
        """Add lines; the sample is the lines with the smallest keys."""
        keys = mix(root(0, "vocabulary sample"), self._seen + np.arange(len(lines)))
        self._seen += len(lines)
        all_lines, keys = [*self.lines, *lines], np.concatenate([self._keys, keys])
        sample = np.sort(np.argsort(keys, kind="stable")[:_SAMPLE])
        self.lines, self._keys = [all_lines[at] for at in sample], keys[sample]

"""What a tokenizer makes of a text: how often each id occurs, its words, and some of its lines."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from tokenizers import Tokenizer, models

from clozelab.contracts import Counts, Ints, Mark
from clozelab.keys import mix, root
from clozelab.text.encoding import CachedTokenizer
from clozelab.text.extension import WordCounts
from clozelab.text.reading.layouts import RawDocument
from clozelab.text.reading.sentences import LONGEST, lines, splitter
from clozelab.text.vocabulary import describe

_SAMPLE = 8192  # lines, drawn from all
_BATCH = 1_000_000  # characters of documents that are encoded together


@dataclass(frozen=True)
class Tokenization:
    """How a tokenizer reads some lines."""

    tokens: int
    words: int
    unknown: int  # tokens that stand for what is not known

    @property
    def tokens_per_word(self) -> float:
        """Tokens a word; a sign and an ideograph are words."""
        return self.tokens / max(self.words, 1)


@dataclass
class Usage:
    """What a tokenizer makes of a text."""

    counts: Ints  # [V] how often each id occurs, in whole paragraphs and in sentences alone
    words: WordCounts
    unknown: set[str] = field(default_factory=set)  # words that WordPiece does not know
    sample: list[str] = field(default_factory=list)  # lines

    @property
    def used(self) -> int:
        """How many ids occur."""
        return int((self.counts > 0).sum())


def usage(tokenizer: Tokenizer, documents: Iterable[RawDocument]) -> Generator[None, None, Usage]:
    """Read all documents; yields whenever some are read.

    A sentence may be read alone or inside its paragraph, where its first word may be another token:
    both count.
    """
    vocabulary, split = describe(tokenizer), splitter("auto").split
    encoder = CachedTokenizer(tokenizer, segment=False, counts=Counts())
    all_of_it = Usage(np.zeros(vocabulary.size, np.int64), WordCounts(tokenizer))
    drawn = _Sample()
    for batch in _batches(documents):
        paragraphs = [piece for document in batch for piece in _paragraphs(document.text)]
        cut = (lines if each.is_split else split for each in batch)
        texts = [each.text for each in batch]
        sentences = (one for each, text in zip(cut, texts, strict=True) for one in each(text))
        alone = {*map(str.strip, sentences)} - {*paragraphs}
        encoder.forget()
        for rows in (paragraphs, sorted(alone)):
            tokenised = encoder.encode(rows)
            all_of_it.counts += np.bincount(tokenised.ids, minlength=vocabulary.size)
            at = np.flatnonzero(tokenised.ids == vocabulary.roles.get("unk", -1))
            if isinstance(tokenizer.model, models.WordPiece):
                rows_with = np.unique(np.searchsorted(tokenised.starts, at, side="right") - 1)
                all_of_it.unknown |= _unknown(tokenizer, [rows[row] for row in rows_with])
        all_of_it.words.update(paragraphs)
        drawn.add(paragraphs)
        yield
    all_of_it.sample = drawn.lines
    return all_of_it


def read(tokenizer: Tokenizer, texts: list[str]) -> Tokenization:
    """How a tokenizer reads some lines."""
    tokenised = CachedTokenizer(tokenizer, segment=False, counts=Counts()).encode(texts)
    words = int(((tokenised.marks & Mark.WORD) != 0).sum())
    unknown = int((tokenised.ids == describe(tokenizer).roles.get("unk", -1)).sum())
    return Tokenization(len(tokenised.ids), words, unknown)


def _batches(documents: Iterable[RawDocument]) -> Iterator[list[RawDocument]]:
    batch, size = list[RawDocument](), 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _paragraphs(text: str) -> list[str]:
    """The paragraphs of a document; one without end is cut into sentences."""
    paragraphs = (each for each in text.split("\n") if each.strip())
    return [
        piece for each in paragraphs for piece in ([each] if len(each) <= LONGEST else lines(each))
    ]


def _unknown(tokenizer: Tokenizer, texts: list[str]) -> set[str]:
    """The words of some texts that the tokenizer does not know."""
    assert tokenizer.pre_tokenizer is not None
    unknown, words = describe(tokenizer).roles.get("unk"), set[str]()
    for text in texts:
        normal = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
        words |= {word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal)}
    return {word for word in words if any(t.id == unknown for t in tokenizer.model.tokenize(word))}


class _Sample:
    """Lines drawn from all that come, each as likely as any other."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._keys = np.zeros(0, np.uint64)
        self._seen = 0

    def add(self, lines: list[str]) -> None:
        """Some more lines: of all, those with the smallest keys are the sample."""
        keys = mix(root(0, "vocabulary sample"), self._seen + np.arange(len(lines)))
        self._seen += len(lines)
        every, keys = [*self.lines, *lines], np.concatenate([self._keys, keys])
        sample = np.sort(np.argsort(keys, kind="stable")[:_SAMPLE])
        self.lines, self._keys = [every[at] for at in sample], keys[sample]

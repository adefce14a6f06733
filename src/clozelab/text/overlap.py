"""Finding evaluation text in a corpus, by the n-grams of words that both have.

As in the cleaning of GPT-3's text (arXiv:2005.14165, appendix C), words are compared in lower case
and without signs, characters normalised by NFKC; an ideograph is a word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from clozelab.contracts import Counts, Ints, Keys
from clozelab.errors import UserError
from clozelab.packed import contains, look_up
from clozelab.text.reading.layouts import RawDocument, Reading
from clozelab.text.reading.sources import BytesRead, find
from clozelab.text.units import windows
from clozelab.text.words import IDEOGRAPH_CLASS

WORDS = "words 2"  # a version for cache keys: change it when words are found in another way
# Vowel signs and accents. Those beyond the first plane would slow the expression tenfold.
_MARK = "".join(char for char in map(chr, range(1 << 16)) if unicodedata.category(char)[0] == "M")
_LETTER = rf"[^\W_{IDEOGRAPH_CLASS}]"
_WORD = re.compile(rf"{_LETTER}++(?:[{_MARK}]++{_LETTER}*+)*+|[{IDEOGRAPH_CLASS}]")


def words(text: str) -> list[str]:
    """The words of a text, normalised for comparison."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).lower())


class WordKeys(dict[str, int]):
    """A cache of the hash of each word."""

    def __missing__(self, word: str) -> int:
        digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        self[word] = int.from_bytes(digest, "little")
        return self[word]

    def of(self, words: Sequence[str]) -> Keys:
        """The hashes of some words."""
        return np.fromiter(map(self.__getitem__, words), np.uint64, len(words))


def ngrams(words: Keys, size: int) -> Keys:
    """The keys of all n-grams of `size` words."""
    if len(words) < size:
        return np.zeros(0, dtype=np.uint64)
    *_, last = windows(words, size)
    return last


@dataclass(frozen=True)
class EvaluationNgrams:
    """The n-grams of evaluation files."""

    size: int  # words
    files: list[str]
    keys: Keys  # ascending
    file_of: Ints  # [keys] the index of the first file that has each

    @classmethod
    def read(
        cls, places: Sequence[str], size: int, *, counts: Counts, encoding: str = "utf-8"
    ) -> EvaluationNgrams:
        """The n-grams of each line in all fields of the files; a file without any is refused."""
        reading = Reading(field=None, encoding=encoding)
        try:
            files, ngram_keys = list[str](), list[Keys]()
            for item in find(places, reading).items:
                texts = item.documents(reading, counts=Counts(), progress=BytesRead())
                files.append(item.shown)
                ngram_keys.append(_file_ngrams(item.shown, texts, size, counts=counts))
        except UserError as error:
            raise UserError(f"--exclude: {error}") from None
        file_of = np.repeat(np.arange(len(files)), [len(keys) for keys in ngram_keys])
        keys, first = np.unique(np.concatenate(ngram_keys), return_index=True)
        ngrams = cls(size, files, keys, file_of[first])
        for file in range(len(files)):
            counts.expect(ngrams.what(file))
        return ngrams

    def find(self, words: Keys, texts: Ints) -> tuple[Ints, Ints]:
        """The positions of words that begin an evaluation n-gram, and the file of each.

        `texts` has the number of each word's text; an n-gram across two texts does not count.
        """
        keys = ngrams(words, self.size)
        same = texts[: len(keys)] == texts[self.size - 1 :]
        at = np.flatnonzero(contains(self.keys, keys) & same)
        return at, look_up(self.keys, self.file_of, keys[at], default=0)

    def what(self, file: int) -> str:
        """The name under which lines are counted that were left out for a file."""
        return f"lines left out that share {self.size} words with {self.files[file]}"


def _file_ngrams(file: str, texts: Iterable[RawDocument], size: int, *, counts: Counts) -> Keys:
    """The n-grams of an evaluation file; texts that are too short for one are counted."""
    keys = WordKeys()
    ngram_keys: list[Keys] = []
    texts_read = 0
    for document in texts:
        texts_read += 1
        lines: Iterable[Keys] = (keys.of(words(line)) for line in document.text.split("\n"))
        line_ngrams = [found for line in lines if len(found := ngrams(line, size))]
        ngram_keys += line_ngrams
        if not line_ngrams:
            what = f"texts of {file} that have no {size} words in a row, and so are not looked for"
            counts.add(what, document.name)
    if not texts_read:
        raise UserError(f"{file} has no text; leave the file out")
    if not ngram_keys:
        raise UserError(
            f"{file} has no {size} words in a row to search for; lower --exclude-ngram, or"
            " leave the file out"
        )
    return np.unique(np.concatenate(ngram_keys))

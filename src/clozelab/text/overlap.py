"""Evaluation text in other text: found by the n-grams of words that the two share.

As GPT-3's text was cleaned (arXiv:2005.14165, appendix C): words are compared in lower case and
without signs, each character in one spelling (NFKC); an ideograph is a word.
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
from clozelab.text.reading.sources import by_file
from clozelab.text.units import windows
from clozelab.text.words import IDEOGRAPH_CLASS

WORDS = "words 2"  # changes with what words are, so that nothing compared before is taken for it
# Vowel signs and accents. Those beyond the first plane would slow the expression tenfold.
_MARK = "".join(each for each in map(chr, range(1 << 16)) if unicodedata.category(each)[0] == "M")
_LETTER = rf"[^\W_{IDEOGRAPH_CLASS}]"
_WORD = re.compile(rf"{_LETTER}++(?:[{_MARK}]++{_LETTER}*+)*+|[{IDEOGRAPH_CLASS}]")


def words(text: str) -> list[str]:
    """The words that are compared."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).lower())


class WordKeys(dict[str, int]):
    """A key for each word; computed once."""

    def __missing__(self, word: str) -> int:
        digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        self[word] = int.from_bytes(digest, "little")
        return self[word]

    def of(self, words: Sequence[str]) -> Keys:
        """The keys of some words."""
        return np.fromiter(map(self.__getitem__, words), np.uint64, len(words))


def ngrams(words: Keys, size: int) -> Keys:
    """The keys of all n-grams of that size."""
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
    file_of: Ints  # [keys] the first file that has each

    @classmethod
    def read(
        cls, places: Sequence[str], size: int, *, counts: Counts, encoding: str = "utf-8"
    ) -> EvaluationNgrams:
        """Those of the lines of all texts, of whatever field; a file without any is refused."""
        reading = Reading(field=None, encoding=encoding)
        try:
            files, ngram_keys = list[str](), list[Keys]()
            for name, texts in by_file(places, reading):
                files.append(name)
                ngram_keys.append(_file_ngrams(name, texts, size, counts=counts))
        except UserError as error:
            raise UserError(f"--exclude: {error}") from None
        file_of = np.repeat(np.arange(len(files)), [len(keys) for keys in ngram_keys])
        keys, first = np.unique(np.concatenate(ngram_keys), return_index=True)
        ngrams = cls(size, files, keys, file_of[first])
        for file in range(len(files)):
            counts.expect(ngrams.what(file))
        return ngrams

    def find(self, words: Keys, texts: Ints) -> tuple[Ints, Ints]:
        """The first words of n-grams that lie in one text and in a file, and the file of each.

        `texts` has the number of the text that each word is of.
        """
        keys = ngrams(words, self.size)
        same = texts[: len(keys)] == texts[self.size - 1 :]
        at = np.flatnonzero(contains(self.keys, keys) & same)
        return at, look_up(self.keys, self.file_of, keys[at], default=0)

    def what(self, file: int) -> str:
        """What is said of lines that were left out for a file."""
        return f"lines left out that share {self.size} words with {self.files[file]}"


def _file_ngrams(file: str, texts: Iterable[RawDocument], size: int, *, counts: Counts) -> Keys:
    """The n-grams of an evaluation file; its texts that are too short are counted."""
    keys = WordKeys()
    ngram_keys: list[Keys] = []
    texts_read = 0
    for document in texts:
        texts_read += 1
        lines: Iterable[Keys] = (keys.of(words(line)) for line in document.text.split("\n"))
        of_lines = [some for line in lines if len(some := ngrams(line, size))]
        ngram_keys += of_lines
        if not of_lines:
            what = f"texts of {file} that have no {size} words in a row, and so are not looked for"
            counts.add(what, document.name)
    if not texts_read:
        raise UserError(f"there is no text in {file}: leave the file out")
    if not ngram_keys:
        raise UserError(
            f"{file} has no {size} words in a row to look for: lower --exclude-ngram, or leave the"
            " file out"
        )
    return np.unique(np.concatenate(ngram_keys))

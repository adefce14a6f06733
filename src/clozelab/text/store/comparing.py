"""What a worker records of documents, to compare them with all others later: digests of their
lines or paragraphs, where they share n-grams with evaluation files, and MinHash signatures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from clozelab.contracts import Array, Bools, Counts, Ints, Keys
from clozelab.text import near
from clozelab.text.overlap import WORDS, EvaluationNgrams, WordKeys, words
from clozelab.text.reading.layouts import RawDocument


@dataclass(frozen=True)
class Comparison:
    """What is recorded for comparison; by default nothing."""

    pieces: str | None = None  # lines or paragraphs
    exclude: EvaluationNgrams | None = None
    near: bool = False  # whether documents get signatures

    def names(self) -> list[str]:
        """The settings that change the contents of a shard, for its hash."""
        names = [self.pieces] if self.pieces else []
        if self.exclude:
            table = self.exclude.keys.tobytes() + self.exclude.file_of.tobytes()
            names += [self.exclude.what(file) for file in range(len(self.exclude.files))]
            names.append(blake2b(table, digest_size=16).hexdigest())
        return [*names, WORDS] if self.exclude or self.near else names

    def arrays(self) -> dict[str, Array]:
        """These settings as arrays, for other processes."""
        settings: dict[str, Any] = {"pieces": self.pieces, "near": self.near}
        arrays: dict[str, Array] = {}
        if self.exclude:
            settings |= {"size": self.exclude.size, "files": self.exclude.files}
            arrays |= {"keys": self.exclude.keys, "file_of": self.exclude.file_of}
        return {**arrays, "comparison": np.frombuffer(json.dumps(settings).encode(), np.uint8)}

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Comparison:
        """The settings from `arrays`."""
        settings = json.loads(stored["comparison"].tobytes())
        exclude = None
        if "files" in settings:
            names = settings["size"], settings["files"]
            exclude = EvaluationNgrams(*names, stored["keys"], stored["file_of"])
        return cls(settings["pieces"], exclude, settings["near"])

    def noted(
        self, documents: list[RawDocument], cut: list[list[str]], *, filled: Bools, counts: Counts
    ) -> dict[str, Array]:
        """The arrays for a shard; `cut` has the documents' sentences, `filled` says which count."""
        arrays: dict[str, Array] = {}
        if self.pieces:
            begins = _piece_beginnings(documents, cut, self.pieces)
            arrays |= _piece_digests(list(chain.from_iterable(cut)), begins, filled=filled)
        if self.exclude or self.near:
            compared = _Words.of(cut)
        if self.exclude:
            lines = np.cumsum(_piece_beginnings(documents, cut, "lines")) - 1
            shared = _excluded(documents, compared, lines, ngrams=self.exclude, counts=counts)
            arrays["excluded"] = shared[filled]
        if self.near:
            sizes = np.bincount(compared.document, minlength=len(documents))
            digests = np.array([text_digest(document.text)[0] for document in documents], "<u8")
            arrays["signatures"] = near.signatures(compared.keys, sizes, digests=digests)
        return arrays


class _Words(NamedTuple):
    """The words of documents, packed, with the sentence and document of each."""

    words: list[str]
    keys: Keys
    sentence: Ints
    document: Ints

    @classmethod
    def of(cls, cut: list[list[str]]) -> _Words:
        """The words of the documents' sentences."""
        words_by_sentence = [words(sentence) for sentences in cut for sentence in sentences]
        flat = list(chain.from_iterable(words_by_sentence))
        sentence = np.repeat(
            np.arange(len(words_by_sentence)), [len(found) for found in words_by_sentence]
        )
        document = np.repeat(np.arange(len(cut)), [len(sentences) for sentences in cut])
        return cls(flat, WordKeys().of(flat), sentence, document[sentence])


def text_digest(text: str) -> Keys:
    """[2] a digest of a text."""
    raw = blake2b(text.encode("utf-8", errors="surrogatepass"), digest_size=16).digest()
    return np.frombuffer(raw, dtype="<u8")


def _piece_beginnings(documents: list[RawDocument], cut: list[list[str]], level: str) -> Bools:
    """Which sentences begin a line, or a paragraph, of their document.

    Blank lines separate paragraphs; in a document without any, line breaks do, unless each line is
    a sentence. A row of texts that belong together is one line.
    """
    begins: list[bool] = []
    for document, sentences in zip(documents, cut, strict=True):
        ends = [sentence[: -len(sentence.lstrip())].count("\n") for sentence in sentences]
        if level == "paragraphs" and (document.is_split or max(ends[1:], default=0) > 1):
            ends = [number - 1 for number in ends]
        if document.is_row:
            ends = [0] * len(ends)
        begins += (number == 0 or end > 0 for number, end in enumerate(ends))
    return np.array(begins, dtype=bool)


def _piece_digests(sentences: list[str], begins: Bools, *, filled: Bools) -> dict[str, Array]:
    """The offsets of lines or paragraphs among the sentences with tokens, and their digests."""
    bounds = np.append(np.flatnonzero(begins), len(sentences)).tolist()
    piece = (np.cumsum(begins) - 1)[filled]
    present, first = np.unique(piece, return_index=True)
    texts = ("".join(sentences[bounds[n] : bounds[n + 1]]).strip() for n in present.tolist())
    digests = [text_digest(text) for text in texts]
    return {
        "pieces": np.append(first, len(piece)),
        "piece_digests": np.array(digests, "<u8").reshape(-1, 2),
    }


def _excluded(
    documents: list[RawDocument],
    words: _Words,
    lines: Ints,
    *,
    ngrams: EvaluationNgrams,
    counts: Counts,
) -> Bools:
    """Which sentences are in lines that share an n-gram with a file; `lines` has their lines."""
    at, files = ngrams.find(words.keys, words.document)
    first, last = (lines[words.sentence[word]] for word in (at, at + ngrams.size - 1))
    file_of_line: dict[int, int] = {}
    for start, stop, file in zip(first.tolist(), last.tolist(), files.tolist(), strict=True):
        for line in range(start, stop + 1):
            file_of_line.setdefault(line, file)
    begins = np.diff(at, prepend=-2) > 1  # the first n-gram of a passage is the example
    for file in sorted(set(files.tolist())):
        examples = at[begins & (files == file)][: Counts.EXAMPLES].tolist()
        counts.add(
            ngrams.what(file),
            documents[words.document[at[files == file][0]]].name,
            sum(line_file == file for line_file in file_of_line.values()),
            examples=[" ".join(words.words[word : word + ngrams.size]) for word in examples],
        )
    return np.isin(lines, list(file_of_line))

"""What a worker notes of documents so that they can be compared with others when all are read:
digests of their pieces, where they share words with evaluation files, and signatures."""

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
    """What is noted: nothing, unless it is asked for."""

    pieces: str | None = None  # lines or paragraphs
    exclude: EvaluationNgrams | None = None
    near: bool = False  # whether documents get signatures

    def names(self) -> list[str]:
        """What of it shapes a shard."""
        names = [self.pieces] if self.pieces else []
        if self.exclude:
            table = self.exclude.keys.tobytes() + self.exclude.file_of.tobytes()
            names += [self.exclude.what(file) for file in range(len(self.exclude.files))]
            names.append(blake2b(table, digest_size=16).hexdigest())
        names += [near.algorithm()] if self.near else []
        return [*names, WORDS] if self.exclude or self.near else names

    def arrays(self) -> dict[str, Array]:
        """It as arrays, for other processes."""
        settings: dict[str, Any] = {"pieces": self.pieces, "near": self.near}
        arrays: dict[str, Array] = {}
        if self.exclude:
            settings |= {"size": self.exclude.size, "files": self.exclude.files}
            arrays |= {"keys": self.exclude.keys, "file_of": self.exclude.file_of}
        return {**arrays, "comparison": np.frombuffer(json.dumps(settings).encode(), np.uint8)}

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Comparison:
        """What `arrays` made."""
        settings = json.loads(stored["comparison"].tobytes())
        exclude = None
        if "files" in settings:
            names = settings["size"], settings["files"]
            exclude = EvaluationNgrams(*names, stored["keys"], stored["file_of"])
        return cls(settings["pieces"], exclude, settings["near"])

    def noted(
        self, documents: list[RawDocument], cut: list[list[str]], *, filled: Bools, counts: Counts
    ) -> dict[str, Array]:
        """The arrays of a shard; `cut` has the documents' sentences, of which some are filled."""
        arrays: dict[str, Array] = {}
        if self.pieces:
            begins = _begin_pieces(documents, cut, self.pieces)
            arrays |= _pieces(list(chain.from_iterable(cut)), begins, filled=filled)
        if self.exclude or self.near:
            compared = _Words.of(cut)
        if self.exclude:
            lines = np.cumsum(_begin_pieces(documents, cut, "lines")) - 1
            shared = _shared(documents, compared, lines, ngrams=self.exclude, counts=counts)
            arrays["excluded"] = shared[filled]
        if self.near:
            sizes = np.bincount(compared.document, minlength=len(documents))
            digests = np.array([text_digest(document.text)[0] for document in documents], "<u8")
            arrays["signatures"] = near.signatures(compared.keys, sizes, digests=digests)
        return arrays


class _Words(NamedTuple):
    """The words of documents, one after another, and where each is from."""

    words: list[str]
    keys: Keys
    sentence: Ints
    document: Ints

    @classmethod
    def of(cls, cut: list[list[str]]) -> _Words:
        """Those of some documents' sentences."""
        words_by_sentence = [words(sentence) for sentences in cut for sentence in sentences]
        flat = list(chain.from_iterable(words_by_sentence))
        sentence = np.repeat(
            np.arange(len(words_by_sentence)), [len(some) for some in words_by_sentence]
        )
        document = np.repeat(np.arange(len(cut)), [len(sentences) for sentences in cut])
        return cls(flat, WordKeys().of(flat), sentence, document[sentence])


def text_digest(text: str) -> Keys:
    """[2] by which a text is known from others."""
    raw = blake2b(text.encode("utf-8", errors="surrogatepass"), digest_size=16).digest()
    return np.frombuffer(raw, dtype="<u8")


def _begin_pieces(documents: list[RawDocument], cut: list[list[str]], level: str) -> Bools:
    """Which sentences begin a line, or a paragraph, of their document.

    Blank lines part paragraphs; in a document without any, line ends do, unless lines are
    sentences.
    """
    begins: list[bool] = []
    for document, sentences in zip(documents, cut, strict=True):
        ends = [sentence[: -len(sentence.lstrip())].count("\n") for sentence in sentences]
        if level == "paragraphs" and (document.is_split or max(ends[1:], default=0) > 1):
            ends = [number - 1 for number in ends]
        begins += (number == 0 or end > 0 for number, end in enumerate(ends))
    return np.array(begins, dtype=bool)


def _pieces(sentences: list[str], begins: Bools, *, filled: Bools) -> dict[str, Array]:
    """Where the pieces begin among the sentences that are filled, and their digests."""
    bounds = np.append(np.flatnonzero(begins), len(sentences)).tolist()
    piece = (np.cumsum(begins) - 1)[filled]
    present, first = np.unique(piece, return_index=True)
    texts = ("".join(sentences[bounds[n] : bounds[n + 1]]).strip() for n in present.tolist())
    digests = [text_digest(text) for text in texts]
    return {
        "pieces": np.append(first, len(piece)),
        "piece_digests": np.array(digests, "<u8").reshape(-1, 2),
    }


def _shared(
    documents: list[RawDocument],
    words: _Words,
    lines: Ints,
    *,
    ngrams: EvaluationNgrams,
    counts: Counts,
) -> Bools:
    """Which sentences are of lines that share an n-gram with a file; `lines` has that of each."""
    at, files = ngrams.find(words.keys, words.document)
    first, last = (lines[words.sentence[word]] for word in (at, at + ngrams.size - 1))
    file_of_line: dict[int, int] = {}
    for start, stop, file in zip(first.tolist(), last.tolist(), files.tolist(), strict=True):
        for line in range(start, stop + 1):
            file_of_line.setdefault(line, file)
    begins = np.diff(at, prepend=-2) > 1  # of all n-grams of a passage, the first is an example
    for file in sorted(set(files.tolist())):
        examples = at[begins & (files == file)][: Counts.EXAMPLES].tolist()
        counts.add(
            ngrams.what(file),
            documents[words.document[at[files == file][0]]].name,
            sum(of == file for of in file_of_line.values()),
            examples=[" ".join(words.words[word : word + ngrams.size]) for word in examples],
        )
    return np.isin(lines, list(file_of_line))

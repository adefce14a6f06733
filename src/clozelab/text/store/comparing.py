"""What a worker notes of documents so that they can be compared with others when all are read:
their pieces by digests, and where they share words with evaluation files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import Any

import numpy as np

from clozelab.contracts import Array, Bools, Counts, Ints, Keys
from clozelab.text.overlap import EvaluationNgrams, WordKeys, words
from clozelab.text.reading.layouts import RawDocument


@dataclass(frozen=True)
class Comparison:
    """What is noted: nothing, unless it is asked for."""

    pieces: str | None = None  # lines or paragraphs
    exclude: EvaluationNgrams | None = None

    def names(self) -> list[str]:
        """What of it shapes a shard."""
        names = [self.pieces] if self.pieces else []
        if self.exclude:
            table = self.exclude.keys.tobytes() + self.exclude.file_of.tobytes()
            names += [self.exclude.what(file) for file in range(len(self.exclude.files))]
            names.append(blake2b(table, digest_size=16).hexdigest())
        return names

    def arrays(self) -> dict[str, Array]:
        """It as arrays, for other processes."""
        exclude = self.exclude
        settings = {
            "pieces": self.pieces,
            **({"size": exclude.size, "files": exclude.files} if exclude else {}),
        }
        arrays = {"comparison": np.frombuffer(json.dumps(settings).encode(), dtype=np.uint8)}
        return arrays | ({"keys": exclude.keys, "file_of": exclude.file_of} if exclude else {})

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Comparison:
        """What `arrays` made."""
        settings = json.loads(stored["comparison"].tobytes())
        if "files" not in settings:
            return cls(settings["pieces"])
        tables = {"keys": stored["keys"], "file_of": stored["file_of"]}
        ngrams = EvaluationNgrams(settings["size"], settings["files"], **tables)
        return cls(settings["pieces"], ngrams)

    def noted(
        self, documents: list[RawDocument], cut: list[list[str]], *, filled: Bools, counts: Counts
    ) -> dict[str, Array]:
        """The arrays of a shard; `cut` has the documents' sentences, of which some are filled."""
        arrays: dict[str, Array] = {}
        if self.pieces:
            begins = _begin_pieces(documents, cut, self.pieces)
            arrays |= _pieces(list(chain.from_iterable(cut)), begins, filled=filled)
        if self.exclude:
            lines = np.cumsum(_begin_pieces(documents, cut, "lines")) - 1
            shared = _shared(documents, cut, lines, ngrams=self.exclude, counts=counts)
            arrays["excluded"] = shared[filled]
        return arrays


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
    cut: list[list[str]],
    lines: Ints,
    *,
    ngrams: EvaluationNgrams,
    counts: Counts,
) -> Bools:
    """Which sentences are of lines that share an n-gram with a file; `lines` has that of each."""
    found = [words(sentence) for sentences in cut for sentence in sentences]
    flat = list(chain.from_iterable(found))
    sentence = np.repeat(np.arange(len(found)), [len(some) for some in found])
    document = np.repeat(np.arange(len(cut)), [len(sentences) for sentences in cut])
    at, files = ngrams.find(WordKeys().of(flat), document[sentence])
    first, last = lines[sentence[at]], lines[sentence[at + ngrams.size - 1]]
    file_of_line: dict[int, int] = {}
    for start, stop, file in zip(first.tolist(), last.tolist(), files.tolist(), strict=True):
        for line in range(start, stop + 1):
            file_of_line.setdefault(line, file)
    begins = np.diff(at, prepend=-2) > 1  # of all n-grams of a passage, the first is an example
    for file in sorted(set(files.tolist())):
        examples = at[begins & (files == file)][: Counts.EXAMPLES].tolist()
        counts.add(
            ngrams.what(file),
            documents[document[sentence[at[files == file][0]]]].name,
            sum(of == file for of in file_of_line.values()),
            examples=[" ".join(flat[word : word + ngrams.size]) for word in examples],
        )
    return np.isin(lines, list(file_of_line))

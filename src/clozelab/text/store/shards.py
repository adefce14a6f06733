"""Shards, the units of work: a few megabytes of documents, tokenised by one process into one file.

A shard's file is named by a hash of its text and of everything that affects its tokens, so that a
build that was killed finds its finished shards again, whatever else has changed.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from io import BytesIO
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tokenizers
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from tokenizers import Tokenizer

from clozelab import files
from clozelab.contracts import Array, Bools, Bytes, Counts, Ints, Keys, Mark
from clozelab.keys import fold
from clozelab.packed import offsets, ranges, sums
from clozelab.text import near
from clozelab.text.batches import batches
from clozelab.text.encoding import CachedTokenizer, Tokenised
from clozelab.text.near import Signatures
from clozelab.text.reading.layouts import RawDocument
from clozelab.text.reading.sentences import lines, splitter
from clozelab.text.store.comparing import Comparison, text_digest
from clozelab.text.units import NgramTable, mark_entities, mark_span
from clozelab.text.words import segmenter

SHARD = 1 << 21  # characters
PAST_END = "spans past the end of their document or part of it"
_BATCH = 1 << 18  # characters tokenised at a time

Spans = list[tuple[int, int, int]]
T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True)
class TokenisingSettings:
    """Everything that the tokens of a shard depend on besides its text."""

    tokenizer: str  # as JSON
    sentences: str  # kind of splitter
    segment: bool
    entities: NgramTable
    comparison: Comparison = field(default_factory=Comparison)

    def digest(self) -> bytes:
        """A hash of the settings, with the versions of the packages."""
        names = [self.tokenizer, str(self.segment), *self.versions()]
        names += [f"{n}:{keys.tobytes().hex()}" for n, keys in self.entities.items()]
        names += self.comparison.names()
        return blake2b("\0".join(["3", *names]).encode(), digest_size=16).digest()

    def versions(self) -> list[str]:
        """The installed versions of what affects tokens besides text and settings."""
        names = [f"tokenizers {tokenizers.__version__}", splitter(self.sentences).name]
        if self.segment:
            names.append(segmenter() or "no rjieba")
        if self.comparison.near:
            near.check()
            names.append(near.algorithm())
        return names

    def write(self, file: Path) -> None:
        """Write the settings to a file for other processes."""
        texts = {"tokenizer": self.tokenizer, "sentences": self.sentences, "segment": self.segment}
        settings = np.frombuffer(json.dumps(texts).encode(), dtype=np.uint8)
        arrays: dict[str, Any] = {"entities": self.entities.rows(), **self.comparison.arrays()}
        with files.replacing(file) as stream:
            np.savez(stream, settings=settings, **arrays)

    @classmethod
    def read(cls, file: Path) -> TokenisingSettings:
        """The settings that `write` wrote."""
        with np.load(file) as stored:
            settings = json.loads(stored["settings"].tobytes())
            entities = NgramTable.of(stored["entities"])
            return cls(**settings, entities=entities, comparison=Comparison.of(stored))


@dataclass(frozen=True)
class ShardJob:
    """Documents to be tokenised together."""

    documents: list[RawDocument]
    spans: dict[int, Spans] = field(default_factory=dict)  # by the document's index in the list

    def name(self, settings: bytes) -> str:
        """The shard's name: a hash of the settings' digest and of the documents."""
        digest = blake2b(settings, digest_size=16)
        for number, document in enumerate(self.documents):
            text = document.text.encode("utf-8", errors="surrogatepass")
            kind = document.is_split + 2 * document.is_row  # a row is split, too
            digest.update(b"%d %d %r " % (len(text), kind, self.spans.get(number)))
            digest.update(text)
        return digest.hexdigest()


@dataclass(frozen=True)
class Shard:
    """A tokenised shard, read from its file."""

    ids: Array
    marks: Bytes
    sentences: Ints  # [S + 1]
    documents: Ints  # [D + 1]
    digests: Keys  # [D, 2] equal for equal documents
    words: Keys  # [W] keys of the distinct words
    word_counts: Ints
    word_ids: Ints  # [·, 2] the ids of all words: index of the word, id
    counts: Counts
    units: Ints  # [2] how many phrases and entities were marked
    is_cut: bool = False  # whether text was left out that is still in the words
    # For comparison with other text; empty if it is not compared.
    pieces: Ints = field(default_factory=lambda: np.zeros(1, np.int64))  # [P + 1] offsets
    piece_digests: Keys = field(default_factory=lambda: np.zeros((0, 2), np.uint64))  # [P, 2]
    excluded: Bools = field(default_factory=lambda: np.zeros(0, bool))  # [S] sentences
    signatures: Signatures = field(default_factory=lambda: np.zeros(0, np.uint32))  # [D, hashes]
    rows: Bools = field(default_factory=lambda: np.zeros(0, bool))  # [D], empty if there are none

    def bounds_of(self, level: str) -> Ints:
        """The offsets of documents, pieces or sentences, in sentences."""
        if level == "sentences":
            return np.arange(len(self.sentences))
        return self.documents if level == "documents" else self.pieces

    def digests_of(self, level: str) -> Keys:
        """The digests of the documents or of their pieces."""
        return self.digests if level == "documents" else self.piece_digests

    def only(self, level: str, keep: Bools) -> Shard:
        """The shard with only some of its documents, pieces or sentences.

        It is as if the others had never been there (except in units and words); but a document
        that loses all of its pieces remains as an empty one.
        """
        if keep.all():
            return self
        documents = keep if level == "documents" else np.ones(len(self.digests), dtype=bool)
        sentences = np.repeat(keep, np.diff(self.bounds_of(level)))
        before = offsets(sentences)  # how many kept sentences come before each
        size = np.diff(self.sentences)[sentences]
        token = ranges(self.sentences[:-1][sentences], size)
        pieces = np.diff(before[self.pieces]) > 0
        return replace(
            self,
            ids=self.ids[token],
            marks=self.marks[token],
            sentences=offsets(size),
            documents=offsets(np.diff(before[self.documents])[documents]),
            digests=self.digests[documents],
            is_cut=True,
            pieces=offsets(np.diff(before[self.pieces])[pieces]),
            piece_digests=self.piece_digests[pieces],
            excluded=self.excluded[sentences[: len(self.excluded)]],
            signatures=self.signatures[documents[: len(self.signatures)]],
            rows=self.rows[documents[: len(self.rows)]],
        )

    def with_words(self) -> Shard:
        """The shard with its words counted again, if text was left out; that is slow."""
        if not self.is_cut:
            return self
        once = np.ones(len(self.ids), dtype=np.int64)
        words, counts, word_ids = _distinct_words(self.ids, self.marks, once)
        return replace(self, is_cut=False, words=words, word_counts=counts, word_ids=word_ids)


@dataclass(frozen=True)
class ShardPlan:
    """The shards of a build, in the text's order, and the inputs they were made from."""

    folder: Path  # the build's, with the shards in it
    settings: TokenisingSettings
    names: list[str]
    inputs: list[str]
    kept: tuple[tuple[str, Bools], ...] = ()  # in turn: level, which of what remains is kept

    @property
    def ready(self) -> Path:
        """The folder of the finished files, until all are moved into place."""
        return self.folder / "ready"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of all shards."""
        return Tokenizer.from_str(self.settings.tokenizer)

    def only(self, level: str, keep: Bools) -> ShardPlan:
        """The plan with only some of its remaining documents or pieces."""
        return replace(self, kept=(*self.kept, (level, keep)))

    def shards(self) -> Iterator[Shard]:
        """Read the shards one by one, without what is left out."""
        first = [0] * len(self.kept)
        for name in self.names:
            shard = load(self.folder / f"{name}.npz")
            if len(shard.excluded):
                shard = shard.only("sentences", ~shard.excluded)
            for step, (level, keep) in enumerate(self.kept):
                last = first[step] + len(shard.digests_of(level))
                shard = shard.only(level, keep[first[step] : last])
                first[step] = last
            yield shard


def jobs(documents: Iterable[RawDocument], spans: dict[str, Spans]) -> Iterator[ShardJob]:
    """Group documents into jobs by their size alone, whatever the number of workers."""
    for batch in batches(documents, size=lambda document: len(document.text), least=SHARD):
        spans_inside = {
            number: _spans_in_part(spans[document.name], document)
            for number, document in enumerate(batch)
            if document.name in spans
        }
        yield ShardJob(batch, spans_inside)


def _spans_in_part(spans: Spans, part: RawDocument) -> Spans:
    """The spans that begin in a part of a document, relative to the part's first character."""
    shifted = ((begin - part.begins, end - part.begins, bit) for begin, end, bit in spans)
    return [span for span in shifted if 0 <= span[0] < len(part.text)]


def tokenise(
    job: ShardJob, settings: TokenisingSettings, tokenizer: CachedTokenizer, counts: Counts
) -> dict[str, Array]:
    """Tokenise a job's documents; returns the arrays of the shard."""
    tokenizer.forget()
    split = splitter(settings.sentences).split
    cut = [
        lines(document.text, counts, place=document.name, whole=document.is_row)
        if document.is_split
        else split(document.text, counts, place=document.name)
        for document in job.documents
    ]
    units = {Mark.PHRASE: 0, Mark.ENTITY: 0}
    parts: list[Tokenised] = []
    # Documents are tokenised together, except those with given spans.
    bounds = {bound for number in job.spans for bound in (number, number + 1)}
    for first, last in pairwise(sorted({0, len(cut), *bounds})):
        spans = job.spans.get(first, [])
        lost, shift = len(spans), 0  # spans, and the position of the batch's first character
        for batch in batches(chain.from_iterable(cut[first:last]), size=len, least=_BATCH):
            tokenised = tokenizer.encode(batch, characters=bool(spans))
            for bit in _mark_spans(tokenised, batch, spans, shift=shift, counts=counts):
                units[bit] += 1
                lost -= 1
            ids, marks, starts = tokenised.ids, tokenised.marks, tokenised.starts
            names = mark_entities(ids, marks, starts, entities=settings.entities)
            units[Mark.ENTITY] += len(names)
            parts.append(tokenised)
            shift += sum(map(len, batch))
        place = job.documents[first].name
        counts.add(PAST_END, place, lost)
    sizes = _joined((np.diff(part.starts) for part in parts), np.int64)
    stretches = _joined((part.stretches for part in parts), np.int64)
    words, word_counts, word_ids = _distinct_words(*tokenizer.words(stretches))
    compared = settings.comparison.noted(job.documents, cut, filled=sizes > 0, counts=counts)
    if any(document.is_row for document in job.documents):
        compared |= _whole_rows(job, cut, sizes, compared.get("excluded"), counts=counts)
    return {
        "ids": _joined((part.ids for part in parts), np.uint32),
        "marks": _joined((part.marks for part in parts), np.uint8),
        "sentences": offsets(sizes[sizes > 0]),
        "documents": offsets(sums(sizes > 0, offsets([len(sentences) for sentences in cut]))),
        "digests": np.array([text_digest(d.text) for d in job.documents], "<u8").reshape(-1, 2),
        "words": words,
        "word_counts": word_counts,
        "word_ids": word_ids,
        "units": np.array([units[Mark.PHRASE], units[Mark.ENTITY]]),
        **compared,
    }


def _whole_rows(
    job: ShardJob, cut: list[list[str]], sizes: Ints, excluded: Array | None, *, counts: Counts
) -> dict[str, Array]:
    """Which documents are rows; one with a text without tokens is left out, or the next would
    take that text's place."""
    starts = offsets([len(sentences) for sentences in cut])
    rows = np.array([document.is_row for document in job.documents])
    gaps = rows & (sums(sizes == 0, starts) > 0)
    for number in np.flatnonzero(gaps).tolist():
        counts.add("rows with a text without tokens left out", job.documents[number].name)
    left_out = np.repeat(gaps, np.diff(starts))[sizes > 0]
    if excluded is not None:
        left_out |= excluded.astype(bool)
    return {"rows": rows, "excluded": left_out} if left_out.any() else {"rows": rows}


def _joined(arrays: Iterable[Array], kind: type[T]) -> NDArray[T]:
    return np.concatenate([np.zeros(0, kind), *(array.astype(kind) for array in arrays)])


def _mark_spans(
    tokenised: Tokenised, sentences: list[str], spans: Spans, *, shift: int, counts: Counts
) -> Iterator[int]:
    """Mark the spans that are in a batch of sentences, which begins at `shift`; yields their bits.

    Positions of spans are relative to the document, or to its part.
    """
    begins = shift + offsets([len(sentence) for sentence in sentences])
    shifts = np.repeat(begins[:-1], np.diff(tokenised.starts))
    for begin, end, bit in spans:
        if begin >= shift and end <= begins[-1]:
            mark_span(tokenised, begin, end, bit=bit, shifts=shifts, counts=counts)
            yield bit


def _distinct_words(ids: Array, marks: Bytes, times: Ints) -> tuple[Keys, Ints, Ints]:
    """The distinct words of tokens that occur `times` each: keys, counts, and ids.

    The ids are rows of [index of the key, id], so that one array has words of any length.
    """
    first = np.flatnonzero(marks & Mark.WORD)
    keys, at, which = np.unique(fold(ids, first), return_index=True, return_inverse=True)
    counts = np.bincount(which, weights=times[first]).astype(np.int64)
    sizes = np.append(first[1:], len(ids)) - first
    rows = np.repeat(np.arange(len(keys)), sizes[at])
    return keys, counts, np.stack([rows, ids[ranges(first[at], sizes[at])]], axis=1)


def pack(arrays: dict[str, Array], counts: Counts) -> bytes:
    """The content of a shard's file."""
    notes = np.frombuffer(json.dumps(asdict(counts)).encode(), dtype=np.uint8)
    content, columns = BytesIO(), dict[str, Any](arrays)
    np.savez(content, **columns, counts=notes)
    return content.getvalue()


def save(content: bytes, file: Path) -> None:
    """Write a shard's file atomically."""
    with files.replacing(file) as stream:
        stream.write(content)


def load(file: Path) -> Shard:
    """Read a shard from its file."""
    with np.load(file) as stored:
        assert isinstance(stored, NpzFile)
        arrays: dict[str, Any] = {name: stored[name] for name in stored.files}
    arrays["counts"] = Counts(**json.loads(arrays["counts"].tobytes()))
    return Shard(**arrays)


def sound(file: Path) -> bool:
    """Whether a shard's file exists and can be read."""
    try:
        load(file)
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, RuntimeError):
        return False  # the last two are what a broken archive raises
    return True

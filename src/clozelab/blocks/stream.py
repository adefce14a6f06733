"""All documents as one endless text, an end-of-document token after each, and the formats that cut
it: every L tokens for a causal model (GPT; BERT §5.1), in rows with a memory for XLNet (§2.5).

Positions in this stream are virtual: the store holds no such tokens, so a position is mapped to
its document first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np

from clozelab.blocks.planned import PiecesInMemory, PlannedFormat, PlanPieces, draw
from clozelab.blocks.shuffle import (
    Shuffle,
    Shuffled,
    UnitTable,
    release,
    sentences_of,
    whole_documents,
)
from clozelab.contracts import Array, Blocks, Bools, Bytes, Documents, Ids, Ints, Mark, PlanStretch
from clozelab.errors import UserError
from clozelab.keys import coin_flips, mix, randint
from clozelab.packed import offsets, ranges, sums
from clozelab.ranges import PositiveInt, at_least

_PAIR_SPECIALS = 3


@dataclass(frozen=True)
class Stream:
    """The documents in the order the key gives them; those without a token are left out."""

    documents: Documents
    key: int
    tokens: Ints  # [D] first token in the store of each visited document
    starts: Ints  # [D + 1] where each visited document begins in the stream
    sentences: Ints  # where sentences begin in the stream, ascending; empty ones begin nowhere

    def __len__(self) -> int:
        return int(self.starts[-1])

    def read(self, positions: Ints) -> tuple[Ids, Bytes, Bools]:
        """Ids, marks in text order, and which are end-of-document tokens."""
        document = np.searchsorted(self.starts, positions, side="right") - 1
        ends = positions + 1 == self.starts[document + 1]
        source = np.where(ends, 0, self.tokens[document] + positions - self.starts[document])
        ids = self.documents.ids[source].astype(np.int32)
        ids[ends] = self.documents.vocabulary.role("eod")
        marks = np.where(ends, np.uint8(Mark.ALL), np.asarray(self.documents.marks[source]))
        return ids, marks, ends

    def read_runs(self, first: Ints, sizes: Ints) -> tuple[Ids, Bytes, Bools]:
        """The same of whole runs of positions, each looked up by its documents, not its tokens."""
        stop = first + sizes
        low = np.searchsorted(self.starts, first, side="right") - 1
        counts = np.searchsorted(self.starts, stop, side="left") - low
        document = ranges(low, counts)
        begin = np.maximum(self.starts[document], np.repeat(first, counts))
        after = self.starts[document + 1]
        end = np.minimum(after, np.repeat(stop, counts))
        source = ranges(self.tokens[document] + begin - self.starts[document], end - begin)
        closing = np.cumsum(end - begin)[end == after] - 1  # the last of a document is its end
        source[closing] = 0
        ids = self.documents.ids[source].astype(np.int32)
        ids[closing] = self.documents.vocabulary.role("eod")
        marks = np.asarray(self.documents.marks[source])
        marks[closing] = Mark.ALL
        ends = np.zeros(len(source), dtype=bool)
        ends[closing] = True
        return ids, marks, ends

    def check(self, least: int) -> None:
        """Refuse a stream shorter than one block."""
        if len(self) < least:
            raise UserError(
                f"the corpus has {len(self)} tokens and one block of this format takes {least}:"
                " add text, or use shorter blocks (blocks.length) or fewer rows"
            )


class StreamFormat(PlannedFormat):
    """A format that cuts the stream of the documents."""

    def units(self, documents: Documents) -> UnitTable:
        """The documents, in sentences where it must be known where these begin."""
        return whole_documents(documents)

    def stretches(
        self, documents: Documents, key: int, pieces: PlanPieces | None = None
    ) -> Iterator[PlanStretch]:
        """The stream, some documents at a time."""
        shared: PlanPieces = pieces or PiecesInMemory()
        shuffle = Shuffle(self.units(documents), key, shared)

        def make(number: int) -> Iterator[PlanStretch]:
            for dealt in shuffle.portion(number):
                yield _columns(dealt)
                release(documents.sentences, documents.documents)

        begun = 0
        portions = shared.all_pieces("stream", len(shuffle), make)
        shared.drop(shuffle.name)
        for number, piece in enumerate(portions):
            columns: Mapping[str, Any] = piece.columns
            starts = begun + offsets(columns["sizes"] + 1)
            shift = np.repeat(starts[:-1], columns["counts"])
            stream: dict[str, Array] = {
                "tokens": columns["tokens"],
                "starts": starts[min(number, 1) :],
                "sentences": shift + columns["sentences"],
            }
            yield PlanStretch(stream, {})
            begun = int(starts[-1])


def _columns(dealt: Shuffled) -> PlanStretch:
    """Some documents of the stream, of each its first token, its size and where parts begin."""
    bounds = offsets(dealt.counts)
    sizes = sums(dealt.sizes, bounds)
    filled = sizes > 0
    tokens = dealt.starts[bounds[:-1][filled]]
    parts = np.repeat(filled, dealt.counts) & (dealt.sizes > 0)
    counts = sums(parts, bounds)[filled]
    columns: dict[str, Array] = {
        "tokens": tokens,
        "sizes": sizes[filled],
        "counts": counts,
        "sentences": dealt.starts[parts] - np.repeat(tokens, counts),
    }
    return PlanStretch(columns, {})


@dataclass(frozen=True)
class StreamCuts:
    """A `Plan`: block i is the i-th stretch of the stream."""

    stream: Stream
    length: int
    notes: Mapping[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        # A tail of one token predicts nothing.
        return len(self.stream) // self.length + (len(self.stream) % self.length > 1)

    def blocks(self, numbers: Ints) -> Blocks:
        """Gather some blocks."""
        first = numbers * self.length
        sizes = np.minimum(len(self.stream) - first, self.length)
        ids, marks, ends = self.stream.read_runs(first, sizes)
        return Blocks(
            ids=ids,
            starts=offsets(sizes),
            marks=marks,
            segments=np.zeros(len(ids), dtype=np.uint8),
            fixed=ends,
            numbers=np.asarray(numbers, dtype=np.int64),
        )


@dataclass(frozen=True)
class Causal(StreamFormat):
    """A stretch of the stream of documents, nothing padded; each token predicts the next."""

    provides: ClassVar[frozenset[str]] = frozenset({"causal_blocks"})

    length: Annotated[int, at_least(2, "a block needs two tokens to predict one")] = 512

    def opened(self, documents: Documents, key: int, table: PlanStretch) -> StreamCuts:
        """The plan that a table is."""
        stream = Stream(documents, key, **table.columns)
        stream.check(2)
        return StreamCuts(stream, self.length)


@dataclass(frozen=True)
class StreamRows:
    """A `Plan`: the stream in equal rows, walked in step; block = step · rows + row.

    A step's blocks follow the last step's in every row, so numbers must be visited in order.
    """

    stream: Stream
    shape: StreamPair
    notes: Mapping[str, float] = field(default_factory=dict)

    @property
    def forward(self) -> int:
        """Rows read forwards; the others are the same rows read from their end."""
        return self.shape.rows // 2 if self.shape.reverse else self.shape.rows

    @property
    def width(self) -> int:
        """Tokens in a row."""
        return len(self.stream) // self.forward

    def __len__(self) -> int:
        steps = (self.width - self.shape.length) // self.shape.reuse + 1
        return steps * self.shape.rows

    def blocks(self, numbers: Ints) -> Blocks:
        """Gather some blocks."""
        row, at = numbers % self.shape.rows, numbers // self.shape.rows * self.shape.reuse
        reverse = row >= self.forward
        base = (row % self.forward) * self.width
        first, start, labels = self._pair(numbers, base, at, reverse)
        reuse, length = self.shape.reuse, self.shape.length
        column, count = np.arange(length), first[:, None]
        in_second = (column > reuse + count) & (column < length - 2)
        second = start[:, None] + column - reuse - count - 1
        positions = np.where(in_second, second, at[:, None] + column)
        ids, marks, fixed = self._read(positions, base, reverse)
        separator = (column == reuse + count) | (column == length - 2)
        ids[separator] = self.stream.documents.vocabulary.role("sep")
        ids[:, -1] = self.stream.documents.vocabulary.role("cls")
        fixed |= separator
        fixed[:, -1] = True
        marks[fixed] = Mark.ALL
        segments = (column > reuse + count).astype(np.uint8)
        segments[:, -1] = 2
        return Blocks(
            ids=ids.reshape(-1),
            starts=np.arange(len(numbers) + 1) * length,
            marks=marks.reshape(-1),
            segments=segments.reshape(-1),
            fixed=fixed.reshape(-1),
            numbers=np.asarray(numbers, dtype=np.int64),
            labels=labels,
            reverse=reverse,
        )

    def _pair(self, numbers: Ints, base: Ints, at: Ints, reverse: Bools) -> tuple[Ints, Ints, Ints]:
        """For each block: tokens of A, where B begins in the row, the label."""
        key, room = self.stream.key, self.shape.length - self.shape.reuse - _PAIR_SPECIALS
        begin = at + self.shape.reuse
        end = base + self.width
        # Sentence starts strictly inside (begin, begin + room), in the row's own direction.
        low = np.where(reverse, end - begin - room, base + begin)
        sentences = self.stream.sentences
        first = np.searchsorted(sentences, low, side="right")
        choices = np.searchsorted(sentences, low + room, side="left") - first
        pick = first + randint(mix(draw(key, "cut"), numbers), np.maximum(choices, 1))
        chosen = sentences[np.minimum(pick, len(sentences) - 1)]
        cut = np.where(reverse, end - chosen, chosen - base) - begin
        # Differs from XLNet's code: with no sentence to cut at, the stretch is cut in the middle.
        cut = np.where(choices > 0, cut, room // 2)
        random = coin_flips(mix(draw(key, "coin"), numbers)) | (choices <= 0)
        anywhere = randint(mix(draw(key, "start"), numbers), self.width - room + cut + 1)
        start = np.where(random, anywhere, begin + cut)
        return cut, start, random.astype(np.int64)

    def _read(self, positions: Ints, base: Ints, reverse: Bools) -> tuple[Ids, Bytes, Bools]:
        """Tokens at positions of a row; in reversed rows marks say where words begin backwards."""
        turned = self.width - 1 - positions
        positions = base[:, None] + np.where(reverse[:, None], turned, positions)
        ids, marks, ends = self.stream.read(positions)
        if reverse.any():
            after = np.minimum(positions[reverse] + 1, len(self.stream) - 1)
            marks[reverse] = self.stream.read(after)[1]
        return ids, marks, ends


@dataclass(frozen=True)
class StreamPair(StreamFormat):
    """`reuse` tokens of the stream, then a pair `A [SEP] B [SEP] [CLS]` from what follows.

    B continues A, or (label 1) was taken from elsewhere in the row. With `reverse` the second half
    of the `rows` is the first half read backwards. The next block of a row begins `reuse` tokens
    after this one.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"stream", "next"})

    length: int = 512  # tokens of a block, all included
    reuse: PositiveInt = 256  # that the memory of the next block holds
    rows: PositiveInt = 8192
    reverse: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reuse > self.length - _PAIR_SPECIALS - 2:
            raise UserError(
                f"reuse = {self.reuse}, length = {self.length}: a block holds the reused tokens"
                " and at least five more"
            )
        if self.reverse and self.rows % 2:
            raise UserError(f"rows = {self.rows}: must be even where half are reversed")

    def units(self, documents: Documents) -> UnitTable:
        """The documents in sentences."""
        return sentences_of(documents)

    def opened(self, documents: Documents, key: int, table: PlanStretch) -> StreamRows:
        """The plan that a table is."""
        plan = StreamRows(Stream(documents, key, **table.columns), self)
        plan.stream.check(plan.forward * self.length)
        return plan

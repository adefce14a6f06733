"""All documents as one stream with an end-of-document token after each, and formats that cut it:
every L tokens for a causal model (GPT; BERT §5.1), in rows with a memory for XLNet (§2.5).

Positions in this stream are virtual: the store has no end-of-document tokens, so a position is
first mapped to its document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np

from clozelab.blocks.planned import PlannedFormat, PlanPieces, draw
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
    """The documents in the order of their keys, without empty ones."""

    documents: Documents
    key: int
    tokens: Ints  # [D] first token in the store of each visited document
    starts: Ints  # [D + 1] where each visited document begins in the stream
    sentences: Ints  # where sentences begin in the stream, ascending; empty ones begin nowhere

    def __len__(self) -> int:
        return int(self.starts[-1])

    def read(self, positions: Ints) -> tuple[Ids, Bytes, Bools]:
        """The ids at positions, their marks in text order, and which end a document."""
        document = np.searchsorted(self.starts, positions, side="right") - 1
        ends = positions + 1 == self.starts[document + 1]
        source = np.where(ends, 0, self.tokens[document] + positions - self.starts[document])
        ids = self.documents.ids[source].astype(np.int32)
        ids[ends] = self.documents.vocabulary.role("eod")
        marks = np.where(ends, np.uint8(Mark.ALL), np.asarray(self.documents.marks[source]))
        return ids, marks, ends

    def read_runs(self, first: Ints, sizes: Ints) -> tuple[Ids, Bytes, Bools]:
        """As `read`, for runs of positions, looked up by document and not by token."""
        stop = first + sizes
        low = np.searchsorted(self.starts, first, side="right") - 1
        counts = np.searchsorted(self.starts, stop, side="left") - low
        document = ranges(low, counts)
        begin = np.maximum(self.starts[document], np.repeat(first, counts))
        after = self.starts[document + 1]
        end = np.minimum(after, np.repeat(stop, counts))
        source = ranges(self.tokens[document] + begin - self.starts[document], end - begin)
        closing = np.cumsum(end - begin)[end == after] - 1  # the last token of a document
        source[closing] = 0
        ids = self.documents.ids[source].astype(np.int32)
        ids[closing] = self.documents.vocabulary.role("eod")
        marks = np.asarray(self.documents.marks[source])
        marks[closing] = Mark.ALL
        ends = np.zeros(len(source), dtype=bool)
        ends[closing] = True
        return ids, marks, ends

    def check(self, least: int) -> None:
        """Refuse a stream of fewer than `least` tokens."""
        if len(self) < least:
            raise UserError(
                f"the corpus has {len(self)} tokens, but one block of this format needs"
                f" {least}; add text, or use shorter blocks (blocks.length) or fewer rows"
            )


class StreamFormat(PlannedFormat):
    """A format that cuts the stream of documents."""

    def units(self, documents: Documents) -> UnitTable:
        """The documents to shuffle; divided into sentences if a format needs their starts."""
        return whole_documents(documents)

    def stretches(
        self, documents: Documents, key: int, pieces: PlanPieces
    ) -> Iterator[PlanStretch]:
        """Yield the columns of the stream, some documents at a time."""
        shuffle = Shuffle(self.units(documents), key, pieces)

        def make(number: int) -> Iterator[PlanStretch]:
            for dealt in shuffle.portion(number):
                yield _columns(dealt)
                release(documents.sentences, documents.documents)

        length = 0
        portions = pieces.all_pieces("stream", len(shuffle), make)
        pieces.drop(shuffle.name)
        for number, piece in enumerate(portions):
            columns: Mapping[str, Any] = piece.columns
            starts = length + offsets(columns["sizes"] + 1)
            shift = np.repeat(starts[:-1], columns["counts"])
            stream: dict[str, Array] = {
                "tokens": columns["tokens"],
                "starts": starts[min(number, 1) :],
                "sentences": shift + columns["sentences"],
            }
            yield PlanStretch(stream, {})
            length = int(starts[-1])


def _columns(dealt: Shuffled) -> PlanStretch:
    """The columns of some documents: first token, size, and where sentences begin."""
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
    """A `Plan`: block i is the i-th `length` tokens of the stream."""

    stream: Stream
    length: int
    notes: Mapping[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        # A last block of one token has nothing to predict.
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
    """Consecutive tokens of the stream, without padding; each token predicts the next."""

    provides: ClassVar[frozenset[str]] = frozenset({"causal_blocks"})

    length: Annotated[int, at_least(2, "a block needs two tokens to predict one")] = 512

    def opened(self, documents: Documents, key: int, table: PlanStretch) -> StreamCuts:
        """The plan that a table is."""
        stream = Stream(documents, key, **table.columns)
        stream.check(2)
        return StreamCuts(stream, self.length)


@dataclass(frozen=True)
class StreamRows:
    """A `Plan`: the stream in equal rows, read in parallel; block = step · rows + row.

    Blocks continue those of the previous step in every row, so numbers must be visited in order.
    """

    stream: Stream
    shape: StreamPair
    notes: Mapping[str, float] = field(default_factory=dict)

    @property
    def forward(self) -> int:
        """The number of rows read forwards; the others are the same rows read backwards."""
        return self.shape.rows // 2 if self.shape.reverse else self.shape.rows

    @property
    def width(self) -> int:
        """The number of tokens of a row."""
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
        """For each block: the tokens of A, where B begins in the row, and the label."""
        key, room = self.stream.key, self.shape.length - self.shape.reuse - _PAIR_SPECIALS
        begin = at + self.shape.reuse
        end = base + self.width
        # Sentence starts strictly inside (begin, begin + room), in the row's direction.
        low = np.where(reverse, end - begin - room, base + begin)
        sentences = self.stream.sentences
        first = np.searchsorted(sentences, low, side="right")
        choices = np.searchsorted(sentences, low + room, side="left") - first
        pick = first + randint(mix(draw(key, "cut"), numbers), np.maximum(choices, 1))
        chosen = sentences[np.minimum(pick, len(sentences) - 1)]
        cut = np.where(reverse, end - chosen, chosen - base) - begin
        # Differs from XLNet's code: without a sentence start, the cut is in the middle.
        cut = np.where(choices > 0, cut, room // 2)
        random = coin_flips(mix(draw(key, "coin"), numbers)) | (choices <= 0)
        anywhere = randint(mix(draw(key, "start"), numbers), self.width - room + cut + 1)
        start = np.where(random, anywhere, begin + cut)
        return cut, start, random.astype(np.int64)

    def _read(self, positions: Ints, base: Ints, reverse: Bools) -> tuple[Ids, Bytes, Bools]:
        """The tokens at positions of a row; in reversed rows marks are for reading backwards."""
        backwards = self.width - 1 - positions
        positions = base[:, None] + np.where(reverse[:, None], backwards, positions)
        ids, marks, ends = self.stream.read(positions)
        if reverse.any():
            after = np.minimum(positions[reverse] + 1, len(self.stream) - 1)
            marks[reverse] = self.stream.read(after)[1]
        return ids, marks, ends


@dataclass(frozen=True)
class StreamPair(StreamFormat):
    """`reuse` tokens of the stream, then a pair `A [SEP] B [SEP] [CLS]` of the tokens after them.

    B continues A, or (label 1) is from elsewhere in the row. With `reverse` the second half of the
    `rows` is the first half read backwards. The next block of a row begins `reuse` tokens after
    this one.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"stream", "next"})

    length: int = 512  # tokens of a block, all included
    reuse: PositiveInt = 256  # tokens that the next block has in its memory
    rows: PositiveInt = 8192
    reverse: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reuse > self.length - _PAIR_SPECIALS - 2:
            raise UserError(
                f"reuse = {self.reuse}, length = {self.length}: a block must hold the reused"
                " tokens and at least five more; lower reuse or raise length"
            )
        if self.reverse and self.rows % 2:
            raise UserError(f"rows = {self.rows}: must be even where half are reversed")

    def units(self, documents: Documents) -> UnitTable:
        """The documents, divided into sentences."""
        return sentences_of(documents)

    def opened(self, documents: Documents, key: int, table: PlanStretch) -> StreamRows:
        """The plan that a table is."""
        plan = StreamRows(Stream(documents, key, **table.columns), self)
        plan.stream.check(plan.forward * self.length)
        return plan

"""XLNet's stream: tokens that memory will reuse, then a pair `A [SEP] B [SEP] [CLS]` (§2.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from clozelab.blocks.pairs import draw
from clozelab.blocks.stream import Stream
from clozelab.contracts import Blocks, Bools, Bytes, Documents, Ids, Ints, Mark
from clozelab.errors import UserError
from clozelab.keys import coin_flips, mix, randint

_SPECIALS = 3


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

    @property
    def steps(self) -> int:
        """Blocks in a row."""
        return (self.width - self.shape.length) // self.shape.reuse + 1

    def __len__(self) -> int:
        return self.steps * self.shape.rows

    def blocks(self, numbers: Ints) -> Blocks:
        """Gather some blocks."""
        row, at = numbers % self.shape.rows, numbers // self.shape.rows * self.shape.reuse
        reverse = row >= self.forward
        base = (row % self.forward) * self.width
        first, start, label = self._pair(numbers, base, at, reverse)
        reuse, length = self.shape.reuse, self.shape.length
        column = np.arange(length)
        count = first[:, None]
        in_second = (column > reuse + count) & (column < length - 2)
        place = np.where(
            in_second, start[:, None] + column - reuse - count - 1, at[:, None] + column
        )
        ids, marks, fixed = self._read(place, base, reverse)
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
            labels=label,
            reverse=reverse,
        )

    def _pair(self, numbers: Ints, base: Ints, at: Ints, reverse: Bools) -> tuple[Ints, Ints, Ints]:
        """For each block: tokens of A, where B begins in the row, the label."""
        room = self.shape.length - self.shape.reuse - _SPECIALS
        begin = at + self.shape.reuse
        end = base + self.width
        # Sentence starts strictly inside (begin, begin + room), in the row's own direction.
        low = np.where(reverse, end - begin - room, base + begin)
        sentences = self.stream.sentences
        first = np.searchsorted(sentences, low, side="right")
        choices = np.searchsorted(sentences, low + room, side="left") - first
        pick = first + randint(mix(draw(self.stream.key, "cut"), numbers), np.maximum(choices, 1))
        chosen = sentences[np.minimum(pick, len(sentences) - 1)]
        cut = np.where(reverse, end - chosen, chosen - base) - begin
        # Differs from XLNet's code: with no sentence to cut at, the stretch is cut in the middle.
        cut = np.where(choices > 0, cut, room // 2)
        random = coin_flips(mix(draw(self.stream.key, "coin"), numbers)) | (choices <= 0)
        anywhere = randint(
            mix(draw(self.stream.key, "start"), numbers), self.width - room + cut + 1
        )
        start = np.where(random, anywhere, begin + cut)
        return cut, start, random.astype(np.int64)

    def _read(self, place: Ints, base: Ints, reverse: Bools) -> tuple[Ids, Bytes, Bools]:
        """Tokens at places of a row; in reversed rows marks say where words begin backwards."""
        turned = reverse[:, None]
        position = base[:, None] + np.where(turned, self.width - 1 - place, place)
        ids, marks, ends = self.stream.read(position)
        after = np.minimum(position + 1, len(self.stream) - 1)
        if reverse.any():
            marks[reverse] = self.stream.read(after[reverse])[1]
        return ids, marks, ends


@dataclass(frozen=True)
class StreamPair:
    """`reuse` tokens of the stream, then A and B from what follows, B continuing A or not.

    With `reverse` the second half of the `rows` is the first half read backwards. The next block
    of a row begins `reuse` tokens on. Label 1 when B was taken from elsewhere in the row.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"stream", "next"})
    needs: ClassVar[frozenset[str]] = frozenset()

    length: int = 512
    reuse: int = 256
    rows: int = 8192
    reverse: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.reuse <= self.length - _SPECIALS - 2:
            raise UserError(
                f"reuse = {self.reuse}, length = {self.length}: a block holds the reused tokens"
                " and at least five more"
            )
        if self.rows < 1 or (self.reverse and self.rows % 2):
            raise UserError(f"rows = {self.rows}: at least 1, and even where half are reversed")

    def plan(self, documents: Documents, key: int) -> StreamRows:
        """Plan a pass; `key` stands for (seed, purpose, copy)."""
        stream = Stream(documents, key)
        plan = StreamRows(stream, self)
        stream.check(plan.forward * self.length)
        return plan

"""Causal blocks: the text cut every L tokens, nothing padded (GPT; BERT §5.1, left to right)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np

from clozelab.blocks.stream import Stream
from clozelab.contracts import Blocks, Documents, Ints
from clozelab.packed import offsets, ranges
from clozelab.ranges import Checked, at_least


@dataclass(frozen=True)
class Cuts:
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
        ids, marks, ends = self.stream.read(ranges(first, sizes))
        return Blocks(
            ids=ids,
            starts=offsets(sizes),
            marks=marks,
            segments=np.zeros(len(ids), dtype=np.uint8),
            fixed=ends,
            numbers=np.asarray(numbers, dtype=np.int64),
        )


@dataclass(frozen=True)
class Causal(Checked):
    """A stretch of the stream of documents; each token predicts the next."""

    provides: ClassVar[frozenset[str]] = frozenset({"causal_blocks"})
    needs: ClassVar[frozenset[str]] = frozenset()

    length: Annotated[int, at_least(2, "a block needs two tokens to predict one")] = 512

    def plan(self, documents: Documents, key: int) -> Cuts:
        """Plan a pass; `key` stands for (seed, purpose, copy)."""
        stream = Stream(documents, key)
        stream.check(2)
        return Cuts(stream, self.length)

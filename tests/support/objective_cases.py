"""Blocks with everything an objective may ask for, and its targets over made-up states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from support.block_contents import cut_out
from support.masked_blocks import WORDS
from torch import Tensor, nn

from clozelab.contracts import (
    Blocks,
    Corrupted,
    Encoded,
    Hidden,
    Input,
    Ints,
    Mark,
    Masking,
    Spelled,
    Sums,
    Targets,
)
from clozelab.keys import mix
from clozelab.objectives import Objective
from clozelab.objectives.distillation import Distillation
from clozelab.objectives.heads.vocabulary import VocabularyHead
from clozelab.packed import offsets

VOCABULARY = WORDS.size


@dataclass(frozen=True)
class Shape:
    """An encoder as heads see it."""

    hidden_size: int = 8
    embedding_size: int = 8
    activation: Any = "gelu"
    epsilon: float = 1e-12
    bias: bool = True
    normalisation: Any = "layer"
    heads: int = 2
    dropout: float = 0.0
    max_positions: int = 300


@dataclass(frozen=True)
class Case:
    """Blocks, what is hidden in them, and what was put there."""

    blocks: Blocks
    hidden: Hidden
    corrupted: Corrupted

    def targets(self, part: Any) -> Targets:
        targets: Targets = part.targets(self.blocks, self.hidden, self.corrupted)
        return targets

    def row(self, row: int) -> Case:
        """One block alone."""
        first, last = self.blocks.starts[row], self.blocks.starts[row + 1]
        spans = self.hidden.spans
        mine = spans[(spans[:, 0] >= first) & (spans[:, 0] < last)] - first
        at = self.hidden.positions
        decisions = self.corrupted.decisions[(at >= first) & (at < last)]
        keys = self.corrupted.keys
        draw = None if keys is None else partial(keys.__getitem__, slice(first, last))
        corrupted = Corrupted(self.corrupted.ids[first:last], decisions, draw)
        return Case(cut_out(self.blocks, row), Hidden(mine), corrupted)


def complete(blocks: Blocks, masking: Masking | None, *, seed: int = 0, words: int = 40) -> Case:
    """The blocks with pair labels and words added, and tokens hidden in them."""
    rng = np.random.default_rng(seed)
    begins = ((blocks.marks & Mark.WORD) != 0) | blocks.fixed | (blocks.positions == 0)
    sizes = np.bincount(blocks.rows[begins], minlength=len(blocks))
    numbers = rng.integers(0, words, int(sizes.sum())).astype(np.int32)
    spelled = Spelled(offsets(sizes), numbers, np.zeros((len(numbers), 5), np.uint16))
    labels = rng.integers(0, 2, len(blocks))
    whole = replace(blocks, labels=labels, words=spelled)
    hidden = masking.hide(blocks, 1, vocabulary=WORDS) if masking else Hidden(np.zeros((0, 2), int))
    decisions = rng.integers(0, 3, len(hidden.positions)).astype(np.uint8)
    draw = partial(mix, mix(7, blocks.numbers[blocks.rows]), blocks.positions)
    return Case(whole, hidden, Corrupted(blocks.ids, decisions, draw))


def lengths(part: Objective, blocks: Blocks) -> Ints:
    """What the part's places count in each block: its words or its tokens."""
    if "words" in part.needs:
        assert blocks.words is not None
        return np.diff(blocks.words.starts)
    return blocks.lengths


def columns(targets: Targets, sizes: Sequence[int] | Ints, *, idle: int = 0) -> dict[str, Tensor]:
    """Targets as a micro-batch has them: places count over all blocks, idle slots fill up."""
    base = np.repeat(offsets(sizes)[:-1], np.diff(targets.starts))
    out = {}
    for name, values in targets.columns.items():
        moved = values + base if name in Targets.POSITIONS else values
        fill = Targets.IGNORED if name.endswith("labels") else 0
        out[name] = torch.from_numpy(np.append(moved, np.full(idle, fill)).astype(values.dtype))
    return out


class Alone(nn.Module):
    """A head with whatever else its objective is given: `forward(states, targets, sizes)`."""

    def __init__(self, part: Any, shape: Shape, *, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.head = part.build(shape, VOCABULARY).double()
        self.table = nn.Parameter(torch.randn(VOCABULARY, shape.embedding_size).double())
        self.taught = isinstance(part, Distillation)
        self.student = VocabularyHead(shape, VOCABULARY).double() if self.taught else None
        # In a tuple: the teacher's weights are not trained.
        self.teacher = (VocabularyHead(shape, VOCABULARY).double(),) if self.taught else ()
        for teacher in self.teacher:
            nn.init.normal_(teacher.dense.weight)

    def read(
        self, states: Tensor, targets: dict[str, Tensor], sizes: Sequence[int] | Ints
    ) -> Input | None:
        """Blocks of such sizes, of the targets' labels; about half of these were replaced."""
        if "at" not in targets:
            return None
        size, labels = len(states), targets["labels"]
        starts = torch.from_numpy(offsets(sizes).astype(np.int32))
        places = torch.cat([torch.arange(int(length)) for length in sizes])
        at = torch.where(labels == Targets.IGNORED, size, targets["at"])
        ids = labels.new_zeros(size + 1).scatter(0, at, labels)[:size]
        ids = torch.where(states[:, 0] > 0, (ids + 1) % VOCABULARY, ids)
        return Input(ids, places, torch.zeros_like(ids), starts, int(max(sizes)))

    def forward(
        self,
        states: Tensor,
        targets: dict[str, Tensor],
        sizes: Sequence[int] | Ints | None = None,
    ) -> Sums:
        """The sums over blocks of such sizes; one block, if they are not given."""
        read = self.read(states, targets, [len(states)] if sizes is None else sizes)
        ids = None if read is None else read.ids
        encoded = Encoded(states, self.table, ids=ids, input=read)
        if not self.taught:
            sums: Sums = self.head(encoded, targets)
            return sums
        # Another model's states: a function of the student's, row by row.
        teacher = Encoded(states.detach().flip(1).cos(), self.table.detach())
        assert self.student is not None
        distilled_sums: Sums = self.head(
            encoded,
            teacher,
            targets,
            predict=self.student.logits,
            teach=self.teacher[0].logits,
        )
        return distilled_sums


def states(part: Objective, blocks: Blocks, shape: Shape, *, seed: int = 0) -> Tensor:
    """Random states for every token, or both directions' for every word."""
    generator = torch.Generator().manual_seed(seed)
    width = shape.hidden_size * (2 if "words" in part.needs else 1)
    size = (int(lengths(part, blocks).sum()), width)
    return torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_()

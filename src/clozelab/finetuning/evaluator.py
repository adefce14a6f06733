"""Run a fine-tuned model on examples: blocks sorted by length, predictions in order."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clozelab.contracts import Array, Batch, Ints, Reader
from clozelab.finetuning.examples import TokenizedExamples
from clozelab.finetuning.kinds import TaskKind
from clozelab.finetuning.tuned import Tuned
from clozelab.runs.events import drained
from clozelab.training.packing import BatchShape, PackedExamples, moved

_UNLIMITED = 1 << 40  # more than any batch has


@dataclass(frozen=True)
class Evaluator:
    """Some examples of a task, tokenized for one encoder."""

    kind: TaskKind
    examples: Sequence[Any]
    tokenized: TokenizedExamples

    @classmethod
    def of(cls, kind: TaskKind, examples: Sequence[Any], reader: Reader) -> Evaluator:
        """The examples tokenised by a reader."""
        return cls(kind, examples, kind.tokenize(examples, reader))

    @cached_property
    def packed(self) -> PackedExamples:
        """The examples as packed blocks."""
        return pack(self.tokenized, self.kind.name)

    def predictions(self, model: Tuned, device: torch.device, *, tokens: int) -> list[Any]:
        """A prediction for each example."""
        return drained(self.follow(model, device, tokens=tokens))

    @torch.inference_mode()
    def follow(
        self, model: Tuned, device: torch.device, *, tokens: int
    ) -> Generator[tuple[int, int], None, list[Any]]:
        """As `predictions`, yielding how many groups of blocks are done and how many there are."""
        model.eval()
        outputs: dict[int, NDArray[Any]] = {}
        rows = model.head.rows
        for numbers in batched(self.packed, tokens, alone=rows == "group"):
            examples = self.packed.select(numbers)
            batch = moved(collated(examples), device)
            output = model.predict(batch).float().cpu().numpy()
            offsets_of = (
                examples.targets[self.kind.name].starts if rows == "slots" else examples.starts
            )
            bounds = [0, len(output)] if rows == "group" else offsets_of[examples.units].tolist()
            for number, first, stop in zip(numbers.tolist(), bounds[:-1], bounds[1:], strict=True):
                outputs[number] = output[first:stop]
            yield len(outputs), len(self.tokenized.owners)
        ordered = [outputs[number] for number in range(len(outputs))]
        return self.kind.decode(self.tokenized, ordered, self.examples)


def pack(tokenized: TokenizedExamples, name: str) -> PackedExamples:
    """Tokenised examples as packed blocks."""
    lengths = np.diff(tokenized.starts)
    positions = np.arange(int(tokenized.starts[-1])) - np.repeat(tokenized.starts[:-1], lengths)
    columns: dict[str, Array] = {**tokenized.columns, "position_ids": positions.astype(np.int32)}
    groups = None if len(tokenized.groups) - 1 == len(lengths) else tokenized.groups
    return PackedExamples(columns, tokenized.starts, {name: tokenized.targets}, None, groups)


def batched(
    examples: PackedExamples, tokens: int, *, by: np.ufunc = np.maximum, alone: bool = False
) -> Iterator[Ints]:
    """Yield batches of groups of similar length, with at most `tokens` tokens and padding.

    Groups are sorted `by` their longest block, or with `np.add` by their tokens. Each may be
    `alone` in its batch.
    """
    units, lengths = examples.units, np.diff(examples.starts)
    if len(units) == 1:
        return
    order = np.argsort(-by.reduceat(lengths, units[:-1]), kind="stable")
    widths = np.maximum.reduceat(lengths, units[:-1])[order].tolist()
    blocks = np.diff(units)[order].tolist()
    first = count = longest = 0  # of a batch: its first group, its blocks, the longest of them
    for place, (more, width) in enumerate(zip(blocks, widths, strict=True)):
        if place > first and (alone or (count + more) * max(longest, width) > tokens):
            yield order[first:place]
            first, count, longest = place, 0, 0
        count, longest = count + more, max(longest, width)
    yield order[first:]


def collated(examples: PackedExamples) -> Batch:
    """The blocks as a batch without dummies, padded at most to its longest block."""
    lengths = np.diff(examples.starts)
    slots = dict.fromkeys(examples.targets, _UNLIMITED)
    longest = max(int(lengths.max(initial=0)), 1)
    shape = BatchShape(int(lengths.sum()), _UNLIMITED, slots, longest, constant=False)
    return shape.collate(examples, slice(0, len(examples)))

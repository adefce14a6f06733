"""Examples through a fine-tuned model: blocks sorted by length, rows back in their order."""

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

_UNLIMITED = 1 << 40  # more than there can be


@dataclass(frozen=True)
class Evaluator:
    """Some examples of a task, tokenized for one encoder."""

    kind: TaskKind
    examples: Sequence[Any]
    tokenized: TokenizedExamples

    @classmethod
    def of(cls, kind: TaskKind, examples: Sequence[Any], reader: Reader) -> Evaluator:
        """The examples as that reader reads them."""
        return cls(kind, examples, kind.tokenize(examples, reader))

    @cached_property
    def share(self) -> PackedExamples:
        """The blocks as they are packed."""
        return packed(self.tokenized, self.kind.name)

    def predictions(self, model: Tuned, device: torch.device, *, tokens: int) -> list[Any]:
        """One for each example."""
        return drained(self.follow(model, device, tokens=tokens))

    @torch.inference_mode()
    def follow(
        self, model: Tuned, device: torch.device, *, tokens: int
    ) -> Generator[tuple[int, int], None, list[Any]]:
        """As `predictions`, yielding how many groups of blocks are done out of how many."""
        model.eval()
        outputs: dict[int, NDArray[Any]] = {}
        rows = model.head.rows
        for numbers in batched(self.share, tokens, alone=rows == "group"):
            share = self.share.select(numbers)
            batch = moved(collated(share, slice(0, len(share))), device)
            output = model.predict(batch).float().cpu().numpy()
            by = share.targets[self.kind.name].starts if rows == "slots" else share.starts
            cuts = [0, len(output)] if rows == "group" else by[share.units].tolist()
            for number, first, stop in zip(numbers.tolist(), cuts[:-1], cuts[1:], strict=True):
                outputs[number] = output[first:stop]
            yield len(outputs), len(self.tokenized.owners)
        ordered = [outputs[number] for number in range(len(outputs))]
        return self.kind.decode(self.tokenized, ordered, self.examples)


def packed(tokenized: TokenizedExamples, name: str) -> PackedExamples:
    """Tokenized examples as blocks to pack."""
    lengths = np.diff(tokenized.starts)
    positions = np.arange(int(tokenized.starts[-1])) - np.repeat(tokenized.starts[:-1], lengths)
    columns: dict[str, Array] = {**tokenized.columns, "position_ids": positions.astype(np.int32)}
    groups = None if len(tokenized.groups) - 1 == len(lengths) else tokenized.groups
    return PackedExamples(columns, tokenized.starts, {name: tokenized.targets}, None, groups)


def batched(share: PackedExamples, tokens: int, *, alone: bool = False) -> Iterator[Ints]:
    """Groups in batches of at most so many tokens and padding, neighbours alike in length."""
    units = share.units
    if len(units) == 1:
        return
    longest = np.maximum.reduceat(np.diff(share.starts), units[:-1])
    blocks = np.diff(units)
    order = np.argsort(-longest, kind="stable")
    done = 0
    while done < len(order):
        most = 1 if alone else max(1, tokens // max(int(longest[order[done]]), 1))
        fit = np.searchsorted(np.cumsum(blocks[order[done : done + most]]), most, side="right")
        count = max(1, int(fit))
        yield order[done : done + count]
        done += count


def collated(share: PackedExamples, part: slice) -> Batch:
    """Some blocks as a batch without dummies, its rows no longer than its longest block."""
    lengths = np.diff(share.starts)[part]
    slots = dict.fromkeys(share.targets, _UNLIMITED)
    longest = max(int(lengths.max(initial=0)), 1)
    shape = BatchShape(int(lengths.sum()), _UNLIMITED, slots, longest, constant=False)
    return shape.collate(share, part)

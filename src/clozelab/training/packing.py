"""A step's blocks collated into micro-batches of constant size: one compiled graph serves them all.

Blocks are taken in order; a micro-batch closes when its tokens, its blocks or one objective's
slots run out, so that no target is ever dropped and no group divided. The rest is padded with
dummy blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clozelab.contracts import Array, Batch, Input, Ints, Targets
from clozelab.packed import offsets, ranges


@dataclass(frozen=True)
class PackedExamples:
    """The blocks that one rank trains on in one step, corrupted, with their targets.

    An array of `columns` has one row for each token (or word, where the encoder reads words).
    A group of blocks is scored together, as the choices of a question are; without groups, each is.
    """

    columns: Mapping[str, Array]  # [N] "ids", "position_ids", "segments" and what `Input` names
    starts: Ints  # [B + 1]
    targets: Mapping[str, Targets]
    reverse: Array | None = None  # [B]
    groups: Ints | None = None  # [G + 1] first block of each group
    causal: bool = False  # read from the left, all of them

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return int(self.starts[-1])

    @property
    def units(self) -> Ints:
        """[G + 1] first block of each group; without groups each block is one."""
        return np.arange(len(self) + 1) if self.groups is None else self.groups

    def counts(self) -> dict[str, int]:
        """The number of labels of each objective, or the sum of their weights."""
        return {
            name: round(float(targets.columns["weights"].sum()))
            if "weights" in targets.columns
            else _count_labels(targets.columns)
            for name, targets in self.targets.items()
        }

    def shares(self) -> dict[str, float]:
        """The labels of each objective per token."""
        return {n: _count_labels(t.columns) / self.tokens for n, t in self.targets.items()}

    def select(self, numbers: Ints) -> PackedExamples:
        """The groups of these numbers, in that order."""
        units = self.units
        sizes = units[numbers + 1] - units[numbers]
        blocks = ranges(units[numbers], sizes)
        lengths = self.starts[blocks + 1] - self.starts[blocks]
        tokens = ranges(self.starts[blocks], lengths)
        return PackedExamples(
            {name: values[tokens] for name, values in self.columns.items()},
            offsets(lengths),
            {name: _select_targets(targets, blocks) for name, targets in self.targets.items()},
            None if self.reverse is None else self.reverse[blocks],
            None if self.groups is None else offsets(sizes),
            self.causal,
        )


def concatenate(packs: Sequence[PackedExamples]) -> PackedExamples:
    """Several packs as one; if one has groups, each block of the others is a group of its own.

    All must be read in the same direction.
    """
    if len(packs) == 1:
        return packs[0]
    first = packs[0]
    reversals = [examples.reverse for examples in packs if examples.reverse is not None]
    grouped = any(examples.groups is not None for examples in packs)
    targets = {
        name: _concatenate_targets([examples.targets[name] for examples in packs], even=not grouped)
        for name in first.targets
    }
    return PackedExamples(
        {name: np.concatenate([pack.columns[name] for pack in packs]) for name in first.columns},
        _join_offsets([examples.starts for examples in packs]),
        targets,
        np.concatenate(reversals) if reversals else None,
        _join_offsets([examples.units for examples in packs]) if grouped else None,
        first.causal,
    )


@dataclass(frozen=True)
class BatchShape:
    """What a micro-batch holds at most; if `constant`, it is padded to exactly that."""

    tokens: int
    blocks: int
    slots: Mapping[str, int]
    max_seqlen: int
    constant: bool

    def divide(self, examples: PackedExamples) -> list[slice]:
        """Which blocks go into each micro-batch."""
        units = examples.units
        tokens = examples.starts[units]  # before each group
        slots = {name: targets.starts[units] for name, targets in examples.targets.items()}
        parts: list[slice] = []
        first = 0
        while first < len(units) - 1:
            token_counts = tokens[first + 1 :] - tokens[first]
            blocks = units[first + 1 :] - units[first]
            padding_blocks = np.maximum(-((token_counts - self.tokens) // self.max_seqlen), 0)
            full = (token_counts > self.tokens) | (blocks + padding_blocks > self.blocks)
            for name, offsets_by_block in slots.items():
                full |= offsets_by_block[first + 1 :] - offsets_by_block[first] > self.slots[name]
            # A group that does not fit gets a micro-batch of its own.
            count = max(int(full.argmax()), 1) if full.any() else len(full)
            parts.append(slice(int(units[first]), int(units[first + count])))
            first += count
        return parts

    def batches(self, examples: PackedExamples) -> list[Batch]:
        """The micro-batches of all examples."""
        return [self.collate(examples, part) for part in self.divide(examples)]

    def collate(self, examples: PackedExamples, part: slice) -> Batch:
        """One micro-batch as tensors; that of an empty part is all padding."""
        starts = examples.starts[part.start : part.stop + 1]
        begin, end, lengths = int(starts[0]), int(starts[-1]), np.diff(starts)
        size = max(self.tokens, end - begin) if self.constant else end - begin or self.max_seqlen
        padding = _padding_lengths(size - (end - begin), self.max_seqlen)
        columns = {
            name: _padded(values[begin:end], size) for name, values in examples.columns.items()
        }
        if padding:
            columns["position_ids"].numpy()[end - begin :] = np.concatenate(
                [np.arange(length) for length in padding]
            )
        empty = max(0, self.blocks - len(lengths) - len(padding)) if self.constant else 0
        all_lengths = np.concatenate([lengths, padding, [0] * empty]).astype(np.int64)
        cu_seqlens = offsets(all_lengths)
        targets = {n: self._slots(n, t, part, cu_seqlens) for n, t in examples.targets.items()}
        dense = len(lengths) > 0 and not padding and bool((all_lengths == self.max_seqlen).all())
        extra: dict[str, Any] = {}
        for slots in targets.values():
            if "queries" in slots:
                extra["queries"] = slots["queries"].view(len(all_lengths), -1)
        if examples.reverse is not None:
            reverse = np.pad(examples.reverse[part], (0, len(all_lengths) - len(lengths)))
            extra["reverse"] = torch.from_numpy(reverse)
        inputs = Input(
            **columns,
            cu_seqlens=torch.from_numpy(cu_seqlens.astype(np.int32)),
            max_seqlen=self.max_seqlen,
            dense=dense,
            real=torch.tensor(end - begin),
            causal=examples.causal,
            **extra,
        )
        return Batch(inputs, targets)

    def _slots(self, name: str, targets: Targets, part: slice, begins: Ints) -> dict[str, Tensor]:
        """A part's targets, padded, with positions counted over the micro-batch."""
        starts = targets.starts[part.start : part.stop + 1]
        begin, end = int(starts[0]), int(starts[-1])
        # Without any target each block has an ignored one: a query stream needs rows.
        needed = end - begin or len(begins) - 1
        size = max(self.slots[name], end - begin) if self.constant else needed
        base = np.repeat(begins[: len(starts) - 1], np.diff(starts))
        columns = {}
        for column, values in targets.columns.items():
            rows = values[begin:end] + base if column in Targets.POSITIONS else values[begin:end]
            fill = Targets.IGNORED if column.endswith("labels") else 0
            columns[column] = _padded(rows, size, fill)
        return columns


def pinned(batch: Batch) -> Batch:
    """The batch in pinned memory, from which a GPU copies while the CPU goes on."""
    return map_arrays(batch, lambda tensor: tensor.pin_memory())


def moved(batch: Batch, device: torch.device) -> Batch:
    """The batch copied to a device, asynchronously."""
    return map_arrays(batch, lambda tensor: tensor.to(device, non_blocking=True))


def map_arrays(batch: Batch, change: Callable[[Any], Any]) -> Batch:
    """The batch with each of its tensors changed; or arrays, as it travels between processes."""
    inputs = batch.input._asdict().items()
    values = {name: change(v) for name, v in inputs if isinstance(v, Tensor | np.ndarray)}
    targets = {
        name: {column: change(value) for column, value in columns.items()}
        for name, columns in batch.targets.items()
    }
    return Batch(batch.input._replace(**values), targets)


def batch_shape(
    examples: PackedExamples,
    *,
    tokens: int,
    blocks: int,
    max_seqlen: int,
    constant: bool,
    filled: int | None = None,
    spare: float = 0.0,
) -> BatchShape:
    """The shape of micro-batches of at most `tokens`, estimated from a sample of blocks.

    `blocks` is how many a rank has in a step, or it is `filled` with at most so many tokens: a step
    is cut into as few micro-batches as it takes, each slightly larger than an even part, so that
    there is little padding. Sizes are rounded up: other samples should agree. Later groups may be
    larger than the sampled ones: there is room for `spare` standard deviations above their mean.
    """
    lengths = np.diff(examples.starts)
    mean, spread = float(lengths.mean()), float(lengths.std())
    groups = np.diff(examples.starts[examples.units])
    sizes = np.diff(examples.units)
    largest = int(groups.max())
    if spare and spread:
        # As if the blocks of a row, which may be the same, were all of one length.
        expected = sizes.max() * mean + spare * spread * 2 * sizes.max() ** 0.5
        largest = max(largest, min(int(expected), int(sizes.max()) * max_seqlen))
    max_tokens = max(tokens, max_seqlen, largest)
    if lengths.min() == max_seqlen and not filled:
        rows = max(-(-blocks // -(-blocks // (max_tokens // max_seqlen))), largest // max_seqlen)
        size, count = rows * max_seqlen, rows
    else:
        expected = filled or min(blocks * mean + 3 * spread * blocks**0.5, blocks * max_seqlen)
        # Blocks are not divided: each of several micro-batches has some room that none of them fits
        # into. A filled step has no other room to spare.
        spared = (0.75 if filled else 0.5) * max_seqlen if expected > max_tokens else 0
        most = max(max_tokens - spared, max_seqlen) if filled else max_tokens
        even = expected / ceil(expected / most) + spared
        size = max(max_seqlen, largest, min(_rounded(even, 256), max_tokens))
        # A group may be alone in a micro-batch, followed by padding.
        alone = sizes - (groups - size) // max_seqlen
        count = max(_rounded(1.2 * size / mean + 4, 32), int(alone.max()))
    slots = {}
    for name, targets in examples.targets.items():
        rate = int(targets.starts[-1]) / examples.tokens
        expected = size * rate
        # Blocks may differ in their rate by more than chance.
        variance = size / mean * float(np.var(np.diff(targets.starts) - rate * lengths))
        needed = min(size, int(1.02 * expected + 3 * max(expected, variance) ** 0.5))
        largest_group = int(np.diff(targets.starts[examples.units]).max())
        slots[name] = max(_rounded(needed, 64), largest_group)
    return BatchShape(size, count, slots, max_seqlen, constant)


def _rounded(number: float, unit: int) -> int:
    """A number rounded up to a multiple of a unit."""
    return -(-int(number) // unit) * unit


def _concatenate_targets(parts: Sequence[Targets], *, even: bool) -> Targets:
    """The targets of several packs; if `even`, packs with equal rows are padded to the widest."""
    sizes = [np.diff(part.starts) for part in parts]
    even = even and all(len(size) and (size == size[0]).all() for size in sizes)
    width = max(int(size[0]) for size in sizes) if even else 0
    columns = {
        name: np.concatenate(
            [_pad_rows(part.columns[name], len(size), width, name) if even else part.columns[name]
             for part, size in zip(parts, sizes, strict=True)]
        )
        for name in parts[0].columns
    }  # fmt: skip
    rows = [np.full_like(size, width) for size in sizes] if even else sizes
    return Targets(offsets(np.concatenate(rows)), columns)


def _select_targets(targets: Targets, blocks: Ints) -> Targets:
    """The targets of these blocks."""
    sizes = targets.starts[blocks + 1] - targets.starts[blocks]
    slots = ranges(targets.starts[blocks], sizes)
    columns = {name: values[slots] for name, values in targets.columns.items()}
    return Targets(offsets(sizes), columns)


def _pad_rows(values: Ints, rows: int, width: int, name: str) -> Ints:
    """Rows padded to a width."""
    square = values.reshape(rows, -1)
    fill = Targets.IGNORED if name.endswith("labels") else 0
    return np.pad(square, ((0, 0), (0, width - square.shape[1])), constant_values=fill).reshape(-1)


def _join_offsets(starts: Sequence[Ints]) -> Ints:
    """The offsets of several packs as those of one."""
    return offsets(np.concatenate([np.diff(offset) for offset in starts]))


def _count_labels(columns: Mapping[str, Ints]) -> int:
    labels = [values for name, values in columns.items() if name.endswith("labels")]
    return int(sum((values != Targets.IGNORED).sum() for values in labels))


def _padding_lengths(tokens: int, max_seqlen: int) -> list[int]:
    """The lengths of the dummy blocks that make up `tokens`."""
    full, rest = divmod(tokens, max_seqlen)
    return [max_seqlen] * full + ([rest] if rest else [])


def _padded(values: Array, size: int, fill: int = 0) -> Tensor:
    """The values as a tensor padded to `size` rows; floats become float64, all else int64."""
    kind = torch.float64 if values.dtype.kind == "f" else torch.int64
    out = torch.empty((size, *values.shape[1:]), dtype=kind)
    rows = out.numpy()
    rows[: len(values)] = values
    rows[len(values) :] = fill
    return out

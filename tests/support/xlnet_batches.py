"""Batches for XLNet's encoder, and its rule of who sees whom as the paper's words have it."""

from __future__ import annotations

import torch
from torch import Tensor

from clozelab.contracts import Input
from clozelab.encoder.relative import Relative

PLAIN, SPECIAL, TARGET = 0, 1, 2


def shape(
    *, layers: int = 2, heads: int = 2, width: int = 8, inner: int = 12, memory: int = 6
) -> Relative:
    """A tiny encoder without dropout."""
    return Relative(
        layers=layers,
        heads=heads,
        hidden_size=width,
        intermediate_size=inner,
        memory=memory,
        dropout=0.0,
        attention_dropout=0.0,
    )


def batch(
    lengths: list[int], *, seed: int = 0, vocabulary: int = 50, remembered: Tensor | None = None
) -> Input:
    """Blocks of those lengths with targets, specials, segments; every second one is reversed."""
    draw = torch.Generator().manual_seed(seed)
    parts: dict[str, list[Tensor]] = {"position_ids": [], "segments": [], "order": [], "kinds": []}
    for length in lengths:
        first = (length + 1) // 2
        halves = [first, length - first]
        parts["position_ids"].append(torch.arange(length))
        segments = (torch.arange(length) >= first + 1).long()
        segments[-1:] = 2
        parts["segments"].append(segments)
        parts["order"] += [torch.randperm(half, generator=draw) for half in halves]
        kinds = torch.randint(0, 3, (length,), generator=draw)
        parts["kinds"].append(kinds)
    flat = {name: torch.cat(pieces) for name, pieces in parts.items()}
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    return Input(
        ids=torch.randint(0, vocabulary, (sum(lengths),), generator=draw),
        cu_seqlens=starts,
        max_seqlen=max(lengths),
        dense=len(set(lengths)) == 1,
        reverse=torch.arange(len(lengths)) % 2 == 1,
        queries=slots(flat["kinds"], starts),
        memory=remembered,
        **flat,
    )


def slots(kinds: Tensor, starts: Tensor) -> Tensor:
    """[B, T] packed positions of the targets; a block with fewer repeats its first place."""
    bounds = list(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True))
    positions = [[at for at in range(a, b) if kinds[at] == TARGET] for a, b in bounds]
    most = max(1, max(len(each) for each in positions))
    rows = zip(positions, bounds, strict=True)
    return torch.tensor([each + [a] * (most - len(each)) for each, (a, _) in rows])


def plain(batch_input: Input) -> Input:
    """The same blocks as a task reads them."""
    return batch_input._replace(order=None, kinds=None, reverse=None, queries=None, memory=None)


def sees(batch_input: Input, block: int) -> Tensor:
    """[L, L] who sees whom in a block before anyone sees itself: card by card, pair by pair."""
    assert batch_input.order is not None and batch_input.kinds is not None
    a, b = int(batch_input.cu_seqlens[block]), int(batch_input.cu_seqlens[block + 1])
    length, first = b - a, (b - a + 1) // 2
    out = torch.zeros(length, length, dtype=torch.bool)
    for i in range(length):
        for j in range(length):
            kind_i, kind_j = int(batch_input.kinds[a + i]), int(batch_input.kinds[a + j])
            before = bool(batch_input.order[a + j] < batch_input.order[a + i])
            if (i < first) != (j < first):
                out[i, j] = j < first
            elif kind_j == PLAIN:
                out[i, j] = True
            elif kind_i == PLAIN:
                out[i, j] = False
            else:
                out[i, j] = before or (i == j and kind_i == SPECIAL)
    return out


def memories(layers: int, blocks: int, size: int, width: int, *, seed: int = 5) -> Tensor:
    """States to remember."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(layers, blocks, size, width, generator=draw, dtype=torch.float64)

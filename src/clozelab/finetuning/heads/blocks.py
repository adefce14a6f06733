"""The blocks of a batch as heads need them: which one a token is in, and the mean of its vectors.

No shape here hangs on the data, so dummies and empty blocks are rows like any other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clozelab.contracts import Input
from clozelab.finetuning.heads.losses import wide


def blocks(inputs: Input) -> Tensor:
    """[N] the block that each token is in: how many have ended where it stands."""
    # No searchsorted: the compiler has none for a part of a tensor.
    ends = inputs.starts[1:].long()
    ended = ends.new_zeros(len(inputs.ids) + 1).index_add(0, ends, torch.ones_like(ends))
    return ended.cumsum(0)[:-1]


def block_of(inputs: Input, tokens: Tensor) -> Tensor:
    """The block of some tokens, by their place in the batch."""
    return blocks(inputs).index_select(0, tokens)


def means(states: Tensor, inputs: Input) -> Tensor:
    """[B, W] the mean vector of each block; nothing for an empty one."""
    x = wide(states)
    lengths = inputs.starts.diff()
    if inputs.seen is not None:
        x = x.where(inputs.seen.flatten()[:, None], 0.0)
        lengths = inputs.seen.sum(1)
    empty = x.new_zeros(len(inputs.starts) - 1, x.shape[1])
    sums = empty.index_add(0, blocks(inputs), x)
    return (sums / lengths.clamp(min=1)[:, None]).to(states.dtype)

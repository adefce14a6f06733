"""The blocks of a batch as heads need them: which one a token is in, and the mean of its vectors.

No shape here hangs on the data, so dummies and empty blocks are rows like any other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clozelab.contracts import Input
from clozelab.tasks.heads.judging import wide


def block_of(given: Input, tokens: Tensor) -> Tensor:
    """The block that each of some tokens, by their place in the batch, is in."""
    return torch.searchsorted(
        given.starts[1:].contiguous(), tokens.to(given.starts.dtype), right=True
    )


def every(given: Input) -> Tensor:
    """0, 1, …: each token's place in the batch."""
    return torch.arange(len(given.ids), device=given.ids.device, dtype=given.starts.dtype)


def means(states: Tensor, given: Input) -> Tensor:
    """[B, W] the mean vector of each block; nothing for an empty one."""
    x = wide(states)
    lengths = given.starts.diff()
    if given.seen is not None:
        x = x.where(given.seen.flatten()[:, None], 0.0)
        lengths = given.seen.sum(1)
    empty = x.new_zeros(len(given.starts) - 1, x.shape[1])
    sums = empty.index_add(0, block_of(given, every(given)), x)
    return (sums / lengths.clamp(min=1)[:, None]).to(states.dtype)

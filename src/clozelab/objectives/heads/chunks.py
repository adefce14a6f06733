"""Sums over many rows of logits, a chunk of rows at a time, to save memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LOGITS = 2**27  # values in a chunk: half a gigabyte in single precision


def add_up(
    part: Callable[..., tuple[Tensor, ...]], rows: tuple[Tensor, ...], *, vocabulary: int
) -> tuple[Tensor, ...]:
    """The sums of what `part` returns for each chunk of the rows.

    In training the logits of a chunk are recomputed in the backward pass.
    """
    size = max(1, LOGITS // vocabulary)
    sums: tuple[Tensor, ...] = ()
    for chunk in zip(*(torch.split(x, size) for x in rows), strict=True):
        if torch.is_grad_enabled() and len(rows[0]) > size:
            chunk_sums = checkpoint(part, *chunk, use_reentrant=False, preserve_rng_state=False)
        else:
            chunk_sums = part(*chunk)
        sums = tuple(a + b for a, b in zip(sums, chunk_sums, strict=True)) if sums else chunk_sums
    return sums

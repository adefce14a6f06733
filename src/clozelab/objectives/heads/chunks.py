"""Sums over many rows of logits, a stretch of rows at a time, so that they never all exist."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LOGITS = 2**27  # values in a stretch: half a gigabyte in single precision


def add_up(
    part: Callable[..., tuple[Tensor, ...]], rows: tuple[Tensor, ...], *, vocabulary: int
) -> tuple[Tensor, ...]:
    """What `part` makes of the rows, stretch by stretch, added up.

    Where a gradient is wanted, the logits of a stretch are made again on the way back.
    """
    size = max(1, LOGITS // vocabulary)
    sums: tuple[Tensor, ...] = ()
    for stretch in zip(*(torch.split(x, size) for x in rows), strict=True):
        if torch.is_grad_enabled() and len(rows[0]) > size:
            more = checkpoint(part, *stretch, use_reentrant=False, preserve_rng_state=False)
        else:
            more = part(*stretch)
        sums = tuple(a + b for a, b in zip(sums, more, strict=True)) if sums else more
    return sums

"""Which tokens' states the heads read: the last layer is computed only for these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from clozelab.contracts import MOST_CHOSEN

Columns = Mapping[str, dict[str, Tensor]]  # the columns of every objective's targets
Reads = Mapping[str, tuple[str, ...] | None]  # by objective, as the part states it

_IDLE = 16  # rows if no state is read: kernels need some, and DDP every gradient


class StatesRead(NamedTuple):
    """The tokens whose states are read."""

    at: Tensor  # [T] packed positions, one column after another; a token may be there twice
    targets: dict[str, dict[str, Tensor]]  # with positions that index these


def reading(targets: Columns, reads: Reads, tokens: int) -> StatesRead | None:
    """The tokens that the objectives of `reads` read; None: all, or nearly all."""
    columns = [
        (name, column, targets[name][column]) for name in reads for column in reads[name] or ()
    ]
    size = sum(len(at) for _, _, at in columns)
    if None in reads.values() or max(size, _IDLE) > MOST_CHOSEN * tokens:
        return None
    counted = {name: dict(of) for name, of in targets.items()}
    begin = 0
    for name, column, at in columns:
        end = begin + len(at)
        counted[name][column] = torch.arange(begin, end, device=at.device)
        begin = end
    if not size:
        some = next(values for of in targets.values() for values in of.values())
        return StatesRead(torch.zeros(_IDLE, dtype=torch.long, device=some.device), counted)
    return StatesRead(torch.cat([at for _, _, at in columns]), counted)

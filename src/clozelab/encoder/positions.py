"""Relative positions: rotations of queries and keys, penalties, and rows of a table.

RoPE (arXiv:2104.09864, §3.2) rotates pairs of elements by angles that grow with the position, so
that a product of a query and a key depends on their distance. ALiBi (arXiv:2108.12409, §3)
subtracts the distance, times a slope of the head, from each score. DeBERTa (arXiv:2006.03654, §3.1)
multiplies queries and keys with a table that has rows for distances.
"""

from __future__ import annotations

from math import log2
from typing import NamedTuple

import torch
from torch import Tensor


class Rotation(NamedTuple):
    """The angles of every token; element i of a head is paired with the one half a head on."""

    cos: Tensor  # [N, 1, A / 2]
    sin: Tensor

    def at(self, tokens: Tensor) -> Rotation:
        """The angles of some tokens."""
        return Rotation(self.cos.index_select(0, tokens), self.sin.index_select(0, tokens))


def rotation(position_ids_N: Tensor, size: int, theta: float, dtype: torch.dtype) -> Rotation:
    """The angles for heads of that size; the slowest pair turns once in ~2π · theta positions."""
    exponents = torch.arange(0, size, 2, device=position_ids_N.device, dtype=dtype) / size
    angles = position_ids_N.to(dtype)[:, None, None] * theta**-exponents
    return Rotation(angles.cos(), angles.sin())


def rotate(x_NHA: Tensor, by: Rotation) -> Tensor:
    """The heads rotated, in the precision of the angles."""
    first, second = x_NHA.to(by.cos.dtype).chunk(2, dim=-1)
    out = torch.cat([first * by.cos - second * by.sin, second * by.cos + first * by.sin], dim=-1)
    return out.to(x_NHA.dtype)


def alibi_slopes(heads: int) -> list[float]:
    """The slope of each head: powers of 2 from 2^(−8 / n) to 2^−8 where n heads are a power of 2.

    Other numbers of heads use those of the power below, and every other one of twice as many.
    """
    power = 2 ** int(log2(heads))
    slopes = [2 ** (-8 * number / power) for number in range(1, power + 1)]
    between = [2 ** (-4 * number / power) for number in range(1, 2 * power, 2)]
    return slopes + between[: heads - power]


def rows_of_distances(positions: int, *, span: int, reach: int, buckets: bool) -> Tensor:
    """[2 · positions − 1] the row of each distance, the lowest first, in a table of 2 · span rows.

    A distance is the query's position minus the key's. With buckets those up to span / 2 have a
    row each, and the others, up to `reach`, share rows by their logarithm; without, those of `span`
    and more share the last row. In single precision, as in transformers, since rounding can decide
    the bound of a bucket.
    """
    distances = torch.arange(1 - positions, positions)
    if buckets:
        near = span // 2
        ratios = torch.log(distances.abs().clamp(min=near) / near)
        steps = ratios / torch.log(torch.tensor((reach - 1) / near)) * (near - 1)
        far = distances.sign() * (steps.ceil().long() + near)
        distances = torch.where(distances.abs() <= near, distances, far)
    return (distances + span).clamp(0, 2 * span - 1)


def nearer_rows(positions: int, *, span: int, reach: int, buckets: bool) -> int:
    """The largest distance such that up to it, the row of d lies within d of the middle row.

    It is the longest, unless there are so many buckets that some stay empty.
    """
    with torch.device("cpu"):
        rows = rows_of_distances(positions, span=span, reach=reach, buckets=buckets)
        distances = torch.arange(1 - positions, positions).abs()
    farther = distances[(rows - span).abs() > distances]
    return int(farther.min()) - 1 if len(farther) else positions - 1

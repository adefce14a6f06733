"""What is held out, of documents of any number and length: the share that was asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from clozelab.packed import offsets
from clozelab.text.store.parting import Parting, held_out


def shard(lengths: list[list[int]]) -> Any:
    """A shard of documents whose sentences have so many tokens."""
    return SimpleNamespace(
        documents=offsets([len(document) for document in lengths]),
        sentences=offsets([length for document in lengths for length in document]),
    )


def parted(lengths: list[list[int]], *, share: float, seed: int = 0) -> tuple[Parting, Any]:
    draw = np.random.default_rng(seed)
    digests = draw.integers(0, 2**64, (len(lengths), 2), dtype=np.uint64)
    sizes = np.array([[sum(document), len(document)] for document in lengths]).reshape(-1, 2)
    return held_out(digests, sizes, [shard(lengths)], share=share), sizes


def drawn(seed: int) -> list[list[int]]:
    """Documents of some lengths, a few or many, alike or not, some of them empty."""
    draw = np.random.default_rng(seed)
    count = int(draw.choice([1, 2, 3, 5, 30, 400]))
    sizes = np.exp(draw.normal(draw.uniform(3, 7), draw.choice([0.1, 2.0]), count)).astype(int)
    return [draw.integers(1, 60, min(size, 20_000)).tolist() for size in sizes]


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("seed", range(30))
def test_the_share_is_met(seed: int, share: float) -> None:
    lengths = drawn(seed)
    parting, sizes = parted(lengths, share=share, seed=seed)
    sides = [parting.totals(sizes, held=held) for held in (False, True)]
    total = int(sizes[:, 0].sum())
    assert sum(side[0] for side in sides) == total
    assert sum(side[1] for side in sides) == int(sizes[:, 1].sum())
    assert sides[0][0] > 0 or not total
    if parting.parts:
        # A stretch is off by half a sentence at either end, and there are few or many of them.
        assert abs(sides[1][0] - share * total) <= max(60, 0.1 * share * total)
    elif total > 6000:
        assert share / 2 <= sides[1][0] / total <= share * 2


@pytest.mark.parametrize("seed", range(10))
def test_the_pieces_of_both_sides_are_the_text(seed: int) -> None:
    lengths = drawn(seed)
    parting, sizes = parted(lengths, share=0.07, seed=seed)
    whole = shard(lengths)
    pieces = []
    for held in (False, True):
        begin, count = parting.sentences(whole, 0, held=held)
        assert len(begin) == parting.totals(sizes, held=held)[2]
        pieces += zip(begin.tolist(), (begin + count).tolist(), strict=True)
    pieces.sort()
    assert [first for first, _ in pieces] == [0, *(stop for _, stop in pieces[:-1])]
    assert pieces[-1][1] == len(whole.sentences) - 1
    starts = {first for first, _ in pieces}
    assert {first for first in whole.documents[:-1].tolist() if first < pieces[-1][1]} <= starts

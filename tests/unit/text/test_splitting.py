"""What is held out, of documents of any number and length: the share that was asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from clozelab.contracts import Ints
from clozelab.packed import offsets
from clozelab.text.store.splitting import HeldOutSplit, split_documents


def shard(lengths: list[Ints]) -> Any:
    """A shard of documents whose sentences have so many tokens."""
    return SimpleNamespace(
        documents=offsets([len(document) for document in lengths]),
        sentences=offsets(np.concatenate(lengths)),
        rows=np.zeros(0, dtype=bool),
    )


def parted(lengths: list[Ints], *, share: float, seed: int = 0) -> tuple[HeldOutSplit, Any]:
    draw = np.random.default_rng(seed)
    digests = draw.integers(0, 2**64, (len(lengths), 2), dtype=np.uint64)
    sizes = np.array([[document.sum(), len(document)] for document in lengths])
    return split_documents(digests, sizes, [shard(lengths)], share=share), sizes


def side(split: HeldOutSplit, lengths: list[Ints], *, held: bool) -> tuple[int, int]:
    """Tokens and sentences of a side."""
    whole = shard(lengths)
    begin, count = split.sentences(whole, 0, held=held)
    tokens = whole.sentences[begin + count] - whole.sentences[begin]
    return int(tokens.sum()), int(count.sum())


def drawn(seed: int) -> list[Ints]:
    """Documents of some lengths, a few or many, alike or not, some of them empty."""
    draw = np.random.default_rng(seed)
    count = int(draw.choice([1, 2, 3, 5, 30, 400]))
    sizes = np.exp(draw.normal(draw.uniform(3, 7), draw.choice([0.1, 2.0]), count)).astype(int)
    return [draw.integers(1, 60, min(size, 20_000)) for size in sizes]


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("seed", range(30))
def test_the_share_is_met(seed: int, share: float) -> None:
    lengths = drawn(seed)
    split, sizes = parted(lengths, share=share, seed=seed)
    sides = [side(split, lengths, held=held) for held in (False, True)]
    total = int(sizes[:, 0].sum())
    assert sum(side[0] for side in sides) == total
    assert sum(side[1] for side in sides) == int(sizes[:, 1].sum())
    assert sides[0][0] > 0 or not total
    if split.parts:
        # A stretch is off by half a sentence at either end, and there are few or many of them.
        assert abs(sides[1][0] - share * total) <= max(60, 0.1 * share * total)
    elif total > 6000:
        assert share / 1.2 <= sides[1][0] / total <= share * 1.2


@pytest.mark.parametrize("seed", range(30))
def test_a_row_of_texts_is_never_cut(seed: int) -> None:
    draw = np.random.default_rng(seed)
    lengths = [draw.integers(1, 60, draw.integers(0, 4)) for _ in range(draw.integers(1, 40))]
    lengths.append(np.array([5, 900]))  # of such lengths a stretch is needed
    digests = draw.integers(0, 2**64, (len(lengths), 2), dtype=np.uint64)
    sizes = np.array([[document.sum(), len(document)] for document in lengths])
    rows = shard(lengths)
    rows.rows = np.ones(len(lengths), dtype=bool)
    for share in (0.05, 0.3, 0.7):
        assert not split_documents(digests, sizes, [rows], share=share).parts


def uneven(seed: int, count: int) -> list[Ints]:
    """So many documents, of which a few have most of the text."""
    draw = np.random.default_rng(seed)
    sizes = np.exp(draw.normal(4, 1.5, count)).astype(int) + 1
    return [draw.integers(5, 40, size) for size in sizes]


@pytest.mark.parametrize(
    ("count", "share"),
    [(40, 0.5), (100, 0.3), (200, 0.2), pytest.param(2500, 0.01, marks=pytest.mark.thorough)],
)
def test_the_share_is_met_by_many_documents_of_very_unequal_lengths(
    count: int, share: float
) -> None:
    moved = cut = 0
    for seed in range(30):
        lengths = uneven(seed, count)
        digests = np.random.default_rng(seed).integers(0, 2**64, (count, 2), dtype=np.uint64)
        sizes = np.array([[document.sum(), len(document)] for document in lengths])
        split = split_documents(digests, sizes, [shard(lengths)], share=share)
        held, total = side(split, lengths, held=True)[0], int(sizes[:, 0].sum())
        assert share / 1.2 <= held / total <= share * 1.2
        drawn = digests[:, 1] / 2.0**64 < share
        plain = sizes[drawn, 0].sum() / total
        if drawn.sum() >= 20 and share / 1.2 <= plain <= share * 1.2:
            assert (split.whole == drawn).all() and not split.parts, "it was right as it was"
        elif not split.parts and (split.whole != drawn).any():
            moved += 1
            inside, outside = digests[split.whole, 1], digests[~split.whole, 1]
            assert inside.max() < outside.min(), "documents keep their sides but for a few"
        cut += bool(split.parts)
    assert moved and (cut or count == 2500)


def test_equal_documents_stay_together_when_the_limit_is_moved() -> None:
    draw = np.random.default_rng(0)
    digests = np.repeat(draw.integers(0, 2**64, (200, 2), dtype=np.uint64), 2, axis=0)
    for seed in range(30):
        lengths = [document for document in uneven(seed, 200) for _ in range(2)]
        sizes = np.array([[document.sum(), len(document)] for document in lengths])
        whole = split_documents(digests, sizes, [shard(lengths)], share=0.2).whole
        assert (whole[::2] == whole[1::2]).all()


@pytest.mark.parametrize("seed", range(10))
def test_the_pieces_of_both_sides_are_the_text(seed: int) -> None:
    lengths = drawn(seed)
    split, _ = parted(lengths, share=0.07, seed=seed)
    whole = shard(lengths)
    pieces = []
    for held in (False, True):
        begin, count = split.sentences(whole, 0, held=held)
        assert (count > 0).all()
        pieces += zip(begin.tolist(), (begin + count).tolist(), strict=True)
    pieces.sort()
    assert [first for first, _ in pieces] == [0, *(stop for _, stop in pieces[:-1])]
    assert pieces[-1][1] == len(whole.sentences) - 1
    starts = {first for first, _ in pieces}
    assert {first for first in whole.documents[:-1].tolist() if first < pieces[-1][1]} <= starts

"""Rarity-weighted masking, card A9: exact totals, in proportion to count^(−smoothing)."""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from support.masked_blocks import (
    WORDS,
    assert_even,
    assert_shares,
    flags,
    hide,
    make_blocks,
    per_block,
    repeat,
)
from support.synthetic_documents import vocabulary

from clozelab.errors import UserError
from clozelab.masking.token import Rarity


def test_each_block_hides_exactly_its_share() -> None:
    blocks = make_blocks([[1] * n for n in range(1, 300)])
    counts = per_block(blocks, flags(blocks, hide(Rarity(), blocks)))
    assert counts.tolist() == [min(n, ceil(0.15 * (n + 2))) for n in range(1, 300)]


def test_a_batch_hides_exactly_its_share_unevenly_over_its_blocks() -> None:
    blocks = make_blocks([[1] * n for n in range(50, 150)])
    counts = per_block(blocks, flags(blocks, hide(Rarity(scope="batch"), blocks)))
    assert counts.sum() == ceil(0.15 * len(blocks.ids))
    assert (counts != np.ceil(0.15 * blocks.lengths)).sum() > 50


def test_where_the_share_exceeds_the_content_all_of_it_is_hidden() -> None:
    blocks = make_blocks([[0] * 40 + [1] * 3])
    for part in (Rarity(), Rarity(scope="batch")):
        assert hide(part, blocks).positions.tolist() == [41, 42, 43]


def test_without_smoothing_every_token_is_as_likely_as_any_other() -> None:
    blocks = repeat([1] * 48, 10_000)
    chosen = flags(blocks, hide(Rarity(smoothing=0.0), blocks)).reshape(10_000, 50)
    assert_even(chosen[:, 1:-1].sum(axis=0), 10_000, 8)


def test_one_token_is_drawn_in_proportion_to_its_weight() -> None:
    counts = np.zeros(1000, dtype=np.int64)
    counts[10:16] = [0, 1, 2, 8, 30, 100]  # an unseen token counts as seen once
    blocks = repeat([1] * 6, 20_000)
    blocks = replace(blocks, ids=np.where(blocks.fixed, blocks.ids, blocks.positions + 9))
    hidden = Rarity(mask_rate=0.1).hide(blocks, 3, vocabulary=replace(WORDS, counts=counts))
    assert len(hidden.positions) == 20_000
    seen = np.bincount(hidden.positions % 8 - 1)
    assert_shares(seen, np.maximum(counts[10:16], 1) ** -0.7)


def test_the_second_token_is_drawn_in_proportion_among_the_rest() -> None:
    counts = np.ones(1000, dtype=np.int64)
    counts[10:13] = [1, 4, 16]
    blocks = repeat([1] * 3, 20_000)
    blocks = replace(blocks, ids=np.where(blocks.fixed, blocks.ids, blocks.positions + 9))
    hidden = Rarity(mask_rate=0.4, smoothing=0.5).hide(
        blocks, 3, vocabulary=replace(WORDS, counts=counts)
    )
    left = per_block(blocks, ~flags(blocks, hidden) * (blocks.positions - 1) * ~blocks.fixed)
    weights = np.array([1, 1 / 2, 1 / 4])
    share = weights / weights.sum()
    chance = [  # which one is left: the other two came in one order or the other
        share[a] * share[b] / (1 - share[a]) + share[b] * share[a] / (1 - share[b])
        for a, b in [(1, 2), (0, 2), (0, 1)]
    ]
    assert_shares(np.bincount(left, minlength=3), chance)


def test_rare_tokens_are_hidden_more_often() -> None:
    rng = np.random.default_rng(0)
    blocks = repeat([1] * 510, 300)
    counts = (1e6 / np.arange(1, 1001) ** 1.5).astype(np.int64)
    ids = np.minimum(rng.zipf(1.3, len(blocks.ids)) + 5, 999)
    blocks = replace(blocks, ids=np.where(blocks.fixed, blocks.ids, ids).astype(np.int32))
    hidden = Rarity().hide(blocks, 1, vocabulary=replace(WORDS, counts=counts))
    seen = np.bincount(ids[~blocks.fixed], minlength=1000)
    rate = np.bincount(blocks.ids[hidden.positions], minlength=1000) / np.maximum(seen, 1)
    common = np.flatnonzero(seen >= 50)  # their counts fall as ids rise
    spearman = np.corrcoef(np.argsort(np.argsort(rate[common])), -np.arange(len(common)))[0, 1]
    assert spearman < -4.5 / (len(common) - 1) ** 0.5  # what ranks without relation rarely reach


@pytest.mark.parametrize("scope", ["block", "batch"])
def test_it_needs_to_know_how_often_tokens_occur(scope: str) -> None:
    part = Rarity(scope=scope)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="--corpus"):
        part.hide(make_blocks([[1]]), 1, vocabulary=vocabulary(counts=False))

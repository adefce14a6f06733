"""Phrases and entities all or nothing, card A6: levels, coins, budgets and stages."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.corpora import build
from support.masked_blocks import (
    assert_shares,
    flags,
    groups,
    hide,
    make_blocks,
    per_block,
    repeat,
    with_units,
)
from support.texts import tokenizer

from clozelab import data
from clozelab.blocks.sentences import DocSentences
from clozelab.contracts import Blocks, Mark
from clozelab.errors import UserError
from clozelab.keys import key
from clozelab.masking.knowledge import Knowledge
from clozelab.masking.token import Token
from clozelab.masking.words import WholeWord

RNG = np.random.default_rng(5)
PROSE = [RNG.geometric(0.75, RNG.integers(60, 300)).tolist() for _ in range(80)]
BLOCKS = with_units(make_blocks(PROSE))
BITS = {"word": Mark.SEGMENT, "phrase": Mark.PHRASE, "entity": Mark.ENTITY}


def without_units(blocks: Blocks) -> Blocks:
    """Every token a unit by itself at every level: what an empty gazetteer leaves."""
    return replace(blocks, marks=np.full_like(blocks.marks, Mark.ALL))


@pytest.mark.parametrize("choose", ["budget", "bernoulli"])
@pytest.mark.parametrize("level", list(BITS))
def test_units_of_the_level_are_hidden_whole(level: str, choose: str) -> None:
    part = Knowledge(levels={level: 1.0}, choose=choose)  # type: ignore[arg-type]
    chosen = flags(BLOCKS, hide(part, BLOCKS))
    several = 0
    for mine in groups(BLOCKS, BITS[level]):
        for unit in mine:
            assert chosen[unit].all() or not chosen[unit].any()
            several += int(len(unit) > 1 and chosen[unit].all())
    assert several > 100


def test_each_block_keeps_to_the_level_picked_for_it() -> None:
    part = Knowledge(levels={"word": 1.0, "phrase": 1.0, "entity": 1.0})
    picked = part.picked(BLOCKS, 1)
    chosen = flags(BLOCKS, hide(part, BLOCKS, 1))
    by_level = [groups(BLOCKS, bit) for bit in BITS.values()]
    assert set(picked) == {0, 1, 2}
    for row, level in enumerate(picked):
        for unit in by_level[level][row]:
            assert chosen[unit].all() or not chosen[unit].any()


def test_the_budget_is_missed_by_less_than_the_longest_unit() -> None:
    chosen = flags(BLOCKS, hide(Knowledge(levels={"entity": 1.0}), BLOCKS))
    counts = per_block(BLOCKS, chosen)
    wanted = np.rint(0.15 * BLOCKS.lengths)
    longest = [max(len(unit) for unit in units) for units in groups(BLOCKS, Mark.ENTITY)]
    assert (np.abs(counts - wanted) < longest).all()
    assert counts.sum() == pytest.approx(wanted.sum(), rel=0.03)


NAME = [1] * 6 + [9] + [1] * 3  # a name of nine in a sentence whose budget is three


@pytest.mark.parametrize("name", [2, 3, 9, 40])
def test_a_unit_is_hidden_as_often_as_any_other_however_long(name: int) -> None:
    """Also where it is longer than the block's budget, and over the epochs as over the blocks."""
    sizes = [1] * 6 + [name] + [1] * 5
    blocks = repeat(sizes, 4000)
    draws = [hide(Knowledge(levels={"word": 1.0}), blocks, key(0, "mask", e)) for e in range(3)]
    chosen = np.stack([flags(blocks, hidden).reshape(4000, -1)[:, 1:-1] for hidden in draws])
    budget = max(1, round(0.15 * (sum(sizes) + 2)))
    share, drawn = budget / sum(sizes), 3 * 4000
    firsts = np.cumsum([0, *sizes[:-1]])
    rates = chosen[..., firsts].mean(axis=(0, 1))
    assert np.abs(rates - share).max() < 4.5 * (share * (1 - share) / drawn) ** 0.5
    whole = chosen[..., 6 : 6 + name]
    assert (whole.all(axis=-1) == whole.any(axis=-1)).all()  # never a part of it
    counts = chosen.sum(axis=-1)
    assert abs(counts.mean() - budget) < 4.5 * counts.std() / drawn**0.5 + 1e-9


def test_a_unit_over_the_budget_is_hidden_in_some_epoch_of_each_block() -> None:
    blocks = repeat(NAME, 20)
    part = Knowledge(levels={"entity": 1.0})
    seen = np.zeros(20, dtype=bool)
    for epoch in range(60):
        seen |= flags(blocks, hide(part, blocks, key(0, "mask", epoch))).reshape(20, -1)[:, 7]
    assert seen.all()


@pytest.mark.parametrize("level", ["character", "phrase", "entity"])
def test_without_units_a_budget_hides_what_token_masking_hides(level: str) -> None:
    blocks = BLOCKS if level == "character" else without_units(BLOCKS)
    ours = hide(Knowledge(levels={level: 1.0}), blocks)
    assert np.array_equal(ours.positions, hide(Token(), blocks).positions)


@pytest.mark.parametrize("level", ["character", "phrase", "entity"])
def test_without_units_coins_hide_what_token_masking_hides(level: str) -> None:
    blocks = BLOCKS if level == "character" else without_units(BLOCKS)
    ours = hide(Knowledge(levels={level: 1.0}, choose="bernoulli"), blocks)
    assert np.array_equal(ours.positions, hide(Token(count="bernoulli"), blocks).positions)


def test_words_are_those_of_a_segmenter() -> None:
    """In Chinese a word of the text itself is a single character."""
    marks = np.array([15, 15, 13, 13, 15, 13, 15, 13, 15], dtype=np.uint8)  # [CLS] 北京大学 …
    block = make_blocks([[1] * 7])
    blocks = replace(block, marks=marks)
    part = Knowledge(levels={"word": 1.0}, mask_rate=0.3)
    assert part.units == ("segment",) == WholeWord(words="segmenter").units
    chosen = np.stack([flags(blocks, hide(part, blocks, draw)) for draw in range(50)])
    for first, stop in [(1, 4), (4, 6), (6, 8)]:
        assert (chosen[:, first:stop].all(axis=1) == chosen[:, first:stop].any(axis=1)).all()
        assert chosen[:, first].any()


def test_coins_hide_their_share_of_the_tokens_on_average() -> None:
    sizes = [1, 2, 5, 1, 3] * 40
    blocks = repeat(sizes, 1000)
    counts = per_block(
        blocks, flags(blocks, hide(Knowledge(levels={"word": 1.0}, choose="bernoulli"), blocks))
    )
    variance = 0.15 * 0.85 * sum(size * size for size in sizes)
    assert abs(counts.mean() - 0.15 * sum(sizes)) < 4.5 * (variance / 1000) ** 0.5
    assert abs(counts.var() / variance - 1) < 4.5 * (2 / 1000) ** 0.5


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (6.0, 3.0, 1.0), (0.0, 0.5, 1.5)])
def test_levels_are_picked_in_proportion_to_their_weights(
    weights: tuple[float, float, float],
) -> None:
    levels = dict(zip(("character", "phrase", "entity"), weights, strict=True))
    counts = np.bincount(Knowledge(levels=levels).picked(repeat([1], 20_000), 1), minlength=3)
    used = np.array(weights) > 0
    assert not counts[~used].any()
    assert_shares(counts[used], np.array(weights)[used])


def test_a_level_for_an_epoch_is_the_same_in_every_block_and_drawn_anew_for_each_key() -> None:
    part = Knowledge(pick="epoch")
    blocks = repeat([1], 50)
    picked = [part.picked(blocks, key(0, "mask", epoch)) for epoch in range(3000)]
    assert all((each == each[0]).all() for each in picked[:100])
    assert_shares(np.bincount([each[0] for each in picked]), [1, 1, 1])


@pytest.mark.parametrize(
    ("progress", "levels"),
    [
        (0.0, ["character"]),
        (0.19, ["character"]),
        (0.2, ["character", "phrase"]),
        (0.49, ["character", "phrase"]),
        (0.5, ["character", "phrase", "entity"]),
        (1.0, ["character", "phrase", "entity"]),
    ],
)
def test_stages_add_one_level_after_another(progress: float, levels: list[str]) -> None:
    part = Knowledge(stages=(2.0, 3.0, 5.0), mask_rate=0.2, over="content", cap=9, pick="epoch")
    stage = part.stage(progress)
    assert list(stage.levels) == levels
    assert (stage.mask_rate, stage.cap, stage.pick) == (0.2, 9, "epoch")
    assert (stage.choose, stage.over) == (part.choose, "content")


def test_without_stages_the_strategy_stays_what_it_is() -> None:
    part = Knowledge()
    assert part.stage(0.1) is part


@pytest.mark.parametrize(
    "wrong",
    [
        {"levels": {}},
        {"levels": {"character": 0.0}},
        {"levels": {"character": 1.0, "phrase": -1.0}},
        {"levels": {"syllable": 1.0}},
        {"stages": (1.0,)},
        {"stages": (0.0, 0.0, 0.0)},
        {"stages": (1.0, -0.5, 1.0)},
        {"levels": {"character": 0.0, "phrase": 1.0}, "stages": (1.0, 1.0)},
        {"cap": 0},
        {"mask_rate": 0.0},
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        Knowledge(**wrong)  # type: ignore[arg-type]


@pytest.mark.slow
def test_names_are_hidden_at_the_rate_in_a_corpus_of_chinese(tmp_path: Path) -> None:
    """Over many epochs of short blocks, where most names are longer than the budget."""
    names = str(data.chinese_entities())
    corpus = build(
        str(data.chinese()), tmp_path / "c", tokenizer("chars"), held_out=0, entities=names
    )
    plan = DocSentences(length=16).plan(corpus.documents(), 0)
    blocks = plan.blocks(np.arange(len(plan)))
    part = Knowledge(levels={"entity": 1.0}, over="content")
    epochs = 400
    hits = np.zeros(len(blocks.ids))
    for epoch in range(epochs):
        hits += flags(blocks, hide(part, blocks, key(0, "mask", epoch)))
    content = per_block(blocks, ~blocks.fixed)
    budgets = np.maximum(1, np.rint(0.15 * content))
    share = (budgets / np.maximum(content, 1))[blocks.rows]
    longer = 0
    for units in groups(blocks, Mark.ENTITY):
        for unit in (unit for unit in units if len(unit) > 1):
            rate = share[unit[0]]
            assert abs(hits[unit[0]] / epochs - rate) < 5 * (rate * (1 - rate) / epochs) ** 0.5
            longer += len(unit) > budgets[blocks.rows[unit[0]]]
    assert longer > 100
    spread = 5 * (hits.sum() / epochs) ** 0.5 / epochs**0.5
    assert abs(hits.sum() / epochs - budgets[content > 0].sum()) < 3 * spread


def test_a_stage_has_the_rate_of_its_course_too() -> None:
    part = Knowledge(stages=(1.0, 1.0, 1.0), mask_rate=0.2, course=((0.0, 1.0), (1.0, 2.0)))
    stage = part.stage(0.5)
    assert list(stage.levels) == ["character", "phrase"]
    assert (stage.mask_rate, stage.course, stage.stages) == (pytest.approx(0.3), (), ())

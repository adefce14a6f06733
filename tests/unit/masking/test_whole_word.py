"""Whole words, cards A3 and A8: all or nothing, to the budget, across no special."""

from dataclasses import replace

import numpy as np
import pytest
from support.masked_blocks import (
    STRAY,
    assert_even,
    flags,
    groups,
    hide,
    make_blocks,
    per_block,
    repeat,
    with_units,
)

from clozelab.contracts import Blocks, Bools, Mark
from clozelab.errors import UserError
from clozelab.masking.token import Token
from clozelab.masking.units import draws
from clozelab.masking.words import WholeWord

RNG = np.random.default_rng(5)
PROSE = [RNG.geometric(0.75, RNG.integers(20, 380)).tolist() for _ in range(150)]
HARD = [[*words[:40], 0, 40, STRAY, 0, STRAY, *words[40:80], 25] for words in PROSE]

LAST = [[40, 1, 2]] * 20  # all the short words are needed, even one visited last


def budgets(blocks: Blocks) -> list[int]:
    return [max(1, round(0.15 * int(length))) for length in blocks.lengths]


def greedy(blocks: Blocks, key: int) -> Bools:
    """The card, step by step, in Python: visit words in random order, take those that fit."""
    order = draws(blocks, key, 0)
    chosen = np.zeros(len(blocks.ids), dtype=bool)
    for words, wanted in zip(groups(blocks), budgets(blocks), strict=True):
        left = wanted
        for word in sorted(words, key=lambda word: int(order[word[0]])):
            if len(word) <= left:
                chosen[word] = True
                left -= len(word)
        if words and left == wanted:
            chosen[min(words, key=len)[:wanted]] = True
    return chosen


@pytest.mark.parametrize("words", [PROSE, HARD, [[40, 30, 50], [7], [STRAY, 0, 9]], LAST])
def test_the_choice_is_that_of_the_greedy_walk(words: list[list[int]]) -> None:
    blocks = make_blocks(words)
    assert np.array_equal(flags(blocks, hide(WholeWord(), blocks, 3)), greedy(blocks, 3))


def test_words_of_a_block_of_any_length_are_hidden() -> None:
    blocks = make_blocks([[1] * 131_072])
    chosen = flags(blocks, hide(WholeWord(mask_rate=0.01), blocks, 3))
    assert abs(int(chosen[len(chosen) // 2 :].sum()) - 655) < 5 * 18  # half of 1,311, ± 18


@pytest.mark.parametrize("words", [PROSE, HARD, LAST])
def test_words_are_hidden_whole_and_none_left_out_would_have_fitted(words: list[list[int]]) -> None:
    blocks = make_blocks(words)
    chosen = flags(blocks, hide(WholeWord(), blocks))
    for mine, wanted in zip(groups(blocks), budgets(blocks), strict=True):
        taken = [word for word in mine if chosen[word].any()]
        assert all(chosen[word].all() for word in taken)
        count = sum(map(len, taken))
        assert 0 < count <= wanted
        assert wanted - count < min(len(word) for word in mine if word not in taken)


def test_in_ordinary_text_the_budget_is_met_exactly() -> None:
    blocks = make_blocks(PROSE)
    assert per_block(blocks, flags(blocks, hide(WholeWord(), blocks))).tolist() == budgets(blocks)


def test_where_every_token_begins_a_word_the_law_is_that_of_tokens() -> None:
    blocks = repeat([1] * 48, 10_000)
    hits = flags(blocks, hide(WholeWord(), blocks)).reshape(10_000, 50)[:, 1:-1].sum(axis=0)
    assert_even(hits, 10_000, 8)


def test_words_of_one_length_are_as_likely_as_any_other() -> None:
    blocks = repeat([2] * 24, 10_000)
    chosen = flags(blocks, hide(WholeWord(), blocks)).reshape(10_000, 50)
    assert_even(chosen[:, 1:-1:2].sum(axis=0), 10_000, 4)


def _split_word(compat: str) -> tuple[Bools, Bools]:
    """Over many blocks: is the word before a separator hidden, and the stray piece after it?"""
    blocks = repeat([1, 1, 1, 0, STRAY, *[1] * 10], 2000)
    chosen = flags(blocks, hide(WholeWord(compat=compat), blocks))  # type: ignore[arg-type]
    square = chosen.reshape(2000, -1)
    return square[:, 3], square[:, 5]


def test_a_piece_after_a_separator_is_a_word_of_its_own() -> None:
    before, after = _split_word("none")
    assert (before & ~after).any()
    assert (after & ~before).any()


def test_google_joins_a_piece_after_a_separator_to_the_word_before_it() -> None:
    before, after = _split_word("google")
    assert before.any()
    assert np.array_equal(before, after)


def test_google_never_joins_a_block_to_the_one_before() -> None:
    blocks = make_blocks([[1] * 20, [STRAY, *[1] * 20]])
    own = [
        flags(blocks, hide(WholeWord(compat="google"), blocks, key))[[20, 23]] for key in range(60)
    ]
    assert any(last != first for last, first in own)


def test_where_no_word_fits_the_shortest_is_cut_to_the_budget() -> None:
    blocks = make_blocks([[40, 30, 50]])
    assert hide(WholeWord(), blocks).positions.tolist() == list(range(41, 41 + 18))


def test_a_cut_word_that_straddles_a_separator_leaves_the_separator_alone() -> None:
    blocks = make_blocks(
        [[1, 0, STRAY * 8]]
    )  # under google one word of nine pieces; the budget is 2
    assert hide(WholeWord(compat="google"), blocks).positions.tolist() == [1, 3]


def test_segmented_words_are_hidden_whole() -> None:
    blocks = with_units(make_blocks(PROSE), seed=3)
    chosen = flags(blocks, hide(WholeWord(words="segmenter"), blocks))
    longer = 0
    for mine in groups(blocks, Mark.SEGMENT):
        for word in mine:
            assert chosen[word].all() or not chosen[word].any()
            longer += int(chosen[word].all() and blocks.marks[word[1:]].any())
    assert longer > 100  # several of the tokenizer's words in one of the segmenter's


def test_a_segmentation_into_single_characters_is_token_masking() -> None:
    blocks = make_blocks([[2] * 60] * 50)
    single = replace(blocks, marks=blocks.marks | np.uint8(Mark.SEGMENT))
    by_word = flags(blocks, hide(WholeWord(words="segmenter"), single)).reshape(50, -1)
    assert (by_word.sum(axis=1) == 18).all()
    assert (by_word[:, 1:-1:2] != by_word[:, 2:-1:2]).any()  # halves of a tokenizer's word
    by_token = flags(blocks, hide(Token(), single)).reshape(50, -1)
    assert np.array_equal(by_word, by_token)


def test_a_cap_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="cap"):
        WholeWord(cap=0)

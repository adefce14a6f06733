"""Geometric spans, card A5: lengths renormalised, the budget exact, whole words but for one cut."""

from math import ceil

import numpy as np
import pytest
from support.masked_blocks import (
    STRAY,
    assert_shares,
    flags,
    groups,
    hide,
    make_blocks,
    per_block,
    pieces,
    repeat,
)

from clozelab.contracts import Blocks, Bools, Mark
from clozelab.errors import UserError
from clozelab.keys import mix, randint
from clozelab.masking.units import block_draws
from clozelab.masking.words import SpanMasking

RNG = np.random.default_rng(5)
PROSE = [RNG.geometric(0.75, RNG.integers(1, 300)).tolist() for _ in range(80)]
HARD = [[STRAY, *words[:40], 0, STRAY, 40, 0, *words[40:60], 0, 1, 0, 25] for words in PROSE]
CHANCES = [0.2241, 0.1792, 0.1434, 0.1147, 0.0918, 0.0734, 0.0587, 0.0470, 0.0376, 0.0301]


def walk(blocks: Blocks, part: SpanMasking, key: int) -> Bools:
    """The card, step by step, in Python."""
    chosen = np.zeros(len(blocks.ids), dtype=bool)
    keys = block_draws(blocks, key, 0)
    for row, words in enumerate(groups(blocks)):
        tokens = [token for word in words for token in word]
        wanted = ceil(part.mask_rate * len(tokens))
        draw, count = 0, 0
        while count < wanted:
            length = int(part.lengths(mix(keys[row : row + 1], 2 * draw))[0])
            anchor = tokens[int(randint(mix(keys[row : row + 1], 2 * draw + 1), len(tokens))[0])]
            draw += 1
            if chosen[anchor]:
                continue
            first = next(number for number, word in enumerate(words) if anchor in word)
            last = words[first][0] - 1
            for word in words[first : first + length]:
                if word[0] != last + 1:  # a special lies between
                    break
                last = word[-1]
                for token in word:
                    if count < wanted and not chosen[token]:
                        chosen[token] = True
                        count += 1
    return chosen


@pytest.mark.parametrize("words", [PROSE, HARD, [[1], [40], [], [0, STRAY]]])
@pytest.mark.parametrize("part", [SpanMasking(), SpanMasking(mask_rate=0.6, p=0.5, longest=4)])
def test_the_choice_is_that_of_the_walk(part: SpanMasking, words: list[list[int]]) -> None:
    blocks = make_blocks(words)
    assert np.array_equal(flags(blocks, hide(part, blocks, 3)), walk(blocks, part, 3))


def test_the_chances_of_lengths_are_the_published_ones() -> None:
    assert SpanMasking().chances().round(4).tolist() == CHANCES
    assert abs(SpanMasking().chances().sum() - 1) < 1e-12


def test_drawn_lengths_are_renormalised_not_clipped() -> None:
    drawn = SpanMasking().lengths(mix(7, np.arange(100_000)))
    assert_shares(np.bincount(drawn)[1:], SpanMasking().chances())
    assert abs(drawn.mean() - 3.797) < 0.02  # clipping the tail would give 4.463


@pytest.mark.parametrize("words", [PROSE, HARD])
def test_the_budget_is_met_exactly(words: list[list[int]]) -> None:
    blocks = make_blocks(words)
    contents = per_block(blocks, ~blocks.fixed)
    counts = per_block(blocks, flags(blocks, hide(SpanMasking(), blocks)))
    assert counts.tolist() == [ceil(0.15 * int(content)) for content in contents]


def test_the_budget_is_that_of_the_table() -> None:
    assert len(hide(SpanMasking(), make_blocks([[1] * 510])).positions) == 77
    assert len(hide(SpanMasking(), make_blocks([[1] * 126])).positions) == 19
    assert (
        len(hide(SpanMasking(mask_rate=0.07), make_blocks([[1] * 100])).positions) == 7
    )  # 0.07 · 100 > 7 in floats


@pytest.mark.parametrize("words", [PROSE, HARD])
def test_spans_begin_at_word_starts_and_at_most_one_is_cut_inside_a_word(
    words: list[list[int]],
) -> None:
    blocks = make_blocks(words)
    hidden = hide(SpanMasking(), blocks)
    chosen = flags(blocks, hidden)
    starts = {word[0] for mine in groups(blocks) for word in mine}
    assert starts.issuperset(hidden.spans[:, 0].tolist())
    cuts = [
        sum(chosen[word].any() and not chosen[word].all() for word in mine)
        for mine in groups(blocks)
    ]
    assert set(cuts) == {0, 1}


def test_merged_spans_lie_apart() -> None:
    blocks = make_blocks(PROSE)
    spans = hide(SpanMasking(mask_rate=0.5), blocks).spans
    same = blocks.rows[spans[1:, 0]] == blocks.rows[spans[:-1, 0]]
    assert same.any()
    assert (spans[1:, 0] - spans[:-1, 1])[same].min() >= 1


def test_spans_stop_at_specials() -> None:
    blocks = make_blocks([[1, 0] * 100 + [1]] * 200)  # every word between separators
    spans = hide(SpanMasking(), blocks).spans
    assert (spans[:, 1] - spans[:, 0] == 1).all()


def test_runs_of_single_piece_words_are_as_long_as_simulated() -> None:
    blocks = repeat([1] * 510, 700)
    hidden = hide(SpanMasking(), blocks)
    assert abs(len(hidden.positions) / len(hidden.spans) / 3.91 - 1) < 0.03
    assert abs(len(hidden.spans) / 700 / 19.7 - 1) < 0.03


@pytest.mark.parametrize(("tokens", "run"), [(510, 5.04), (126, 4.48)])
@pytest.mark.thorough
def test_runs_of_words_in_pieces_are_as_long_as_simulated(tokens: int, run: float) -> None:
    blocks = make_blocks([pieces(tokens, seed) for seed in range(600 if tokens == 510 else 2000)])
    hidden = hide(SpanMasking(), blocks)
    assert abs(len(hidden.positions) / len(hidden.spans) / run - 1) < 0.03
    if tokens == 510:
        assert abs(len(hidden.spans) / len(blocks) / 15.3 - 1) < 0.03


@pytest.mark.parametrize("rate", [0.15, 0.6])
def test_whole_ends_never_cut_a_word_and_fill_most_of_the_budget(rate: float) -> None:
    words = [[*block, 1] for block in PROSE]  # in each block some word fits
    blocks = make_blocks(words)
    chosen = flags(blocks, hide(SpanMasking(mask_rate=rate, ends="whole"), blocks))
    for mine in groups(blocks):
        for word in mine:
            assert chosen[word].all() or not chosen[word].any()
    content = (~blocks.fixed).sum()
    assert 0.95 * rate < chosen.sum() / content <= rate + len(blocks) / content


def test_whole_ends_hide_something_even_where_anchors_fall_in_words_that_do_not_fit() -> None:
    blocks = repeat([100, 2, 1, 100], 300)
    counts = per_block(blocks, flags(blocks, hide(SpanMasking(ends="whole"), blocks)))
    assert counts.min() >= 1
    assert counts.max() <= 3


def test_whole_ends_cut_a_word_only_where_none_fits() -> None:
    assert hide(SpanMasking(ends="whole"), make_blocks([[40, 30]])).positions.tolist() == list(
        range(41, 52)
    )


def test_words_are_hidden_in_proportion_to_their_tokens() -> None:
    blocks = repeat([1, 3] * 30, 8000)  # one token to hide: the anchor's word, or its first piece
    part = SpanMasking(mask_rate=0.005)
    hidden = hide(part, blocks).positions % 122 - 1
    long = int(((hidden % 4) == 1).sum())
    assert len(hidden) == 8000
    assert_shares([8000 - long, long], [1, 3])


@pytest.mark.parametrize("wrong", [{"p": 0.0}, {"p": 1.0}, {"longest": 0}, {"mask_rate": 0.0}])
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError):
        SpanMasking(**wrong)  # type: ignore[arg-type]


def test_marks_of_other_kinds_do_not_matter() -> None:
    blocks = make_blocks(PROSE[:5])
    bare = make_blocks(PROSE[:5])
    bare.marks[:] &= np.uint8(Mark.WORD)
    assert np.array_equal(hide(SpanMasking(), blocks).spans, hide(SpanMasking(), bare).spans)

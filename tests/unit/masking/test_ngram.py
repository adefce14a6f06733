"""N-grams of whole words, card A4: drawn 6 : 3 : 2, kept a little shorter, within one stretch."""

import numpy as np
import pytest
from numpy.typing import NDArray
from support.masked_blocks import assert_shares, flags, groups, hide, make_blocks, per_block, repeat

from clozelab.contracts import Blocks, Bools, Hidden, Mark
from clozelab.errors import UserError
from clozelab.keys import mix, weighted
from clozelab.masking.units import draws, inverse_lengths
from clozelab.masking.words import Ngram, WholeWord

RNG = np.random.default_rng(5)
PROSE = [RNG.geometric(0.75, RNG.integers(20, 380)).tolist() for _ in range(60)]
HARD = [[*words[:40], 0, 40, 0, *words[40:60], 0, 1, 0, 25] for words in PROSE]


def walk(blocks: Blocks, part: Ngram, key: int) -> Bools:
    """The card, step by step, in Python."""
    order, length = draws(blocks, key, 0), draws(blocks, key, 1)
    chosen = np.zeros(len(blocks.ids), dtype=bool)
    for words, size in zip(groups(blocks), blocks.lengths, strict=True):
        left = wanted = max(1, round(0.15 * int(size)))
        for first in sorted(range(len(words)), key=lambda w: int(order[words[w][0]])):
            at = words[first][0]
            n = 1 + int(
                weighted(
                    length[at : at + 1],
                    inverse_lengths(part.longest, reverse=part.favour == "long"),
                )[0]
            )
            run = words[first : first + n]
            if part.compat == "none":  # words that follow one another without a special between
                follows = [b[0] == a[-1] + 1 for a, b in zip(run[:-1], run[1:], strict=True)]
                run = run[: 1 + (follows.index(False) if False in follows else len(follows))]
            while len(run) > 1 and sum(map(len, run)) > left:
                run = run[:-1]
            tokens = [token for word in run for token in word]
            if len(tokens) <= left and not chosen[tokens].any():
                chosen[tokens] = True
                left -= len(tokens)
        if words and left == wanted:
            chosen[min(words, key=len)[:wanted]] = True
    return chosen


@pytest.mark.parametrize("words", [PROSE, HARD, [[40, 30, 50], [7], [0, 9]]])
@pytest.mark.parametrize("part", [Ngram(), Ngram(longest=6, favour="long"), Ngram(compat="albert")])
def test_the_choice_is_that_of_the_walk(part: Ngram, words: list[list[int]]) -> None:
    blocks = make_blocks(words)
    assert np.array_equal(flags(blocks, hide(part, blocks, 3)), walk(blocks, part, 3))


@pytest.mark.parametrize(
    ("part", "shares"),
    [
        (Ngram(), [6, 3, 2]),
        (Ngram(favour="long"), [2, 3, 6]),
        (Ngram(longest=5), [60, 30, 20, 15, 12]),
    ],
)
def test_lengths_are_drawn_in_proportion_to_one_over_n(part: Ngram, shares: list[int]) -> None:
    drawn = weighted(
        mix(3, np.arange(100_000)), inverse_lengths(part.longest, reverse=part.favour == "long")
    )
    assert_shares(np.bincount(drawn), shares)


def test_kept_lengths_are_those_of_the_card() -> None:
    blocks = repeat([1, 1, 2] * 126 + [1] * 6, 700)  # 384 words of 510 tokens: b = 77
    lengths = _words(blocks, hide(Ngram(), blocks))
    shares = np.bincount(lengths)[1:] / len(lengths)
    assert np.abs(shares - [0.574, 0.265, 0.160]).max() < 0.01
    assert abs(lengths.mean() - 1.586) < 0.015


def test_favouring_the_long_keeps_longer_runs() -> None:
    blocks = repeat([1, 1, 2] * 126, 100)
    lengths = _words(blocks, hide(Ngram(favour="long"), blocks))
    shares = np.bincount(lengths)[1:] / len(lengths)
    assert shares[2] > shares[1] > shares[0]


@pytest.mark.parametrize("longest", [1, 3, 7])
def test_a_run_is_of_whole_words_and_of_no_more_than_asked(longest: int) -> None:
    blocks = make_blocks(PROSE)
    hidden = hide(Ngram(longest=longest), blocks)
    assert _words(blocks, hidden).max() == longest
    begins = np.append((blocks.marks & Mark.WORD) != 0, True)
    assert begins[hidden.spans].all()


def test_in_ordinary_text_the_budget_is_met_exactly() -> None:
    blocks = make_blocks(PROSE)
    counts = per_block(blocks, flags(blocks, hide(Ngram(), blocks)))
    assert counts.tolist() == [round(0.15 * int(length)) for length in blocks.lengths]


def _neighbours(part: Ngram) -> float:
    """How often the two words hidden of 9, each between separators, are neighbours."""
    blocks = repeat([1, 0] * 8 + [1], 4000)  # 19 tokens: b = 3, capped to 2
    chosen = hide(part, blocks).positions.reshape(-1, 2)
    return float((chosen[:, 1] - chosen[:, 0] == 2).mean())


def test_runs_stop_at_specials() -> None:
    share = 8 / 36  # neighbours among pairs drawn at random
    error = (share * (1 - share) / 4000) ** 0.5
    assert abs(_neighbours(Ngram(cap=2)) - share) < 4.5 * error


def test_albert_straddles_separators() -> None:
    # Neighbours by one run (5/11 draw two or more, 8 of 9 words have a next) or by chance.
    run = 5 / 11 * 8 / 9
    share = run + (1 - run) * 8 / 36
    assert _neighbours(Ngram(cap=2, compat="albert")) > share - 0.05


def test_runs_of_one_word_are_whole_word_masking() -> None:
    blocks = make_blocks(HARD)
    assert np.array_equal(hide(Ngram(longest=1), blocks).spans, hide(WholeWord(), blocks).spans)


@pytest.mark.parametrize("wrong", [{"longest": 0}, {"longest": 21}, {"cap": 0}, {"mask_rate": 1.5}])
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError):
        Ngram(**wrong)  # type: ignore[arg-type]


def _words(blocks: Blocks, hidden: Hidden) -> NDArray[np.int64]:
    """How many words each span has."""
    before = np.concatenate([[0], np.cumsum((blocks.marks & Mark.WORD) != 0)])
    return before[hidden.spans[:, 1]] - before[hidden.spans[:, 0]]

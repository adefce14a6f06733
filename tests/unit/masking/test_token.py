"""Token masking, cards A1 and A2: the count rules to the token, and every token as likely."""

from typing import Literal

import numpy as np
import pytest
from support.masked_blocks import assert_even, flags, hide, make_blocks, per_block, repeat

from clozelab.errors import UserError
from clozelab.masking.token import Token, UniformRate

COUNTS = [(10, 2), (30, 4), (50, 8), (128, 19), (512, 77)]


@pytest.mark.parametrize(("length", "expected"), COUNTS)
def test_round_hides_the_published_number(length: int, expected: int) -> None:
    blocks = repeat([1] * (length - 2), 20)
    assert (per_block(blocks, flags(blocks, hide(Token(), blocks))) == expected).all()


def test_content_leaves_specials_out_of_the_count() -> None:
    blocks = make_blocks([[1] * 30 + [0] * 20])
    assert len(hide(Token(over="content"), blocks).positions) == 4  # .15 × 30 = 4.5, to even
    assert len(hide(Token(over="length"), blocks).positions) == 8  # .15 × 52


def test_floor_counts_what_it_is_told_to() -> None:
    blocks = repeat([1] * 30 + [0] * 20, 2000)
    hidden = [
        len(hide(Token(count="floor", over=over), blocks).positions) / 2000
        for over in ("content", "length")
    ]
    assert hidden == pytest.approx([0.15 * 30, 0.15 * 52], abs=0.05)


def test_coins_count_nothing_and_know_no_cap() -> None:
    for setting in ({"over": "content"}, {"cap": 3}):
        with pytest.raises(UserError, match="has no effect when each token"):
            Token(count="bernoulli", **setting)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", ["round", "floor"])
def test_the_count_is_never_above_the_cap_nor_above_the_content(
    count: Literal["round", "floor"],
) -> None:
    capped, most = Token(count=count, cap=20), Token(count=count, mask_rate=0.9)
    assert len(hide(capped, make_blocks([[1] * 510])).positions) == 20
    assert len(hide(most, make_blocks([[0] * 20 + [1] * 3])).positions) == 3


def test_every_token_is_as_likely_as_any_other() -> None:
    blocks = repeat([1] * 48, 10_000)
    hits = flags(blocks, hide(Token(), blocks)).reshape(10_000, 50)[:, 1:-1].sum(axis=0)
    assert_even(hits, 10_000, 8)


def test_pairs_of_tokens_are_as_likely_as_any_other() -> None:
    blocks = repeat([1] * 8, 20_000)  # 2 of 8: 28 pairs
    chosen = hide(Token(), blocks).positions.reshape(-1, 2) % 10 - 1
    hits = np.bincount(chosen[:, 0] * 8 + chosen[:, 1], minlength=64)
    assert_even(hits[np.flatnonzero(hits)], 20_000, 1)
    assert np.count_nonzero(hits) == 28


def test_floor_hides_76_or_77_of_512_and_76_8_on_average() -> None:
    blocks = repeat([1] * 510, 2000)
    counts = per_block(blocks, flags(blocks, hide(Token(count="floor"), blocks)))
    assert set(counts) == {76, 77}
    error = (0.16 / 2000) ** 0.5
    assert abs(counts.mean() - 76.8) < 4.5 * error
    assert abs(counts.var() - 0.16) < 4.5 * error  # p(1 − p) moves by less than p does


def test_floor_with_specials_hides_specials_as_often_as_other_tokens() -> None:
    blocks = repeat([1] * 58, 10_000)  # .15 × 60 = 9 exactly: floor(9 + U) = 9
    chosen = flags(blocks, hide(Token(count="floor", specials=True), blocks))
    assert_even(chosen.reshape(10_000, 60).sum(axis=0), 10_000, 9)


def test_floor_hides_one_token_where_its_share_is_less() -> None:
    blocks = repeat([1], 500)  # floor(.45 + U) is 0 more often than not
    counts = per_block(blocks, flags(blocks, hide(Token(count="floor"), blocks)))
    assert (counts == 1).all()


def test_bernoulli_counts_are_binomial() -> None:
    blocks = repeat([1] * 510, 2000)
    counts = per_block(blocks, flags(blocks, hide(Token(count="bernoulli"), blocks)))
    variance = 510 * 0.15 * 0.85
    assert abs(counts.mean() - 76.5) < 4.5 * (variance / 2000) ** 0.5
    assert abs(counts.var() / variance - 1) < 4.5 * (2 / 2000) ** 0.5


def test_bernoulli_may_hide_nothing() -> None:
    blocks = repeat([1] * 4, 4000)
    counts = per_block(blocks, flags(blocks, hide(Token(count="bernoulli"), blocks)))
    share = 0.85**4
    error = (share * (1 - share) / 4000) ** 0.5
    assert abs((counts == 0).mean() - share) < 4.5 * error


@pytest.mark.parametrize(
    "wrong", [{"mask_rate": 0.0}, {"mask_rate": 1.0}, {"mask_rate": -1.0}, {"cap": 0}]
)
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError):
        Token(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("progress", "rate"), [(0.0, 0.3), (0.5, 0.3), (0.75, 0.225), (1.0, 0.15), (2.0, 0.15)]
)
def test_the_rate_follows_its_course(progress: float, rate: float) -> None:
    part = Token(mask_rate=0.3, course=((0.5, 1.0), (1.0, 0.5)), cap=50)
    now = part.stage(progress)
    assert (now.mask_rate, now.course, now.cap) == (pytest.approx(rate), (), 50)
    blocks = repeat([1] * 98, 3)
    assert (per_block(blocks, flags(blocks, hide(now, blocks))) == round(100 * rate)).all()
    assert Token().stage(progress) == Token()


@pytest.mark.parametrize(
    ("course", "sentence"),
    [
        (((0.5, 1.0), (0.2, 0.5)), "course: give pairs .* rising"),
        (((0.0, 1.0), (1.0, -1.0)), "course: the factors must be at least 0"),
        (((0.0, 1.0), (1.0, 4.0)), "a factor of 4.0 turns mask_rate = 0.3 into 1.2; it must"),
        (((0.0, 1.0), (1.0, 0.0)), "a factor of 0.0 turns mask_rate = 0.3 into 0"),
    ],
)
def test_a_course_that_leaves_the_range_is_refused(
    course: tuple[tuple[float, float], ...], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        Token(mask_rate=0.3, course=course)


def test_every_share_of_a_block_is_as_likely_as_any_other_and_so_is_every_token() -> None:
    blocks = repeat([1] * 10 + [0] * 3, 20_000)
    chosen = flags(blocks, hide(UniformRate(), blocks))
    counts = np.bincount(per_block(blocks, chosen), minlength=11)
    assert counts[0] == 0
    assert_even(counts[1:], 20_000, 1)
    hits = chosen.reshape(20_000, -1)[:, 1:11]
    threes = hits[hits.sum(axis=1) == 3]
    assert_even(threes.sum(axis=0), len(threes), 3)

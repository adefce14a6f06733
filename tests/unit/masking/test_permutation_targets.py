"""XLNet's partial prediction, card A7: 43 and 42 of 512, short spans in contexts, and an order."""

from dataclasses import replace

import numpy as np
import pytest
from support.masked_blocks import (
    assert_even,
    assert_shares,
    flags,
    hide,
    make_blocks,
    pieces,
    repeat,
)

from clozelab.contracts import Blocks, Bools, Ints, Mark
from clozelab.errors import UserError
from clozelab.masking.permutation_targets import PermutationTargets, _Halves

PROSE = make_blocks([pieces(512, seed) for seed in range(200)], bare=True)
SINGLE = repeat([1] * 512, 2000, bare=True)
EVEN = repeat([1, 2, 3, 2] * 32, 60, bare=True)  # both halves begin with a word


def natural(part: PermutationTargets, blocks: Blocks) -> Bools:
    """[2B, width] what the cursor's walk chose, before single tokens fill up."""
    return part._natural(_Halves(blocks, 1), part._goals(blocks))


def begins(chosen: Bools) -> Bools:
    """Where runs begin, row by row."""
    return chosen & ~np.pad(chosen, ((0, 0), (1, 0)))[:, :-1]


@pytest.mark.parametrize("unit", ["word", "piece"])
@pytest.mark.parametrize("blocks", [PROSE, SINGLE], ids=["prose", "single"])
def test_halves_of_512_tokens_have_43_and_42_targets(unit: str, blocks: Blocks) -> None:
    chosen = flags(blocks, hide(PermutationTargets(unit=unit), blocks)).reshape(-1, 256)  # type: ignore[arg-type]
    assert (chosen[0::2].sum(axis=1) == 43).all()
    assert (chosen[1::2].sum(axis=1) == 42).all()


def test_the_first_half_of_an_odd_block_is_the_longer() -> None:
    blocks = repeat([1] * 7, 3000, bare=True)  # goals 2 and 1 of halves of 4 and 3
    chosen = flags(blocks, hide(PermutationTargets(mask_rate=0.5), blocks)).reshape(-1, 7)
    assert (chosen[:, :4].sum(axis=1) == 2).all()
    assert (chosen[:, 4:].sum(axis=1) == 1).all()
    assert chosen.any(axis=0).all()


def test_targets_on_specials_are_dropped_and_not_replaced() -> None:
    plain = repeat([1] * 512, 300, bare=True)
    special = replace(plain, fixed=plain.positions % 5 == 0)
    all_, without_specials = (
        hide(PermutationTargets(), plain).positions,
        hide(PermutationTargets(), special).positions,
    )
    assert np.array_equal(without_specials, all_[all_ % 512 % 5 != 0])
    assert len(without_specials) < len(all_) == 85 * 300


def test_pieces_leave_about_seven_targets_of_43_to_single_tokens() -> None:
    count = natural(PermutationTargets(unit="piece"), PROSE).sum(axis=1)[0::2]
    assert abs(count.mean() - 35.6) < 0.4  # about 4.5 standard errors of 200 halves
    assert count.max() < 43


def test_lengths_are_drawn_in_proportion_to_one_over_n() -> None:
    chosen = natural(
        PermutationTargets(), SINGLE
    )  # the first run of a half is cut short by nothing
    first = chosen.argmax(axis=1)
    after = np.arange(256) >= first[:, None]
    length = (after & ~chosen).argmax(axis=1) - first
    assert_shares(np.bincount(length)[1:], 1 / np.arange(1, 6))
    assert abs(length.mean() - 300 / 137) < 4.5 * (1.7742 / len(length)) ** 0.5


def test_spans_lie_apart_at_word_starts_and_words_stay_whole_but_for_the_last() -> None:
    chosen = natural(PermutationTargets(), PROSE)
    starts = (PROSE.marks.reshape(-1, 256) & Mark.WORD) != 0
    assert starts[begins(chosen)].all()
    ends = np.pad(starts, ((0, 0), (0, 1)))[:, 1:]  # the next token begins a word
    last = chosen & ~np.pad(chosen, ((0, 0), (0, 1)))[:, 1:]
    cut = (last & ~ends).sum(axis=1)
    assert cut.max() == 1
    goals = np.tile([43, 42], len(PROSE))
    assert (chosen.sum(axis=1)[cut == 1] == goals[cut == 1]).all()


def test_pieces_are_counted_not_words() -> None:
    blocks = repeat([3] * 64, 100, bare=True)  # halves of 96 tokens: 16 targets each
    lengths = _runs(natural(PermutationTargets(unit="piece", longest=2, context=8), blocks))
    assert set(lengths) == {1, 2}
    assert set(_runs(natural(PermutationTargets(unit="word", longest=2, context=8), blocks))) <= {
        1,
        3,
        4,
        6,
    }


def test_a_span_lies_anywhere_in_its_context() -> None:
    part = PermutationTargets(longest=1, context=6, mask_rate=0.1)
    first = natural(part, SINGLE).argmax(axis=1)
    assert_even(np.bincount(first), len(first), 1)
    assert first.max() == 5


def test_the_cursor_goes_on_after_the_whole_context() -> None:
    chosen = natural(PermutationTargets(longest=1, context=6, mask_rate=0.1), SINGLE)
    # One span in each window of 1 + 6 tokens: gaps between starts run from 1 + 1 to 1 + 6 + 5.
    rows, columns = np.nonzero(chosen)
    gaps = np.diff(columns)[np.diff(rows) == 0]
    assert (gaps.min(), gaps.max()) == (2, 12)
    assert abs(gaps.mean() - 7) < 0.1


def test_filled_targets_are_even_over_what_is_left() -> None:
    blocks = repeat([12], 10_000, bare=True)  # one word: the walk finds no span, 1 + 1 of 6 + 6
    chosen = flags(blocks, hide(PermutationTargets(), blocks)).reshape(-1, 12)
    assert_even(chosen[:, :6].sum(axis=0), 10_000, 1)
    assert_even(chosen[:, 6:].sum(axis=0), 10_000, 1)


def test_the_order_is_a_permutation_of_each_half() -> None:
    blocks = make_blocks([[1] * n for n in range(1, 80)], bare=True)
    order = hide(PermutationTargets(), blocks).order
    assert order is not None
    for row, length in enumerate(blocks.lengths):
        mine, half = order[blocks.starts[row] : blocks.starts[row + 1]], (length + 1) // 2
        assert sorted(mine[:half]) == list(range(half))
        assert sorted(mine[half:]) == list(range(length - half))


def test_every_token_is_as_likely_to_come_first() -> None:
    order = hide(PermutationTargets(), SINGLE).order
    assert order is not None
    square = order.reshape(-1, 256)
    assert_even((square < 16).sum(axis=0), len(square), 16)


def test_the_order_is_drawn_apart_from_the_targets() -> None:
    hidden = hide(PermutationTargets(), SINGLE)
    assert hidden.order is not None
    ranks = hidden.order[hidden.positions]
    assert abs(ranks.mean() - 127.5) < 4.5 * (256**2 / 12 / len(ranks)) ** 0.5


def backwards(blocks: Blocks) -> Blocks:
    """Each half read from its end: marks then stand where a word begins for that reader."""
    half = len(blocks.ids) // len(blocks) // 2
    ends = np.roll(blocks.marks.reshape(-1, half), -1, axis=1)  # the next token begins a word
    turned = np.ascontiguousarray(ends[:, ::-1]).reshape(-1)
    return replace(blocks, marks=turned, reverse=np.ones(len(blocks), dtype=bool))


def mirror(values: Ints | Bools) -> Ints | Bools:
    return np.ascontiguousarray(values.reshape(-1, 128)[:, ::-1]).reshape(-1)


@pytest.mark.parametrize("unit", ["word", "piece"])
def test_blocks_read_backwards_are_hidden_in_mirror_image(unit: str) -> None:
    part = PermutationTargets(unit=unit)  # type: ignore[arg-type]
    there, back = hide(part, EVEN), hide(part, backwards(EVEN))
    assert np.array_equal(mirror(flags(EVEN, there)), flags(EVEN, back))
    assert there.order is not None
    assert back.order is not None
    assert np.array_equal(mirror(there.order), back.order)


def test_reading_backwards_turns_only_the_blocks_marked() -> None:
    turned = backwards(EVEN)
    reverse = np.arange(len(EVEN)) % 2 == 1
    marks = np.where(reverse[EVEN.rows], turned.marks, EVEN.marks)
    mixed = replace(EVEN, marks=marks, reverse=reverse)
    chosen = flags(EVEN, hide(PermutationTargets(), mixed))
    plain, mirrored = (
        flags(EVEN, hide(PermutationTargets(), EVEN)),
        flags(EVEN, hide(PermutationTargets(), turned)),
    )
    assert np.array_equal(chosen, np.where(reverse[EVEN.rows], mirrored, plain))


@pytest.mark.parametrize(
    "wrong", [{"mask_rate": 0.0}, {"longest": 0}, {"longest": 64}, {"context": 0}]
)
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError):
        PermutationTargets(**wrong)  # type: ignore[arg-type]


def _runs(chosen: Bools) -> Ints:
    """Lengths of runs in all rows."""
    flat = np.pad(chosen, ((0, 0), (0, 1))).reshape(-1).astype(np.int8)
    edges = np.diff(np.concatenate([[0], flat]))
    return np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)

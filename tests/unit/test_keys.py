"""Keys are uniform, as a plain implementation makes them, and never change between versions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.masked_blocks import assert_shares

from clozelab.keys import coin_flips, fold, key, mix, randint, root, uniform, weighted

WORD = st.integers(0, 2**64 - 1)
MANY = mix(12345, np.arange(200_000))


def plain(value: int, counter: int) -> int:
    """SplitMix64's finaliser over a Weyl sequence, in Python's own integers."""
    x = (value + (counter + 1) * 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


@given(value=WORD, counter=WORD)
def test_mix_equals_plain_integers(value: int, counter: int) -> None:
    assert int(mix(value, np.uint64(counter))) == plain(value, counter)


def test_mix_is_splitmix64() -> None:
    # The first outputs of the published generator from seed 1234567.
    assert mix(1234567, np.arange(5)).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_keys_never_change_between_versions() -> None:
    assert root(0, "mask") == 13838380464738965756
    assert key(1, "mask", 2) == 208065087621381721
    assert fold([5, 6, 7, 8], np.array([0, 1])).tolist() == [
        1952936728445087881,
        17729766386492379643,
    ]


def test_mix_broadcasts_keys_against_counters() -> None:
    square = mix(np.arange(3, dtype=np.uint64)[:, None], np.arange(4))
    assert square.tolist() == [[plain(k, c) for c in range(4)] for k in range(3)]


def test_mix_takes_counters_of_any_integer_type() -> None:
    for kind in (np.uint8, np.int32, np.int64, np.uint64):
        assert int(mix(9, kind(200))) == plain(9, 200)


def test_every_bit_is_fair_and_no_two_neighbouring_bits_agree_too_often() -> None:
    bits = (MANY[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    spread = 5 * 0.5 / len(MANY) ** 0.5
    assert np.abs(bits.mean(axis=0) - 0.5).max() < spread
    assert np.abs((bits[:, 1:] == bits[:, :-1]).mean(axis=0) - 0.5).max() < spread
    assert np.abs((bits[1:] == bits[:-1]).mean(axis=0) - 0.5).max() < spread


@pytest.mark.parametrize("bit", [0, 1, 17, 40, 63])
def test_one_bit_of_the_key_or_counter_turns_half_the_bits(bit: int) -> None:
    flip = np.uint64(1 << bit)
    base = np.arange(40_000, dtype=np.uint64)
    base = base[(base & flip) == 0]  # each pair once, so that the trials are independent
    for turned in (mix(base, 3) ^ mix(base ^ flip, 3), mix(3, base) ^ mix(3, base ^ flip)):
        share = ((turned[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)).mean(axis=0)
        assert np.abs(share - 0.5).max() < 5 * 0.5 / len(base) ** 0.5


def test_close_keys_and_counters_never_collide() -> None:
    square = mix(np.arange(1000, dtype=np.uint64)[:, None], np.arange(2000))
    assert np.diff(np.sort(square, axis=None)).all()
    nested = mix(mix(7, np.arange(1000))[:, None], np.arange(2000))
    assert np.diff(np.sort(nested, axis=None)).all()


def test_seeds_purposes_and_copies_have_keys_of_their_own() -> None:
    seen = {
        key(seed, purpose, copy)
        for seed in range(20)
        for purpose in ("mask", "replace", "blocks", "1/mask")
        for copy in range(50)
    }
    assert len(seen) == 20 * 4 * 50


@pytest.mark.parametrize("bound", [1, 2, 7, 100])
def test_below_is_even_and_in_range(bound: int) -> None:
    drawn = randint(MANY, bound)
    assert drawn.min() >= 0
    assert drawn.max() < bound
    if bound > 1:
        assert_shares(np.bincount(drawn, minlength=bound), np.ones(bound))


def test_below_takes_a_bound_for_each_key_and_bounds_up_to_32_bits() -> None:
    bounds = np.resize([1, 5, 2**32 - 1], len(MANY))
    drawn = randint(MANY, bounds)
    assert (drawn < bounds).all()
    assert (drawn >= 0).all()
    assert randint(np.array([2**64 - 1], dtype=np.uint64), 2**32).tolist() == [2**32 - 1]


def test_unit_is_even_and_under_one() -> None:
    numbers = uniform(MANY)
    assert uniform(np.array([0, 2**64 - 1], dtype=np.uint64)).tolist() == [0.0, 1 - 2.0**-53]
    assert_shares(np.bincount((numbers * 64).astype(int), minlength=64), np.ones(64))


def test_heads_is_fair() -> None:
    up = int(coin_flips(MANY).sum())
    assert_shares([up, len(MANY) - up], [1, 1])


@pytest.mark.parametrize("scale", [1, 10**9, 2**58])
def test_weighted_follows_its_weights_even_beyond_32_bits(scale: int) -> None:
    weights = np.array([0, 6, 3, 0, 2, 11, 0]) * scale
    drawn = np.bincount(weighted(MANY, np.cumsum(weights)), minlength=7)
    assert not drawn[weights == 0].any()
    assert_shares(drawn[weights > 0], weights[weights > 0] / scale)


@given(value=WORD, total=st.integers(1, 2**63 - 1))
def test_weighted_scales_keys_exactly(value: int, total: int) -> None:
    point = value * total >> 64
    edges = np.array(sorted({max(point, 1), min(point + 1, total), total}))
    drawn = weighted(np.array([value], dtype=np.uint64), edges)[0]
    assert drawn == np.flatnonzero(edges > point)[0]


def test_fold_depends_on_what_a_run_holds_and_in_which_order() -> None:
    runs = [[1, 2], [2, 1], [1], [2], [1, 2, 0], [0, 1, 2], [3], [1, 1], [0], [0, 0]]
    starts = np.cumsum([0, *map(len, runs[:-1])])
    folded = fold([value for run in runs for value in run], starts)
    assert len(set(folded.tolist())) == len(runs)


@given(runs=st.lists(st.lists(st.integers(0, 60_000), min_size=1, max_size=6), min_size=1))
def test_fold_is_blind_to_neighbours_and_to_the_type_of_the_values(runs: list[list[int]]) -> None:
    flat = np.array([value for run in runs for value in run], dtype=np.uint16)
    together = fold(flat, np.cumsum([0, *map(len, runs[:-1])]))
    apart = [int(fold(np.array(run, dtype=np.int64), np.array([0]))[0]) for run in runs]
    assert together.tolist() == apart
    for run, ours in zip(runs, apart, strict=True):
        total = sum(plain(value, place) for place, value in enumerate(run)) % 2**64
        assert ours == plain(total, len(run))


def test_fold_of_no_runs_is_nothing() -> None:
    assert fold(np.zeros(0, dtype=np.uint16), np.zeros(0, dtype=np.int64)).tolist() == []

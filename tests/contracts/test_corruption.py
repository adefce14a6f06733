"""What corruption promises over whatever a strategy hid (cards P1, P2, P4, P5, P9, P10, A10)."""

from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hypothesis_settings import max_examples
from support.masked_blocks import (
    WORDS,
    assert_shares,
    chi_square_limit,
    flags,
    groups,
    hide,
    make_blocks,
    pick,
    ragged,
    repeat,
)
from support.synthetic_documents import SPECIAL, vocabulary

from clozelab.contracts import Blocks, Corrupted, Hidden, Masking
from clozelab.errors import UserError
from clozelab.masking import Corruption
from clozelab.masking.token import Rarity, Token
from clozelab.masking.words import Ngram, SpanMasking, WholeWord

MASK, RANDOM, SAME = Corrupted.MASK, Corrupted.RANDOM, Corrupted.SAME
HIDERS: list[Masking] = [
    Token(),
    Token(mask_rate=0.9, count="floor", specials=True),
    WholeWord(mask_rate=0.5),
    Ngram(mask_rate=0.5),
    SpanMasking(mask_rate=0.5),
    Rarity(),
]
CORRUPTIONS = [
    Corruption(unit=unit, replacement=replacement, mask=mask, same=same)  # type: ignore[arg-type]
    for unit in ("token", "word", "span")
    for replacement, mask, same in [
        ("uniform", 0.8, 0.1),
        ("unigram", 0.2, 0.2),
        ("any", 0.0, 0.0),
        ("uniform", 1.0, 0.0),
        ("uniform", 0.0, 1.0),
    ]
]
PAIRS = st.tuples(st.sampled_from(HIDERS), st.sampled_from(CORRUPTIONS))
KEYS = st.integers(0, 2**64 - 1)


def corrupt(how: Corruption, blocks: Blocks, hidden: Hidden, key: int = 2) -> Corrupted:
    return how.corrupt(blocks, hidden, key, vocabulary=WORDS)


@max_examples(200)
@given(blocks=ragged(), pair=PAIRS, key=KEYS)
def test_only_chosen_tokens_change_and_the_originals_stay_to_be_labels(
    blocks: Blocks, pair: tuple[Masking, Corruption], key: int
) -> None:
    before = blocks.ids.copy()
    hidden = hide(pair[0], blocks)
    seen = corrupt(pair[1], blocks, hidden, key).ids
    chosen = flags(blocks, hidden)
    assert np.array_equal(blocks.ids, before)
    assert seen.shape == before.shape
    assert seen.dtype == np.int32
    assert np.array_equal(seen[~chosen], before[~chosen])


@max_examples(200)
@given(blocks=ragged(), pair=PAIRS, key=KEYS)
def test_what_is_seen_follows_the_decision(
    blocks: Blocks, pair: tuple[Masking, Corruption], key: int
) -> None:
    hidden = hide(pair[0], blocks)
    out = corrupt(pair[1], blocks, hidden, key)
    at = hidden.positions
    assert len(out.decisions) == len(at)
    assert np.isin(out.decisions, [MASK, RANDOM, SAME]).all()
    assert (out.ids[at[out.decisions == MASK]] == SPECIAL["mask"]).all()
    same = at[out.decisions == SAME]
    assert np.array_equal(out.ids[same], blocks.ids[same])
    drawn = out.ids[at[out.decisions == RANDOM]]
    assert ((drawn >= 0) & (drawn < WORDS.size)).all()
    if pair[1].replacement != "any":
        assert not np.isin(drawn, WORDS.special).any()


def test_replacements_never_change_between_versions() -> None:
    """Every run's inputs change where this changes: then say so in the CHANGELOG."""
    blocks = make_blocks([[1, 2, 1, 3, 1, 1, 4, 1] * 12, [60], [2, 0, 1, 1]])
    digest = blake2b(digest_size=8)
    for hider in HIDERS:
        for how in CORRUPTIONS:
            out = corrupt(how, blocks, hide(hider, blocks), 7)
            digest.update(out.ids.astype("<i8").tobytes())
            digest.update(out.decisions.astype("<i8").tobytes())
    assert digest.hexdigest() == "59e6fa5839c03bea"


@max_examples(200)
@given(blocks=ragged(), pair=PAIRS, key=KEYS, data=st.data())
def test_a_block_is_corrupted_the_same_in_any_batch(
    blocks: Blocks, pair: tuple[Masking, Corruption], key: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(blocks))))
    rows = list(order[: data.draw(st.integers(1, len(blocks)))])
    some = pick(blocks, rows)
    together = corrupt(pair[1], blocks, hide(pair[0], blocks), key).ids
    apart = corrupt(pair[1], some, hide(pair[0], some), key).ids
    for place, row in enumerate(rows):
        mine = together[blocks.starts[row] : blocks.starts[row + 1]]
        assert np.array_equal(mine, apart[some.starts[place] : some.starts[place + 1]])


@pytest.mark.parametrize("how", [Corruption(), Corruption(mask=0.5, same=0.3)])
def test_decisions_about_tokens_come_in_the_shares_asked_for(how: Corruption) -> None:
    blocks = repeat([1] * 510, 1500)
    decisions = corrupt(how, blocks, hide(Token(), blocks)).decisions
    assert len(decisions) > 100_000
    counts = np.bincount(decisions, minlength=3)
    assert_shares(counts, [how.mask, 1 - how.mask - how.same, how.same])
    assert abs(counts[MASK] / len(decisions) - how.mask) < 0.005


@pytest.mark.thorough
@pytest.mark.parametrize("unit", ["word", "span"])
def test_decisions_about_words_and_spans_come_in_the_shares_asked_for(unit: str) -> None:
    how = Corruption(unit=unit)  # type: ignore[arg-type]
    blocks = repeat([1, 2, 1, 3] * 70, 2400)
    hidden = hide(WholeWord() if unit == "word" else SpanMasking(), blocks)
    leading = np.isin(hidden.positions, hidden.spans[:, 0])
    decisions = corrupt(how, blocks, hidden).decisions[leading]
    assert len(decisions) > 20_000
    assert_shares(np.bincount(decisions, minlength=3), [0.8, 0.1, 0.1])


def test_decisions_are_drawn_apart_from_the_choice() -> None:
    blocks = repeat([1] * 50, 4000)
    hidden = hide(Token(), blocks)
    decisions = corrupt(Corruption(), blocks, hidden).decisions
    places = hidden.positions - blocks.starts[blocks.rows[hidden.positions]] - 1
    table = np.zeros((50, 3))
    np.add.at(table, (places, decisions), 1)
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
    assert ((table - expected) ** 2 / expected).sum() < chi_square_limit(49 * 2)


def test_a_span_is_treated_alike_throughout() -> None:
    blocks = repeat([1, 2, 1, 3] * 70, 50)
    hidden = hide(SpanMasking(), blocks)
    decisions = corrupt(Corruption(unit="span", mask=0.4, same=0.3), blocks, hidden).decisions
    of = np.repeat(np.arange(len(hidden.spans)), np.diff(hidden.spans, axis=1)[:, 0])
    first = np.concatenate([[0], np.flatnonzero(np.diff(of)) + 1])
    assert np.array_equal(decisions, decisions[first][of])
    assert set(decisions) == {MASK, RANDOM, SAME}


def test_a_word_is_treated_alike_throughout_and_neighbours_apart() -> None:
    blocks = repeat([2, 3] * 30, 50)
    hidden = hide(SpanMasking(mask_rate=0.5), blocks)
    out = np.full(len(blocks.ids), 9)
    out[hidden.positions] = corrupt(
        Corruption(unit="word", mask=0.4, same=0.3), blocks, hidden
    ).decisions
    words = [set(out[word].tolist()) - {9} for block in groups(blocks) for word in block]
    assert max(len(word) for word in words) == 1
    pairs = [a != b for a, b in zip(words[:-1], words[1:], strict=True) if a and b]
    assert 0.5 < np.mean(pairs) < 0.8  # 1 − (.4² + .3² + .3²) = .66 of neighbours differ


def test_tokens_of_a_word_are_treated_apart_by_default() -> None:
    blocks = repeat([2] * 60, 200)
    hidden = hide(WholeWord(), blocks)
    decisions = corrupt(Corruption(mask=0.5, same=0.5), blocks, hidden).decisions
    alike = (decisions[0::2] == decisions[1::2]).sum()
    assert_shares([alike, len(decisions) // 2 - alike], [0.5, 0.5])


def test_a_hidden_special_decides_for_itself_not_for_a_word_of_another_block() -> None:
    blocks = make_blocks([[1, 1]] * 60)
    hidden = Hidden(np.stack([blocks.starts[:-1], blocks.starts[:-1] + 1], axis=1))
    how = Corruption(unit="word", mask=0.5, same=0.5)
    ours = corrupt(how, blocks, hidden).decisions
    swapped = pick(blocks, list(range(59, -1, -1)))
    assert np.array_equal(corrupt(how, swapped, hidden).decisions, ours[::-1])
    alone = [
        corrupt(how, pick(blocks, [row]), Hidden(np.array([[0, 1]]))).decisions[0]
        for row in range(60)
    ]
    assert alone == ours.tolist()


def test_uniform_replacements_are_even_over_ordinary_ids() -> None:
    drawn = _drawn(Corruption(mask=0.5, same=0.2, replacement="uniform"))
    counts = np.bincount(drawn, minlength=WORDS.size)
    assert not counts[WORDS.special].any()
    assert counts[WORDS.ordinary].all()
    assert_shares(counts[WORDS.ordinary], np.ones(len(WORDS.ordinary)))


def test_unigram_replacements_are_as_frequent_as_in_the_corpus() -> None:
    drawn = _drawn(Corruption(mask=0.5, same=0.2, replacement="unigram"))
    assert WORDS.counts is not None
    share = WORDS.counts[WORDS.ordinary]
    seen = np.bincount(drawn, minlength=WORDS.size)[WORDS.ordinary]
    bins = np.arange(len(share)) // 20  # ids of like frequency together: enough draws in each
    assert seen.sum() == len(drawn)
    assert_shares(np.bincount(bins, seen), np.bincount(bins, share))


def test_any_replacements_are_even_over_the_whole_vocabulary() -> None:
    drawn = _drawn(Corruption(mask=0.5, same=0.2, replacement="any"))
    counts = np.bincount(drawn, minlength=WORDS.size)
    assert counts.all()
    assert_shares(counts, np.ones(WORDS.size))


def test_unigram_without_counts_is_refused() -> None:
    blocks = make_blocks([[1] * 50])
    how = Corruption(mask=0, same=0, replacement="unigram")
    with pytest.raises(UserError, match="--corpus"):
        how.corrupt(blocks, hide(Token(), blocks), 1, vocabulary=vocabulary(counts=False))


def test_static_masks_come_back_after_their_copies_and_dynamic_ones_never_do() -> None:
    static, dynamic = Corruption(copies=10), Corruption()
    seen = [static.copy(epoch) for epoch in range(40)]
    assert seen[:30] == seen[10:]
    assert all(a != b for a, b in zip(seen[:-1], seen[1:], strict=True))
    assert [seen.count(copy) for copy in sorted(set(seen))] == [4] * 10
    assert len({static.copy(epoch) for epoch in range(7)}) == 7
    assert len({dynamic.copy(epoch) for epoch in range(40)}) == 40


@pytest.mark.parametrize(
    "wrong",
    [{"mask": -0.1}, {"same": -0.1}, {"mask": 0.9, "same": 0.2}, {"copies": -1}],
)
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError):
        Corruption(**wrong)  # type: ignore[arg-type]


def _drawn(how: Corruption) -> np.ndarray:
    blocks = repeat([1] * 510, 800)
    hidden = hide(Token(mask_rate=0.3), blocks)
    out = corrupt(how, blocks, hidden)
    return out.ids[hidden.positions[out.decisions == RANDOM]]

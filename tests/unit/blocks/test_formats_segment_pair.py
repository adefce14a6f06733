"""SEGMENT-PAIR + NSP (card B1): who is paired with whom, how often, and what is left of it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from support import synthetic_documents
from support.block_contents import all_blocks, document_of, pairs, sentence_of

from clozelab.blocks.pairs import SegmentPair, fronts, trim
from clozelab.contracts import Blocks, Documents, Ints
from clozelab.errors import UserError


def prose(count: int, sentences: int, *, seed: int = 0) -> Documents:
    rng = np.random.default_rng(seed)
    return synthetic_documents.placed(
        [rng.integers(10, 50, sentences).tolist() for _ in range(count)]
    )


def firsts(blocks: Blocks) -> tuple[Ints, Ints]:
    """The first token of A and of B in every block, as places in the store."""
    sep = np.flatnonzero(blocks.ids == synthetic_documents.SPECIAL["sep"])[::2]
    tokens = blocks.ids.astype(np.int64) - synthetic_documents.PLACED
    return tokens[blocks.starts[:-1] + 1], tokens[sep + 1]


def labels_of(blocks: Blocks) -> Ints:
    assert blocks.labels is not None
    return blocks.labels


@pytest.mark.parametrize("compat", ["none", "google"])
@pytest.mark.parametrize("sentences", [2, 3, 20])
def test_the_share_of_random_pairs_is_forced_plus_half_the_rest(
    compat: str, sentences: int
) -> None:
    plan = SegmentPair(length=128, compat=compat).plan(prose(6000 // sentences, sentences), 5)
    forced, share = plan.notes["forced"], labels_of(all_blocks(plan)).mean()
    assert plan.notes["random"] == share
    error = 0.5 * np.sqrt((1 - forced) / len(plan))
    assert abs(share - (forced + (1 - forced) / 2)) < 3 * error


@pytest.mark.thorough
@pytest.mark.parametrize(("sentences", "share"), [(20, 0.57), (3, 0.67), (1, 1.0)])
def test_the_reference_shares_of_random_pairs(sentences: int, share: float) -> None:
    plan = SegmentPair(length=64, compat="google").plan(prose(12000 // sentences, sentences), 5)
    assert plan.notes["random"] == pytest.approx(share, abs=0.03)


@pytest.mark.thorough
@pytest.mark.parametrize("sentences", [2, 3, 8])
def test_a_document_that_fits_is_used_up_as_the_arithmetic_says(sentences: int) -> None:
    # Every document ends in one random pair (on average), and gives 1 + ½ · mean(fewer) pairs.
    expected = [Fraction(0), Fraction(1)]
    for size in range(2, sentences + 1):
        expected.append(1 + sum(expected[1:size], Fraction(0)) / (2 * (size - 1)))
    count = 4000
    plan = SegmentPair(length=512, short=0).plan(prose(count, sentences), 5)
    assert len(plan) / count == pytest.approx(float(expected[-1]), abs=4 / np.sqrt(count))
    assert plan.notes["random"] == pytest.approx(1 / float(expected[-1]), abs=0.03)


def test_a_random_partner_comes_from_another_document() -> None:
    documents = prose(3, 400)
    blocks = all_blocks(SegmentPair(length=64).plan(documents, 5))
    first, second = (document_of(documents, at) for at in firsts(blocks))
    assert np.array_equal(first != second, labels_of(blocks) == 1)


def test_a_random_partner_is_uniform_over_the_other_documents_and_their_sentences() -> None:
    documents = synthetic_documents.placed([[4] * 2000, [4] * 5, [4] * 10, [4] * 5])
    blocks = all_blocks(SegmentPair(length=11, short=0).plan(documents, 5))
    first, second = firsts(blocks)
    drawn = second[(document_of(documents, first) == 0) & (labels_of(blocks) == 1)]
    others = np.bincount(document_of(documents, drawn), minlength=4)
    third = len(drawn) / 3
    assert others[0] == 0
    assert (np.abs(others[1:] - third) < 4 * np.sqrt(third)).all()
    inside = np.bincount(sentence_of(documents, drawn))[2000:]
    expected = np.repeat(third / np.array([5, 10, 5]), [5, 10, 5])
    assert (np.abs(inside - expected) < 5 * np.sqrt(expected)).all()


def test_google_pairs_a_document_with_itself_after_ten_redraws() -> None:
    documents = synthetic_documents.placed([[4] * 100_000] * 2)
    plan = SegmentPair(length=8, compat="google", short=0).plan(documents, 5)
    blocks = all_blocks(plan)
    first, second = (document_of(documents, at) for at in firsts(blocks))
    random = labels_of(blocks) == 1
    expected = random.sum() * 2.0**-10
    assert expected > 50
    assert abs((first == second)[random].sum() - expected) < 4 * np.sqrt(expected)


def test_google_pairs_a_single_document_with_itself() -> None:
    documents = synthetic_documents.placed([[4] * 50])
    blocks = all_blocks(SegmentPair(length=32, compat="google").plan(documents, 5))
    assert labels_of(blocks).any()


def test_a_next_segment_follows_right_after_unless_something_was_trimmed() -> None:
    blocks = all_blocks(SegmentPair(length=64).plan(prose(200, 12), 5))
    untrimmed = 0
    for (first, second), label, size in zip(
        pairs(blocks), labels_of(blocks).tolist(), blocks.lengths.tolist(), strict=True
    ):
        if label == 0:
            assert second[0] > first[-1]
            if size < 64:
                untrimmed += 1
                assert second[0] == first[-1] + 1
    assert untrimmed > 20


def test_every_sentence_occurs_once_in_a_first_or_a_next_segment() -> None:
    # Sixty tokens hold six sentences of ten, so nothing is trimmed.
    documents = synthetic_documents.placed([[10] * n for n in range(1, 40)])
    blocks = all_blocks(SegmentPair(length=63, short=0).plan(documents, 5))
    used: list[int] = []
    for (first, second), label in zip(pairs(blocks), labels_of(blocks).tolist(), strict=True):
        used += [*first.tolist(), *(second.tolist() if label == 0 else [])]
    assert sorted(used) == list(range(len(documents.ids)))


def literal_trim(first: int, second: int, room: int) -> tuple[int, int]:
    lost = [0, 0]
    while first + second - sum(lost) > room:
        lost[0 if first - lost[0] > second - lost[1] else 1] += 1
    return lost[0], lost[1]


def test_trimming_is_the_published_loop() -> None:
    sizes = [(a, b, room) for a in range(1, 15) for b in range(1, 15) for room in range(2, 20)]
    first, second, rooms = np.array(sizes).T
    for room in np.unique(rooms).tolist():
        at = rooms == room
        lost = np.stack(trim(first[at], second[at], room=room), axis=1)
        expected = [literal_trim(a, b, room) for a, b in zip(first[at], second[at], strict=True)]
        assert np.array_equal(lost, expected)


@pytest.mark.parametrize("dropped", [1, 63, 64, 65, 200])
def test_each_dropped_token_goes_at_the_front_by_a_fair_coin(dropped: int) -> None:
    count = 20_000
    front = fronts(7, np.arange(count), np.full(count, dropped))
    error = np.sqrt(dropped / 4 / count)
    assert abs(front.mean() - dropped / 2) < 4 * error
    spread = dropped / 4 * np.sqrt(2 / count)  # of the variance, near enough to normal
    assert abs(front.var() - dropped / 4) < 4 * spread + 1e-3
    assert front.min() >= 0
    assert front.max() <= dropped


def test_mixed_losses_are_drawn_as_if_alone() -> None:
    at, dropped = np.arange(50), np.arange(50) * 5
    alone = [int(fronts(7, at[i : i + 1], dropped[i : i + 1])[0]) for i in range(50)]
    assert fronts(7, at, dropped).tolist() == alone
    assert alone[0] == 0


def test_an_over_long_sentence_loses_tokens_at_both_ends_under_google() -> None:
    documents = synthetic_documents.placed([[1000]] * 300)
    blocks = all_blocks(SegmentPair(length=63, short=0, compat="google").plan(documents, 5))
    lost = [int(first[0] % 1000) for first, _ in pairs(blocks)]
    assert all(len(first) == len(second) == 30 for first, second in pairs(blocks))
    assert np.mean(lost) == pytest.approx(485, abs=4 * np.sqrt(970 / 4 / 300))


def test_an_over_long_sentence_is_split_by_default() -> None:
    documents = synthetic_documents.placed([[150], [3, 4]])
    plan = SegmentPair(length=63, short=0).plan(documents, 5)
    assert plan.notes["sentences split"] == 1
    blocks = all_blocks(plan)
    inside = document_of(documents, firsts(blocks)[0]) == 0
    assert (firsts(blocks)[0][inside] // 60).tolist() == [0, 1, 2]


def test_single_sentences_may_be_skipped() -> None:
    documents = prose(3000, 3)
    force = SegmentPair(length=64).plan(documents, 5)
    skip = SegmentPair(length=64, single="skip").plan(documents, 5)
    assert skip.notes["forced"] == 0
    assert skip.notes["single sentences skipped"] > 500
    assert force.notes["single sentences skipped"] == 0
    assert abs(skip.notes["random"] - 0.5) < 3 * 0.5 / np.sqrt(len(skip))
    # The same pairs otherwise: forcing adds blocks and changes none.
    assert len(force) == len(skip) + skip.notes["single sentences skipped"]


@pytest.mark.parametrize("single", ["force", "skip"])
def test_partners_of_the_same_document_lie_outside_the_chunk(single: str) -> None:
    documents = prose(60, 12)
    part = SegmentPair(length=100, short=0, single=single, negatives="same_document")
    plan = part.plan(documents, 5)
    blocks = all_blocks(plan)
    # With targets all alike, the chunk of a random pair is found again from where A begins.
    before = after = 0
    for (first, second), label in zip(pairs(blocks), labels_of(blocks).tolist(), strict=True):
        assert document_of(documents, first[:1]) == document_of(documents, second[:1])
        if label == 1:
            start = documents.sentences[sentence_of(documents, first[:1])[0]]
            last = documents.sentences[documents.documents[document_of(documents, first[:1]) + 1]][
                0
            ]
            stop = np.searchsorted(documents.sentences, start + 97)
            chunk_end = min(documents.sentences[min(stop, len(documents.sentences) - 1)], last)
            assert second[-1] < start or second[0] >= chunk_end
            before, after = before + (second[-1] < start), after + (second[0] >= chunk_end)
    assert min(before, after) > 20


def test_a_partner_of_the_same_document_never_follows_a_single_sentence() -> None:
    documents = synthetic_documents.placed([[30] * 6] * 50)  # a sentence fills the block
    plan = SegmentPair(length=33, short=0, negatives="same_document").plan(documents, 5)
    assert plan.notes["forced"] == 1 and len(plan) == 300
    for first, second in pairs(all_blocks(plan)):
        one, other = (sentence_of(documents, part[:1])[0] for part in (first, second))
        assert other != one + 1 or other % 6 == 0


def test_a_document_of_one_sentence_has_no_partner_in_itself() -> None:
    documents = synthetic_documents.placed([[5]] * 4 + [[6, 6, 6]])
    plan = SegmentPair(length=64, negatives="same_document").plan(documents, 5)
    assert plan.notes["single sentences skipped"] == 4
    assert (firsts(all_blocks(plan))[0] >= 20).all()


@pytest.mark.parametrize("short", [0.0, 0.1, 0.5, 1.0])
def test_targets_are_short_as_often_as_asked_and_then_uniform(short: float) -> None:
    documents = synthetic_documents.placed([[1] * 100_000, [1] * 200])
    blocks = all_blocks(SegmentPair(length=53, short=short).plan(documents, 5))
    follows = labels_of(blocks) == 0
    follows &= firsts(blocks)[0] < 99_000
    target = blocks.lengths[follows] - 3
    below = target[target < 50]
    # One short target in 49 is full length by chance.
    share = short * 48 / 49
    error = np.sqrt(share * (1 - share) / len(target))
    assert abs(len(below) / len(target) - share) < 4 * error + 1e-12
    if short:
        assert set(below.tolist()) <= set(range(2, 50))
        spread = np.sqrt((48**2 - 1) / 12 / len(below))
        assert abs(below.mean() - 25.5) < 4 * spread


def test_google_draws_one_target_for_a_document() -> None:
    documents = synthetic_documents.placed([[1] * 300] * 50)
    blocks = all_blocks(SegmentPair(length=53, short=1, compat="google").plan(documents, 5))
    follows = labels_of(blocks) == 0
    first = firsts(blocks)[0]
    follows &= first % 300 < 250
    where = document_of(documents, first[follows])
    targets = [set(blocks.lengths[follows][where == at].tolist()) for at in np.unique(where)]
    assert max(map(len, targets)) == 1
    assert len(set.union(*targets)) > 20


def test_one_document_is_refused_with_a_remedy() -> None:
    with pytest.raises(UserError, match="single document") as refused:
        SegmentPair(length=32).plan(synthetic_documents.placed([[4] * 30, [], [0]]), 5)
    assert "\n" not in str(refused.value)
    assert 'blocks.negatives = "same_document"' in str(refused.value)
    assert len(
        SegmentPair(length=32, negatives="same_document").plan(
            synthetic_documents.placed([[4] * 30]), 5
        )
    )


@pytest.mark.parametrize("wrong", [{"length": 4}, {"short": -0.1}, {"short": 1.1}])
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        SegmentPair(**wrong)

"""SENTENCE-PAIR + NSP and sentence order (cards B2, B6)."""

from __future__ import annotations

import numpy as np
import pytest
from support import synthetic_documents
from support.block_contents import all_blocks, document_of, pairs, sentence_of, whole

from clozelab.blocks.pairs import SentenceOrderPair, SentencePair
from clozelab.contracts import Blocks, Documents, Ints
from clozelab.errors import UserError


def prose(count: int = 300, *, least: int = 1) -> Documents:
    rng = np.random.default_rng(6)
    return synthetic_documents.placed(
        [rng.integers(3, 30, rng.integers(least, 12)).tolist() for _ in range(count)]
    )


def labels_of(blocks: Blocks) -> Ints:
    assert blocks.labels is not None
    return blocks.labels


def sentence_pairs(documents: Documents, blocks: Blocks) -> Ints:
    """[B, 2] the sentences paired, each segment lying within one."""
    rows = []
    for block in pairs(blocks):
        ends = [sentence_of(documents, run[[0, -1]]) for run in block]
        assert all(first == last for first, last in ends)
        rows.append([int(first) for first, _ in ends])
    return np.array(rows)


def lasts(documents: Documents) -> Ints:
    return documents.documents[1:] - 1


def test_every_sentence_with_a_next_one_is_first_once() -> None:
    documents = prose()
    plan = SentencePair(length=64).plan(documents, 5)
    first = sentence_pairs(documents, all_blocks(plan))[:, 0]
    every = np.arange(len(documents.sentences) - 1)
    assert sorted(first.tolist()) == np.setdiff1d(every, lasts(documents)).tolist()
    assert plan.notes["last sentences skipped"] == len(documents)


def test_last_sentences_may_take_a_random_partner() -> None:
    documents = prose()
    blocks = all_blocks(SentencePair(length=64, last="random").plan(documents, 5))
    first = sentence_pairs(documents, blocks)[:, 0]
    assert sorted(first.tolist()) == list(range(len(documents.sentences) - 1))
    assert (labels_of(blocks)[np.isin(first, lasts(documents))] == 1).all()


def test_a_next_sentence_is_next_and_a_random_one_of_another_document() -> None:
    documents = prose()
    blocks = all_blocks(SentencePair(length=64).plan(documents, 5))
    first, second = sentence_pairs(documents, blocks).T
    follows = labels_of(blocks) == 0
    assert np.array_equal(second[follows], first[follows] + 1)
    first_documents, random_documents = (
        document_of(documents, documents.sentences[at[~follows]]) for at in (first, second)
    )
    assert (first_documents != random_documents).all()


@pytest.mark.thorough
@pytest.mark.parametrize("last", ["skip", "random"])
def test_the_coin_of_a_sentence_with_a_next_one_is_fair(last: str) -> None:
    documents = synthetic_documents.placed([[4] * 10] * 800)
    blocks = all_blocks(SentencePair(length=64, last=last).plan(documents, 5))
    first = sentence_pairs(documents, blocks)[:, 0]
    labels = labels_of(blocks)[first % 10 != 9]
    assert len(labels) == 7200
    assert abs(labels.mean() - 0.5) < 3 * 0.5 / np.sqrt(7200)


def test_sentences_that_fit_are_whole_and_others_trimmed_to_the_length() -> None:
    documents = synthetic_documents.placed([[4, 40, 6, 50]] * 50)
    blocks = all_blocks(SentencePair(length=43).plan(documents, 5))
    assert blocks.lengths.max() == 43
    for (first, second), size in zip(pairs(blocks), blocks.lengths.tolist(), strict=True):
        assert size == 43 or (whole(documents, first) and whole(documents, second))


@pytest.mark.parametrize("last", ["skip", "random"])
def test_partners_of_the_same_document_are_neither_the_sentence_nor_its_next(last: str) -> None:
    documents = synthetic_documents.placed([[4] * 5] * 600)
    part = SentencePair(length=64, last=last, negatives="same_document")
    blocks = all_blocks(part.plan(documents, 5))
    first, second = sentence_pairs(documents, blocks).T
    random = labels_of(blocks) == 1
    assert np.array_equal(first // 5, second // 5)
    assert not np.isin(second[random] - first[random], [0, 1]).any()
    # Uniform over those left: for the first sentence three, for the last one four.
    for at, left in ((0, [2, 3, 4]), (2, [0, 1, 4]), (4, [0, 1, 2, 3])):
        drawn = second[random & (first % 5 == at)] % 5
        if len(drawn):
            share = len(drawn) / len(left)
            counts = np.bincount(drawn, minlength=5)[left]
            assert counts.sum() == len(drawn)
            assert (np.abs(counts - share) < 4 * np.sqrt(share)).all()
    assert (first % 5 == 4).any() == (last == "random")


@pytest.mark.parametrize(("last", "expected"), [("skip", [[0, 1]]), ("random", [[0, 1], [1, 0]])])
def test_two_sentences_alone_are_next_to_each_other(last: str, expected: list[list[int]]) -> None:
    documents = synthetic_documents.placed([[4, 4]])
    part = SentencePair(length=64, last=last, negatives="same_document")
    blocks = all_blocks(part.plan(documents, 5))
    assert sentence_pairs(documents, blocks).tolist() == expected
    assert labels_of(blocks).tolist() == list(range(len(expected)))


def test_one_document_is_refused_with_a_remedy() -> None:
    with pytest.raises(UserError, match=r"sentence_pair: .*single document.*same_document"):
        SentencePair(length=32).plan(synthetic_documents.placed([[4] * 30]), 5)


@pytest.mark.parametrize("negatives", ["other_document", "same_document"])
def test_documents_of_one_sentence_give_no_sentence_pair(negatives: str) -> None:
    with pytest.raises(UserError, match="too small for one block"):
        SentencePair(length=32, negatives=negatives).plan(synthetic_documents.placed([[4]] * 5), 5)


def test_swapping_back_gives_a_stretch_of_one_document() -> None:
    documents = prose(least=2)
    blocks = all_blocks(SentenceOrderPair(length=2000).plan(documents, 5))
    for (first_run, two), label in zip(pairs(blocks), labels_of(blocks).tolist(), strict=True):
        first, second = (two, first_run) if label else (first_run, two)
        assert second[0] == first[-1] + 1
        assert len(np.unique(document_of(documents, np.append(first_run, two)))) == 1
        assert whole(documents, first_run)
        assert whole(documents, two)


def test_trimmed_halves_keep_their_order_and_their_document() -> None:
    documents = prose(least=2)
    blocks = all_blocks(SentenceOrderPair(length=40, short=0).plan(documents, 5))
    assert (blocks.lengths == 40).mean() > 0.3
    for (first, second), label in zip(pairs(blocks), labels_of(blocks).tolist(), strict=True):
        assert (second[0] > first[-1]) == (label == 0)
        assert (first[0] > second[-1]) == (label == 1)
        assert document_of(documents, first[:1]) == document_of(documents, second[:1])


def test_half_the_pairs_are_swapped() -> None:
    plan = SentenceOrderPair(length=40).plan(synthetic_documents.placed([[8] * 20] * 700), 5)
    labels = labels_of(all_blocks(plan))
    assert plan.notes["swapped"] == labels.mean()
    assert abs(labels.mean() - 0.5) < 3 * 0.5 / np.sqrt(len(labels))


def test_swapped_and_unswapped_pairs_are_alike_but_for_their_order() -> None:
    documents = synthetic_documents.placed([[8] * 20] * 3000)
    blocks = all_blocks(SentenceOrderPair(length=2000).plan(documents, 5))
    sizes = np.array([[len(first), len(second)] for first, second in pairs(blocks)])
    swapped = labels_of(blocks) == 1
    straight, turned = sizes[~swapped].mean(axis=0), sizes[swapped][:, ::-1].mean(axis=0)
    error = sizes.std() * np.sqrt(4 / len(sizes))
    assert (np.abs(straight - turned) < 4 * error).all()


def test_single_sentences_have_no_order_and_are_skipped() -> None:
    documents = synthetic_documents.placed([[5]] * 30 + [[5, 5]] * 10)
    plan = SentenceOrderPair(length=64, short=0).plan(documents, 5)
    assert (len(plan), plan.notes["single sentences skipped"]) == (10, 30)


def test_albert_gives_single_sentences_a_partner_from_elsewhere_and_label_one() -> None:
    documents = synthetic_documents.placed([[5]] * 30 + [[5, 5]] * 10)
    plan = SentenceOrderPair(length=64, short=0, compat="albert").plan(documents, 5)
    blocks = all_blocks(plan)
    assert (len(plan), plan.notes["single sentences skipped"]) == (40, 0)
    alone = 0
    for (first, second), label in zip(pairs(blocks), labels_of(blocks).tolist(), strict=True):
        if first[0] < 150:  # a sentence alone
            where = document_of(documents, np.array([first[0], second[0]]))
            alone += 1
            assert label == 1
            assert where[0] != where[1]
    assert alone == 30


def test_a_corpus_of_single_sentences_has_no_order() -> None:
    with pytest.raises(UserError, match="too small for one block"):
        SentenceOrderPair(length=64).plan(synthetic_documents.placed([[5]] * 30), 5)


@pytest.mark.parametrize("part", [SentencePair, SentenceOrderPair])
def test_two_segments_need_five_tokens(part: type) -> None:
    with pytest.raises(UserError, match="length = 4"):
        part(length=4)

"""FULL-SENTENCES, DOC-SENTENCES and SpanBERT's single sequences (cards B3, B4, B5)."""

from __future__ import annotations

import numpy as np
import pytest
from support import synthetic_documents
from support.block_contents import all_blocks, document_of, runs, whole

from clozelab.blocks.sentences import DocSentences, FullSentences
from clozelab.contracts import Documents
from clozelab.errors import UserError


def prose(count: int = 200, *, most: int = 40) -> Documents:
    rng = np.random.default_rng(2)
    shape = [rng.integers(1, most, rng.integers(1, 20)).tolist() for _ in range(count)]
    return synthetic_documents.placed([*shape, [1], [0, 1]])


def tokens(plan: object) -> list[int]:
    """Every token of every block, as places in the store."""
    blocks = all_blocks(plan)  # type: ignore[arg-type]
    return [int(place) for block in runs(blocks) for run in block for place in run]


@pytest.mark.parametrize("length", [3, 20, 512])
@pytest.mark.parametrize("order", ["documents", "sentences"])
def test_full_sentences_hold_every_token_once(length: int, order: str) -> None:
    documents = prose()
    plan = FullSentences(length=length, order=order).plan(documents, 5)
    assert sorted(tokens(plan)) == list(range(len(documents.ids)))


@pytest.mark.parametrize("length", [20, 512])
def test_doc_sentences_hold_every_token_once(length: int) -> None:
    documents = prose()
    plan = DocSentences(length=length).plan(documents, 5)
    single = np.flatnonzero(np.diff(documents.sentences[documents.documents]) == 1)
    assert plan.notes["documents of one token dropped"] == len(single) == 2
    gone = documents.sentences[documents.documents[single]].tolist()
    assert sorted([*tokens(plan), *gone]) == list(range(len(documents.ids)))


def test_blocks_are_whole_sentences_when_all_fit() -> None:
    documents = prose()
    for part in (FullSentences(length=64), DocSentences(length=64)):
        plan = part.plan(documents, 5)
        assert plan.notes["sentences split"] == 0
        assert all(whole(documents, run) for block in runs(all_blocks(plan)) for run in block)


def test_an_inner_separator_stands_at_a_document_boundary_and_nowhere_else() -> None:
    documents = prose()
    inner = 0
    for block in runs(all_blocks(FullSentences(length=100).plan(documents, 5))):
        where = [int(document_of(documents, run[:1])[0]) for run in block]
        assert all(first != second for first, second in zip(where, where[1:], strict=False))
        for first, second in zip(block, block[1:], strict=False):
            inner += 1
            ends = documents.sentences[documents.documents]
            assert first[-1] + 1 in ends
            assert second[0] in ends
    assert inner > 100


def test_a_separator_costs_one_place() -> None:
    # Two documents of three tokens: five places hold one and a separator, seven hold both.
    documents = synthetic_documents.placed([[3], [3]])
    assert len(FullSentences(length=2 + 6).plan(documents, 5)) == 2
    assert len(FullSentences(length=2 + 7).plan(documents, 5)) == 1


def test_a_document_that_begins_a_block_costs_no_separator() -> None:
    documents = synthetic_documents.placed([[6], [6], [6]])
    blocks = all_blocks(FullSentences(length=8).plan(documents, 5))
    assert blocks.lengths.tolist() == [8, 8, 8]


@pytest.mark.parametrize("length", [64, 128, 512])
def test_full_blocks_are_filled_but_for_less_than_a_sentence(length: int) -> None:
    documents = prose(600)
    blocks = all_blocks(FullSentences(length=length).plan(documents, 5))
    fill = (blocks.lengths[:-1] - 2) / (length - 2)
    assert fill.mean() >= 1 - np.diff(documents.sentences).mean() / (length - 2)
    # The next block's first sentence would not have fitted, nor with a separator before it.
    first = [block[0] for block in runs(blocks)][1:]
    where = [np.searchsorted(documents.sentences, run[0], side="right") for run in first]
    following = np.diff(documents.sentences)[np.array(where) - 1]
    enters = np.isin([run[0] for run in first], documents.sentences[documents.documents])
    assert (blocks.lengths[:-1] + following + enters > length).all()


def test_a_sentence_no_block_could_hold_is_split_into_full_parts() -> None:
    documents = synthetic_documents.placed([[25, 4]])
    for part in (FullSentences(length=12), DocSentences(length=12)):
        plan = part.plan(documents, 5)
        assert plan.notes["sentences split"] == 1
        sizes = [len(block[0]) for block in runs(all_blocks(plan))]
        assert sizes == [10, 10, 9]  # the rest of 5 shares its block with the next sentence


def test_documents_are_shuffled_by_the_key_and_sentences_are_not() -> None:
    documents = synthetic_documents.placed([[4, 4, 4]] * 40)
    order = np.array(tokens(FullSentences(length=30).plan(documents, 5))).reshape(40, 12)
    assert (np.diff(order, axis=1) == 1).all()
    assert order[:, 0].tolist() != sorted(order[:, 0].tolist())


def test_a_block_of_doc_sentences_holds_one_document() -> None:
    documents = prose()
    blocks = runs(all_blocks(DocSentences(length=100).plan(documents, 5)))
    assert all(len(block) == 1 for block in blocks)
    assert all(len(np.unique(document_of(documents, block[0]))) == 1 for block in blocks)


def test_doc_sentences_are_shorter_than_full_ones() -> None:
    documents = prose()
    doc = all_blocks(DocSentences(length=128).plan(documents, 5))
    full = all_blocks(FullSentences(length=128).plan(documents, 5))
    assert doc.lengths.mean() < full.lengths.mean()


def test_spanbert_drops_over_long_sentences() -> None:
    documents = synthetic_documents.placed([[5, 30, 6, 4]])
    plan = DocSentences(length=22, compat="spanbert").plan(documents, 5)
    block_runs = runs(all_blocks(plan))
    assert [block[0].tolist() for block in block_runs] == [[*range(5), *range(35, 45)]]
    assert plan.notes["blocks lost"] == 0


def test_spanbert_loses_the_block_in_progress_before_an_over_long_last_sentence() -> None:
    documents = synthetic_documents.placed([[5, 18, 6, 30], [7, 7]])
    plan = DocSentences(length=22, compat="spanbert").plan(documents, 5)
    assert plan.notes["blocks lost"] == 1
    assert sorted(tokens(plan)) == [*range(23), *range(59, 73)]


def test_an_empty_last_sentence_does_not_hide_an_over_long_one() -> None:
    plan = DocSentences(length=22, compat="spanbert").plan(
        synthetic_documents.placed([[5, 30, 0], [7]]), 5
    )
    assert plan.notes["blocks lost"] == 1


def test_ours_loses_nothing_where_spanbert_does() -> None:
    documents = synthetic_documents.placed([[5, 18, 6, 30], [7, 7]])
    plan = DocSentences(length=22).plan(documents, 5)
    assert sorted(tokens(plan)) == list(range(73))


def test_a_corpus_of_nothing_but_lost_blocks_is_refused() -> None:
    with pytest.raises(UserError, match="too small for one block"):
        DocSentences(length=22, compat="spanbert").plan(
            synthetic_documents.placed([[5, 30], [40], [1]]), 5
        )


def test_a_corpus_of_one_token_documents_is_refused_by_doc_sentences() -> None:
    with pytest.raises(UserError, match="too small for one block"):
        DocSentences(length=22).plan(synthetic_documents.placed([[1], [0, 1], [1, 0]]), 5)


@pytest.mark.parametrize("part", [FullSentences, DocSentences])
def test_a_block_without_room_is_refused(part: type) -> None:
    with pytest.raises(UserError, match="length = 2"):
        part(length=2)

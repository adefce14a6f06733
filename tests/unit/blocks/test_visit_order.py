"""The visit to the documents: order, splitting, chains over windows, and what planning costs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import synthetic_documents
from support.block_contents import all_blocks, document_of, pairs, runs, sentence_of

from clozelab.blocks import PARTS, visits
from clozelab.blocks.block_table import Chain, TableFormat
from clozelab.blocks.pairs import SegmentPair
from clozelab.blocks.planned import PiecesInMemory, joined
from clozelab.blocks.sentences import DocSentences
from clozelab.blocks.visits import Entries, VisitOrder, Window, entries, visit_order
from clozelab.contracts import Documents, Ints


@pytest.fixture(scope="module")
def large() -> Documents:
    """Five million tokens in two hundred thousand sentences."""
    rng = np.random.default_rng(0)
    return synthetic_documents.documents(
        [rng.integers(1, 50, n).tolist() for n in rng.integers(1, 40, 10_100)]
    )


def all_of(way: VisitOrder) -> Window:
    return Window(way, 0, len(way))


def sizes_of(way: VisitOrder) -> list[int]:
    sizes: list[int] = way.sizes_of(0, len(way)).tolist()
    return sizes


def starts_of(way: VisitOrder) -> Ints:
    whole = all_of(way)
    return way.starts(whole.here, whole.documents)


def literal_chain(following: Ints) -> list[int]:
    met, at = [], 0
    while at < len(following):
        met.append(at)
        at = int(following[at])
    return met


@given(steps=st.lists(st.integers(1, 9), max_size=60), window=st.integers(1, 12))
def test_a_chain_is_the_same_through_any_window(steps: list[int], window: int) -> None:
    total = len(steps)
    following = np.minimum(np.arange(total) + np.array(steps, dtype=np.int64), total)
    running = np.arange(total + 1, dtype=np.uint32)
    order = VisitOrder(running, np.array([0, total]), np.array([0]))
    chain = Chain()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(visits, "_WINDOW", window)
        met = [chain.follow(part, following[part.here]).tolist() for part in order.windows()]
    assert sum(met, []) == literal_chain(following)


@pytest.mark.parametrize("name", ["segment_pair", "full_sentences", "doc_sentences", "words"])
def test_a_plan_is_the_same_through_a_small_window(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = synthetic_documents.prose()
    expected = all_blocks(PARTS[name](length=64).plan(documents, 4))
    monkeypatch.setattr(visits, "_WINDOW", 7)
    windowed = all_blocks(PARTS[name](length=64).plan(documents, 4))
    assert np.array_equal(windowed.ids, expected.ids)
    assert np.array_equal(windowed.starts, expected.starts)


def visited(documents: Documents, key: int = 1, **options: Any) -> VisitOrder:
    return visit_order(documents, key, pieces=PiecesInMemory(), **options)


def test_a_walk_leaves_out_what_is_empty() -> None:
    way = visited(synthetic_documents.placed([[0, 3, 0], [], [0], [2, 4]]))
    assert sorted(sizes_of(way)) == [2, 3, 4]
    assert np.diff(way.bounds).tolist() in ([1, 2], [2, 1])
    assert all_of(way).ends.tolist() == np.repeat(way.bounds[1:], np.diff(way.bounds)).tolist()


@pytest.mark.parametrize("longest", [1, 4, 5, 100])
def test_long_sentences_become_full_parts_and_a_rest(longest: int) -> None:
    way = visited(synthetic_documents.placed([[10, 3]]), longest=longest)
    sizes = [min(longest, size - at) for size in (10, 3) for at in range(0, size, longest)]
    assert sizes_of(way) == sizes
    assert starts_of(way).tolist() == np.cumsum([0, *sizes[:-1]]).tolist()
    assert way.split == sum(size > longest for size in (10, 3))


TABLES = {name: part for name, part in PARTS.items() if issubclass(part, TableFormat)}


def apart(way: VisitOrder) -> VisitOrder:
    """The same visit with the place of each entry in the store."""
    return replace(way, scattered=starts_of(way))


def beyond(way: VisitOrder) -> VisitOrder:
    """The same visit, as if many tokens came before: counts go through zero on the way."""
    return replace(way, running=way.running - np.uint32(500))


@pytest.mark.parametrize("changed", [apart, beyond])
@pytest.mark.parametrize("name", TABLES)
def test_how_a_visit_is_kept_changes_no_plan(
    name: str, changed: Callable[[VisitOrder], VisitOrder], monkeypatch: pytest.MonkeyPatch
) -> None:
    documents, part = synthetic_documents.prose(), TABLES[name](length=32)
    expected = joined(part.stretches(documents, 4, PiecesInMemory()))
    plain = part.visits(documents, 4, PiecesInMemory())
    monkeypatch.setattr(TABLES[name], "visits", lambda *_: changed(plain))
    found = joined(part.stretches(documents, 4, PiecesInMemory()))
    assert plain.scattered is None and found.counts == expected.counts
    for column, values in expected.columns.items():
        assert np.array_equal(found.columns[column], values), column


def test_a_visit_takes_four_bytes_a_sentence(large: Documents) -> None:
    """Partners are looked up in them at random, so that they must stay in memory."""
    for order, each in (("documents", 4), ("sentences", 12)):
        part = SegmentPair(length=128, order=order)
        way = part.visits(large, 1, PiecesInMemory())
        columns = [way.running, way.bounds, way.firsts, way.scattered, way.values]
        held = sum(column.nbytes for column in columns if column is not None)
        assert held <= each * len(way) + 16 * len(large) + 12


def test_gaps_in_documents_are_kept_and_never_overlooked() -> None:
    documents = synthetic_documents.placed([[3, 1, 4], [1, 5], [2, 6]])

    def without_ones(some: Entries) -> Entries:
        sizes = np.where(some.sizes == 1, 0, some.sizes)
        return entries(some.starts, sizes, some.documents)

    way = visited(documents, refine=without_ones, gaps=True)
    places = dict(zip(starts_of(way).tolist(), sizes_of(way), strict=True))
    assert places == {0: 3, 4: 4, 9: 5, 14: 2, 16: 6}
    with pytest.raises(AssertionError, match="follow each other in the store"):
        visited(documents, refine=without_ones)


def test_shuffled_sentences_keep_the_documents_sizes() -> None:
    documents = synthetic_documents.placed([[5] * n for n in range(1, 60)])
    usual = visited(documents, 3)
    dealt = visited(documents, 3, order="sentences")
    assert np.array_equal(dealt.bounds, usual.bounds)
    assert sorted(starts_of(dealt).tolist()) == sorted(starts_of(usual).tolist())
    owner = all_of(dealt).documents
    inside = owner[1:] == owner[:-1]
    source = document_of(documents, starts_of(dealt))
    together = (source[1:] == source[:-1])[inside]
    # Two sentences drawn blindly share a document with probability Σ n(n−1) / N(N−1) ≈ .022.
    sizes = np.diff(documents.documents)
    chance = (sizes * (sizes - 1)).sum() / (sizes.sum() * (sizes.sum() - 1))
    assert abs(together.mean() - chance) < 4 * np.sqrt(chance / len(together))


def test_shuffled_sentences_reach_the_blocks_of_both_formats() -> None:
    documents = synthetic_documents.placed([[5] * 20] * 40)
    single = runs(all_blocks(DocSentences(length=52, order="sentences").plan(documents, 3)))
    assert {len(block[0]) for block in single} == {50}
    assert np.mean([len(np.unique(document_of(documents, block[0]))) for block in single]) > 8
    blocks = all_blocks(SegmentPair(length=53, short=0, order="sentences").plan(documents, 3))
    assert blocks.labels is not None
    nexts = [pair for pair, label in zip(pairs(blocks), blocks.labels, strict=True) if label == 0]
    follows = [second[0] == first[-1] + 1 for first, second in nexts]
    assert len(follows) > 10
    assert np.mean(follows) < 0.1


def settings_of(name: str) -> dict[str, Any]:
    return {"rows": 64} if name == "stream_pair" else {}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.thorough
def test_planning_five_million_tokens_takes_little_memory(name: str, large: Documents) -> None:
    part = PARTS[name](**settings_of(name))
    tracemalloc.start()
    plan = part.plan(large, 1)
    plan.blocks(np.arange(64))
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    sentences = len(large.sentences)
    assert len(large.ids) > 5_000_000
    assert peak < 500 * sentences
    assert held < 60 * sentences


def test_sentence_of_and_document_of_skip_empty_ones() -> None:
    documents = synthetic_documents.placed([[0, 2], [], [1]])
    places = np.arange(3)
    assert sentence_of(documents, places).tolist() == [1, 1, 2]
    assert document_of(documents, places).tolist() == [0, 0, 2]

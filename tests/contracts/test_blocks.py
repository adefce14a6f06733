"""What every input format promises, over every part of clozelab.blocks (cards B, common part)."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import synthetic_documents
from support.block_contents import all_blocks, cut_out, document_of, neighbours, same
from support.hypothesis_settings import max_examples

from clozelab.blocks import PARTS
from clozelab.blocks.block_table import BlockTable
from clozelab.contracts import Blocks, Documents, Format, Mark
from clozelab.errors import UserError
from clozelab.testing import check_blocks

# A new part: its layout and a few settings, short blocks among them.
EXAMPLES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "segment_pair": (
        "pair",
        [
            {"length": 5},
            {"length": 40, "short": 0.5},
            {"length": 128, "single": "skip"},
            {"length": 33, "negatives": "same_document"},
            {"length": 24, "negatives": "same_document", "single": "skip", "short": 1.0},
            {"length": 64, "order": "sentences"},
            {"length": 64, "compat": "google", "short": 0.4},
        ],
    ),
    "sentence_pair": (
        "pair",
        [
            {"length": 5},
            {"length": 48, "last": "random"},
            {"length": 512, "negatives": "same_document"},
            {"length": 20, "negatives": "same_document", "last": "random"},
            {"length": 64, "order": "sentences"},
        ],
    ),
    "full_sentences": (
        "full",
        [
            {"length": 3},
            {"length": 37},
            {"length": 512},
            {"length": 3, "order": "sentences"},
            {"length": 64, "order": "sentences"},
        ],
    ),
    "doc_sentences": (
        "single",
        [
            {"length": 3},
            {"length": 40},
            {"length": 512},
            {"length": 50, "order": "sentences"},
            {"length": 40, "compat": "spanbert"},
        ],
    ),
    "single_sentences": (
        "single",
        [{"length": 3}, {"length": 32}, {"length": 64, "shortest": 4}],
    ),
    "sentence_rows": (
        "single",
        [{"length": 3}, {"length": 32, "views": 3}, {"length": 64, "shortest": 2}],
    ),
    "sentence_order": (
        "pair",
        [
            {"length": 5},
            {"length": 64, "short": 0.5},
            {"length": 300},
            {"length": 64, "order": "sentences"},
            {"length": 50, "compat": "albert", "short": 0.4},
        ],
    ),
    "stream_pair": (
        "stream",
        [
            {"length": 12, "reuse": 5, "rows": 2},
            {"length": 8, "reuse": 3, "rows": 3, "reverse": False},
            {"length": 16, "reuse": 11, "rows": 4},
            {"length": 10, "reuse": 5, "rows": 1, "reverse": False},
        ],
    ),
    "causal": ("cut", [{"length": 2}, {"length": 7}, {"length": 64}, {"length": 512}]),
    "words": ("words", [{"length": 3}, {"length": 20, "characters": 6}, {"length": 128}]),
}

PINNED = {
    "segment_pair": "505f1c0e36507b1e",
    "sentence_pair": "aba186ff9f7f2578",
    "full_sentences": "d7cd7f4b0d5ce562",
    "doc_sentences": "6489b99ad9b42b11",
    "single_sentences": "ad11724f85a4b2e5",
    "sentence_rows": "1bdf7c8626aee15c",
    "sentence_order": "540a217f6495a828",
    "stream_pair": "4188b6038e0d0785",
    "causal": "dbb1a8a5d3591a72",
    "words": "d090c8520a89afbb",
}

# Every format finds a block in these, and in stream_pair's case enough tokens for its rows.
ENOUGH = [[1, 1, 1, 1, 9, 4, 12], [2, 3, 1, 1, 1, 8, 0, 14]]

sentences = st.one_of(st.integers(0, 3), st.integers(0, 60), st.integers(0, 700))
shapes = st.lists(st.lists(sentences, max_size=30), max_size=4).map(lambda some: [*some, *ENOUGH])
keys = st.integers(0, 2**64 - 1)
parts = pytest.mark.parametrize("name", PARTS)


def formats(name: str) -> list[Format]:
    return [PARTS[name](**settings) for settings in EXAMPLES[name][1]]


def check_pair(blocks: Blocks) -> None:
    seps = np.add.reduceat(blocks.ids == synthetic_documents.SPECIAL["sep"], blocks.starts[:-1])
    assert (seps == 2).all()
    after = np.cumsum(blocks.ids == synthetic_documents.SPECIAL["sep"]) - (
        blocks.ids == synthetic_documents.SPECIAL["sep"]
    )
    assert np.array_equal(blocks.segments, after - 2 * blocks.rows)
    assert blocks.labels is not None
    assert set(blocks.labels.tolist()) <= {0, 1}


def check_framed(blocks: Blocks) -> None:
    """`[CLS] … [SEP]`, and between two specials always text."""
    cls = np.flatnonzero(blocks.ids == synthetic_documents.SPECIAL["cls"])
    assert np.array_equal(cls, blocks.starts[:-1])
    assert (blocks.ids[blocks.starts[1:] - 1] == synthetic_documents.SPECIAL["sep"]).all()
    assert not (blocks.fixed[1:] & blocks.fixed[:-1] & neighbours(blocks)).any()
    assert set(blocks.ids[blocks.fixed].tolist()) == {
        synthetic_documents.SPECIAL["cls"],
        synthetic_documents.SPECIAL["sep"],
    }


def check_single(blocks: Blocks) -> None:
    seps = np.add.reduceat(blocks.ids == synthetic_documents.SPECIAL["sep"], blocks.starts[:-1])
    assert (seps == 1).all()


def check_stream(blocks: Blocks, part: Any) -> None:
    assert (blocks.lengths == part.length).all()
    ids, segments = blocks.ids.reshape(-1, part.length), blocks.segments.reshape(-1, part.length)
    assert set(ids[:, : part.reuse][blocks.fixed.reshape(ids.shape)[:, : part.reuse]]) <= {5}
    assert (
        ids[:, -2:] == [synthetic_documents.SPECIAL["sep"], synthetic_documents.SPECIAL["cls"]]
    ).all()
    seps = ids == synthetic_documents.SPECIAL["sep"]
    assert (seps.sum(axis=1) == 2).all()
    assert ((ids == synthetic_documents.SPECIAL["cls"]).sum(axis=1) == 1).all()
    middle = seps.argmax(axis=1)
    assert (middle > part.reuse).all()
    assert (middle < part.length - 3).all()
    expected = (np.arange(part.length) > middle[:, None]).astype(int)
    expected[:, -1] = 2
    assert np.array_equal(segments, expected)
    assert blocks.labels is not None
    assert blocks.reverse is not None


def check_layout(name: str, part: Any, blocks: Blocks) -> None:
    """Specials only where the layout says, segments right, blocks no longer than allowed."""
    layout = EXAMPLES[name][0]
    if layout == "stream":
        check_stream(blocks, part)
    elif layout == "cut":
        assert set(blocks.ids[blocks.fixed].tolist()) <= {synthetic_documents.SPECIAL["eod"]}
    else:
        check_framed(blocks)
    if layout == "pair":
        check_pair(blocks)
    if layout in ("single", "words"):
        check_single(blocks)
    if layout not in ("pair", "stream"):
        assert not blocks.segments.any()
        assert blocks.labels is None
    if layout == "words":
        assert blocks.words is not None
        assert np.diff(blocks.words.starts).max() <= part.length
    else:
        assert blocks.lengths.max() <= part.length


def check_text(part: Any, documents: Documents, blocks: Blocks) -> None:
    """Between specials lies a slice of the store; or whole sentences, where they are dealt."""
    inside = ~blocks.fixed[1:] & ~blocks.fixed[:-1] & neighbours(blocks)
    place = blocks.ids.astype(np.int64) - synthetic_documents.PLACED
    back = np.zeros(len(blocks), dtype=bool) if blocks.reverse is None else blocks.reverse
    step = np.where(back[blocks.rows], -1, 1)[1:]
    before, there = place[:-1][inside], place[1:][inside]
    follows = there - before == step[inside]
    dealt = getattr(part, "order", "documents") == "sentences"
    drops = getattr(part, "compat", "none") == "spanbert"
    if dealt or drops:
        bounds = np.isin(before + 1, documents.sentences) & np.isin(there, documents.sentences)
        follows |= bounds & (dealt | (before < there))
    assert follows.all()
    if not dealt:
        assert np.array_equal(document_of(documents, before), document_of(documents, there))


def check_marks(documents: Documents, blocks: Blocks) -> None:
    """Marks travel with their tokens; read backwards a unit begins where the next one ended."""
    assert (blocks.marks[blocks.fixed] == Mark.ALL).all()
    text = ~blocks.fixed
    place = blocks.ids[text].astype(np.int64) - synthetic_documents.PLACED
    back = np.zeros(len(blocks), dtype=bool) if blocks.reverse is None else blocks.reverse
    # The document's last token is followed by its end, which begins every unit.
    marks = np.append(documents.marks, Mark.ALL)
    expected = np.where(back[blocks.rows[text]], marks[place + 1], marks[place])
    assert np.array_equal(blocks.marks[text], expected)


def test_every_part_has_an_example() -> None:
    assert EXAMPLES.keys() == PARTS.keys()
    assert all(len(settings) >= 3 for _, settings in EXAMPLES.values())


@parts
@given(shape=shapes, key=keys, data=st.data())
@max_examples(120)
def test_blocks_keep_the_contract(
    name: str, shape: list[list[int]], key: int, data: st.DataObject
) -> None:
    part = data.draw(st.sampled_from(formats(name)))
    documents = synthetic_documents.placed(shape)
    plan = part.plan(documents, key)
    blocks = all_blocks(plan)
    assert len(blocks) == len(plan)
    check_blocks(part, blocks)
    assert np.array_equal(blocks.numbers, np.arange(len(plan)))
    assert np.array_equal(blocks.fixed, blocks.ids < synthetic_documents.PLACED)
    check_layout(name, part, blocks)
    check_text(part, documents, blocks)
    check_marks(documents, blocks)


@parts
@given(shape=shapes, key=keys, data=st.data())
@max_examples(40)
def test_a_block_is_the_same_however_it_is_asked_for(
    name: str, shape: list[list[int]], key: int, data: st.DataObject
) -> None:
    part = data.draw(st.sampled_from(formats(name)))
    documents = synthetic_documents.placed(shape)
    plan = part.plan(documents, key)
    numbers = data.draw(st.lists(st.integers(0, len(plan) - 1), min_size=1, max_size=12))
    together = part.plan(documents, key).blocks(np.array(numbers))
    assert np.array_equal(together.numbers, numbers)
    if isinstance(plan, BlockTable):
        assert np.array_equal(plan.lengths(np.array(numbers)), together.lengths)
    for at, number in enumerate(numbers):
        assert same(plan.blocks(np.array([number])), cut_out(together, at))


@parts
def test_plans_of_one_key_agree_and_of_two_keys_differ(name: str) -> None:
    documents = synthetic_documents.placed([[7, 0, 11, 3, 25, 4]] * 30)
    for part in formats(name):
        first = all_blocks(part.plan(documents, 11))
        assert same(first, all_blocks(part.plan(documents, 11)))
        assert not same(first, all_blocks(part.plan(documents, 12)))


@parts
def test_blocks_never_change_between_versions(name: str) -> None:
    """Every run's blocks change where this changes: then say so in the CHANGELOG."""
    documents = synthetic_documents.placed([[7, 0, 11, 3, 25, 4], [1], [60, 2, 1, 1, 90]] * 10)
    digest = blake2b(digest_size=8)
    for part in formats(name):
        blocks = all_blocks(part.plan(documents, 7))
        arrays = [blocks.ids, blocks.starts, blocks.marks, blocks.segments, blocks.fixed]
        arrays += [values for values in (blocks.labels, blocks.reverse) if values is not None]
        if blocks.words is not None:
            arrays += [blocks.words.starts, blocks.words.ids, blocks.words.characters]
        for array in arrays:
            digest.update(array.astype("<i8").tobytes())
    assert digest.hexdigest() == PINNED[name]


@parts
def test_no_numbers_give_no_blocks(name: str) -> None:
    for part in formats(name):
        none = part.plan(synthetic_documents.placed(ENOUGH), 3).blocks(np.zeros(0, dtype=np.int64))
        assert len(none) == len(none.ids) == len(none.numbers) == 0


@parts
@pytest.mark.parametrize("shape", [[], [[]], [[0, 0], [], [0]]])
def test_a_corpus_without_text_is_refused_in_one_sentence(
    name: str, shape: list[list[int]]
) -> None:
    for part in formats(name):
        with pytest.raises(UserError, match="corpus") as refused:
            part.plan(synthetic_documents.placed(shape), 3)
        message = str(refused.value)
        assert "\n" not in message
        assert ". " not in message
        assert "add text" in message


@parts
def test_what_a_part_provides_is_in_its_blocks(name: str) -> None:
    part = formats(name)[0]
    blocks = all_blocks(part.plan(synthetic_documents.placed(ENOUGH), 3))
    assert (blocks.labels is not None) == bool({"next", "order"} & part.provides)
    assert (blocks.reverse is not None) == ("stream" in part.provides)
    assert (blocks.words is not None) == ("words" in part.provides)


@parts
def test_the_store_may_be_memory_mapped(name: str, tmp_path: Any) -> None:
    documents = synthetic_documents.placed(ENOUGH)
    mapped = {}
    for field in ("ids", "marks", "sentences", "documents"):
        np.save(tmp_path / f"{field}.npy", getattr(documents, field))
        mapped[field] = np.load(tmp_path / f"{field}.npy", mmap_mode="r")
    part = formats(name)[0]
    blocks = all_blocks(part.plan(replace(documents, **mapped), 3))
    assert same(blocks, all_blocks(part.plan(documents, 3)))

"""XLNet's rows and causal cuts (cards B7, B8): positions of the stream are checked one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support import synthetic_documents
from support.block_contents import all_blocks

from clozelab.blocks.stream import Causal, Stream, StreamPair
from clozelab.contracts import Blocks, Documents, Ids, Mark
from clozelab.errors import UserError
from clozelab.keys import mix

SEP, CLS, EOD = (
    synthetic_documents.SPECIAL["sep"],
    synthetic_documents.SPECIAL["cls"],
    synthetic_documents.SPECIAL["eod"],
)
LENGTH, REUSE = 64, 32
ROOM = LENGTH - REUSE - 3


def prose(count: int = 60) -> Documents:
    rng = np.random.default_rng(4)
    return synthetic_documents.placed(
        [rng.integers(1, 12, rng.integers(1, 20)).tolist() for _ in range(count)]
    )


def stream_of(documents: Documents, key: int) -> list[int]:
    """The stream written out by hand: documents in the key's order, an EOD after each."""
    first = documents.sentences[documents.documents]
    order = np.argsort(mix(key, np.arange(len(documents))), kind="stable")
    out: list[int] = []
    for at in order.tolist():
        if first[at + 1] > first[at]:
            out += [*documents.ids[first[at] : first[at + 1]].tolist(), EOD]
    return out


def laid_out(*, rows: int = 4, reverse: bool = True, key: int = 9) -> tuple[Blocks, Ids, list[int]]:
    """A plan's blocks, as [steps, rows, length], and the stream behind them."""
    documents = prose()
    plan = StreamPair(length=LENGTH, reuse=REUSE, rows=rows, reverse=reverse).plan(documents, key)
    blocks = all_blocks(plan)
    return blocks, blocks.ids.reshape(-1, rows, LENGTH), stream_of(documents, key)


def cut(documents: Documents, key: int) -> Stream:
    """The stream of a format that takes little of it."""
    plan = StreamPair(length=6, reuse=1, rows=1, reverse=False).plan(documents, key)
    return plan.stream


def test_the_stream_is_the_documents_with_an_end_after_each() -> None:
    documents = synthetic_documents.placed([[3, 0, 2], [], [0, 0], [4], [1]])
    stream = cut(documents, 5)
    ids, marks, ends = stream.read(np.arange(len(stream)))
    assert ids.tolist() == stream_of(documents, 5)
    assert np.array_equal(ends, ids == EOD)
    assert ends.sum() == 3
    assert (marks[ends] == Mark.ALL).all()


def test_the_stream_knows_where_sentences_begin_and_no_empty_one_does() -> None:
    stream = cut(synthetic_documents.placed([[3, 0, 2, 0, 0], [0, 4, 0]]), 1)
    starts = {0: [0, 3], 5: [0]} if stream.tokens[0] == 0 else {0: [0], 5: [0, 3]}
    second = int(stream.starts[1])
    assert stream.sentences.tolist() == [*starts[0], *(second + n for n in starts[5])]


def test_first_halves_of_a_row_follow_each_other_in_the_stream() -> None:
    _, ids, stream = laid_out(reverse=False)
    width = len(stream) // 4
    assert len(ids) == (width - LENGTH) // REUSE + 1 > 10
    for row in range(4):
        joined = ids[:, row, :REUSE].reshape(-1)
        assert joined.tolist() == stream[row * width :][: len(joined)]


def test_the_first_segment_continues_the_reused_tokens() -> None:
    blocks, ids, stream = laid_out()
    flat, segments = ids.reshape(-1, LENGTH), blocks.segments.reshape(-1, LENGTH)
    width = len(stream) // 2
    for number in range(len(flat)):
        step, row = divmod(number, 4)
        whole = stream[row % 2 * width :][:width]
        text = whole[::-1] if row >= 2 else whole
        first = flat[number][segments[number] == 0][:-1].tolist()
        assert first == text[step * REUSE :][: len(first)]


def test_reversed_rows_are_the_forward_rows_backwards() -> None:
    blocks, ids, stream = laid_out()
    assert blocks.reverse is not None
    assert np.array_equal(blocks.reverse.reshape(-1, 4), [[False, False, True, True]] * len(ids))
    width = len(stream) // 2
    for row in range(2):
        joined = ids[:, row + 2, :REUSE].reshape(-1)
        assert joined.tolist() == stream[row * width :][:width][::-1][: len(joined)]


def test_the_second_segment_continues_the_first_or_comes_from_its_row() -> None:
    blocks, ids, stream = laid_out()
    assert blocks.labels is not None
    flat, segments = ids.reshape(-1, LENGTH), blocks.segments.reshape(-1, LENGTH)
    width = len(stream) // 2
    for number, label in enumerate(blocks.labels.tolist()):
        step, row = divmod(number, 4)
        whole = stream[row % 2 * width :][:width]
        text = whole[::-1] if row >= 2 else whole
        first = flat[number][segments[number] == 0][:-1].tolist()
        second = flat[number][segments[number] == 1][:-1].tolist()
        assert len(first) - REUSE + len(second) == ROOM
        begin = step * REUSE + len(first)
        if label == 0:
            assert second == text[begin:][: len(second)]
        else:
            assert any(
                second == text[at : at + len(second)] for at in range(width - len(second) + 1)
            )


def test_a_cut_falls_between_sentences_in_both_directions() -> None:
    blocks, ids, stream = laid_out()
    assert blocks.labels is not None
    documents = prose()
    begins = {int(documents.ids[at]) for at in documents.sentences[:-1]}
    flat, segments = ids.reshape(-1, LENGTH), blocks.segments.reshape(-1, LENGTH)
    seen = [0, 0]
    for number in np.flatnonzero(blocks.labels == 0).tolist():
        first, second = (flat[number][segments[number] == s][:-1] for s in (0, 1))
        backwards = number % 4 >= 2
        # Backwards, a sentence ends with its first token.
        assert int(first[-1] if backwards else second[0]) in begins
        seen[backwards] += 1
    assert min(seen) > 10


def test_the_cut_is_drawn_evenly_among_the_sentences_inside() -> None:
    documents = synthetic_documents.placed([[8] * 4000])
    plan = StreamPair(length=48, reuse=16, rows=1, reverse=False).plan(documents, 2)
    blocks = all_blocks(plan)
    middle = (blocks.ids.reshape(-1, 48) == SEP).argmax(axis=1) - 16
    cuts, counts = np.unique(middle, return_counts=True)
    assert cuts.tolist() == [8, 16, 24]  # strictly inside the room of 29, from a sentence's start
    third = len(plan) / 3
    assert (np.abs(counts - third) < 4 * np.sqrt(third)).all()


def test_half_the_pairs_are_random() -> None:
    plan = StreamPair(length=32, reuse=16, rows=2).plan(
        synthetic_documents.placed([[4] * 9] * 800), 2
    )
    labels = all_blocks(plan).labels
    assert labels is not None
    assert abs(labels.mean() - 0.5) < 3 * 0.5 / np.sqrt(len(labels))


def test_without_a_sentence_to_cut_at_the_pair_is_random_and_cut_in_the_middle() -> None:
    plan = StreamPair(length=48, reuse=16, rows=1, reverse=False).plan(
        synthetic_documents.placed([[4000]]), 2
    )
    blocks = all_blocks(plan)
    assert blocks.labels is not None
    assert (blocks.labels == 1).all()
    assert ((blocks.ids.reshape(-1, 48) == SEP).argmax(axis=1) == 16 + 29 // 2).all()


def test_marks_of_reversed_rows_say_where_words_begin_in_reading_order() -> None:
    documents = synthetic_documents.placed([[5, 4]])
    marks = np.array([15, 0, 1, 0, 1, 15, 8, 1, 0], dtype=np.uint8)
    plan = StreamPair(length=10, reuse=4, rows=2).plan(replace(documents, marks=marks), 0)
    blocks = all_blocks(plan)
    read = dict(zip(blocks.ids[10:20].tolist(), blocks.marks[10:20].tolist(), strict=True))
    for place in (8, 7, 6):  # the first tokens after the EOD, read backwards
        following = Mark.ALL if place == 8 else marks[place + 1]
        assert read[synthetic_documents.PLACED + place] == following


@pytest.mark.parametrize("rows", [0, -2, 3])
def test_odd_or_no_rows_are_refused(rows: int) -> None:
    with pytest.raises(UserError, match=f"rows = {rows}: must be"):
        StreamPair(rows=rows)


def test_odd_rows_are_fine_where_none_is_reversed() -> None:
    plan = StreamPair(length=8, reuse=3, rows=3, reverse=False).plan(
        synthetic_documents.placed([[30]]), 0
    )
    assert len(plan) == 3


def test_more_rows_than_the_corpus_fills_are_refused_with_a_remedy() -> None:
    documents = synthetic_documents.placed(
        [[127]]
    )  # 128 with its end: 2 forward rows of 64, and no more
    assert len(StreamPair(length=64, reuse=32, rows=4).plan(documents, 0)) == 4
    with pytest.raises(UserError, match=r"has 128 tokens, .* needs 192; .* fewer rows") as refused:
        StreamPair(length=64, reuse=32, rows=6).plan(documents, 0)
    assert ". " not in str(refused.value)


@pytest.mark.parametrize("reuse", [0, 60, 64])
def test_reuse_must_leave_room_for_a_pair(reuse: int) -> None:
    with pytest.raises(UserError, match=f"reuse = {reuse}"):
        StreamPair(length=64, reuse=reuse)


def test_causal_blocks_are_the_stream_cut_every_so_many_tokens() -> None:
    documents = prose()
    blocks = all_blocks(Causal(length=32).plan(documents, 9))
    stream = stream_of(documents, 9)
    assert len(stream) % 32 > 1
    assert blocks.ids.tolist() == stream
    assert np.array_equal(blocks.lengths[:-1], np.full(len(blocks) - 1, 32))
    assert np.array_equal(blocks.fixed, blocks.ids == EOD)


def test_the_next_token_of_every_causal_position_is_the_streams_next() -> None:
    documents = prose()
    blocks = all_blocks(Causal(length=32).plan(documents, 9))
    stream = np.array(stream_of(documents, 9))
    inside = np.flatnonzero(blocks.rows[1:] == blocks.rows[:-1])
    at = blocks.rows[inside] * 32 + blocks.positions[inside]
    assert np.array_equal(blocks.ids[inside + 1], stream[at + 1])
    assert len(inside) == len(stream) - len(blocks)


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (9, 1), (10, 1), (11, 2), (19, 2), (20, 2)])
def test_a_causal_tail_of_one_token_is_dropped(tokens: int, blocks: int) -> None:
    plan = Causal(length=10).plan(synthetic_documents.placed([[tokens]]), 0)
    assert len(plan) == blocks
    tail = plan.blocks(np.array([blocks - 1]))
    assert 2 <= len(tail.ids) <= 10


def test_a_causal_block_of_one_token_is_refused() -> None:
    with pytest.raises(UserError, match="length = 1"):
        Causal(length=1)

"""Words with their characters (ELMo §3): counted, split and spelled word by word."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support import synthetic_documents
from support.block_contents import all_blocks, document_of, runs, sentence_of

from clozelab.blocks.words import CLOSE, OPEN, UNKNOWN, WordSentences, word_counts
from clozelab.contracts import Blocks, Documents, Mark, Spelled, Spelling
from clozelab.errors import UserError
from clozelab.keys import fold, mix

BOS, EOS, BOW, EOW, PAD = 256, 257, 258, 259, 260
KEY = 21


def prose(count: int = 60, *, most: int = 40) -> Documents:
    rng = np.random.default_rng(8)
    return synthetic_documents.placed(
        [rng.integers(0, most, rng.integers(0, 12)).tolist() for _ in range(count)]
    )


def words_of(documents: Documents, first: int, last: int) -> list[list[int]]:
    """The words between two tokens of the store, each a list of ids."""
    words: list[list[int]] = []
    for at in range(first, last):
        if documents.marks[at] & Mark.WORD:
            words.append([])
        words[-1].append(int(documents.ids[at]))
    return words


def block_by_block(documents: Documents, room: int) -> list[list[int]]:
    """The plainest program: sentences of a document while their words fit, long ones split."""
    order = np.argsort(mix(KEY, np.arange(len(documents))), kind="stable")
    blocks: list[list[list[int]]] = []
    for at in order.tolist():
        block: list[list[int]] = []
        for number in range(documents.documents[at], documents.documents[at + 1]):
            words = words_of(documents, *documents.sentences[number : number + 2].tolist())
            for part in [words[i : i + room] for i in range(0, len(words), room)]:
                if len(block) + len(part) > room:
                    blocks.append(block)
                    block = []
                block = block + part
        if block:
            blocks.append(block)
    return [[id_ for word in block for id_ in word] for block in blocks]


def spelled(blocks: Blocks) -> Spelled:
    assert blocks.words is not None
    return blocks.words


def hand_made(*, known: list[list[int]] | None = None) -> Documents:
    """One sentence: `a`, `bé` in two pieces, and a word of sixty letters."""
    letters = [b"", b"", b"[CLS]", b"[SEP]", b"", b"", b"a", b"b", "é".encode(), b"x" * 60]
    known = known or []
    keys = np.concatenate([fold(np.array(word), np.array([0])) for word in known] or [[]])
    order = np.argsort(keys)
    spelling = Spelling(
        letters=np.frombuffer(b"".join(letters), dtype=np.uint8),
        starts=np.cumsum([0, *map(len, letters)]),
        words=keys[order].astype(np.uint64),
        numbers=(3 + order).astype(np.int32),
    )
    return Documents(
        ids=np.array([6, 7, 8, 9], dtype=np.uint16),
        marks=np.array([15, 15, 0, 15], dtype=np.uint8),
        sentences=np.array([0, 4]),
        documents=np.array([0, 1]),
        vocabulary=synthetic_documents.vocabulary(10),
        spelling=spelling,
    )


@pytest.mark.parametrize("length", [3, 5, 17, 64])
def test_words_block_by_block(length: int) -> None:
    documents = prose()
    blocks = all_blocks(WordSentences(length=length).plan(documents, KEY))
    stretches = [(block[0] + synthetic_documents.PLACED).tolist() for block in runs(blocks)]
    assert stretches == block_by_block(documents, length - 2)


def test_no_block_has_more_words_than_allowed_and_some_are_full() -> None:
    blocks = all_blocks(WordSentences(length=12).plan(prose(), KEY))
    assert np.diff(spelled(blocks).starts).max() == 12
    assert blocks.lengths.max() > 12  # words of several pieces


def test_every_token_occurs_once_and_documents_do_not_mix() -> None:
    documents = prose()
    stretches = [
        block[0] for block in runs(all_blocks(WordSentences(length=9).plan(documents, KEY)))
    ]
    assert sorted(np.concatenate(stretches).tolist()) == list(range(len(documents.ids)))
    assert all(len(np.unique(document_of(documents, run))) == 1 for run in stretches)


def test_a_long_sentence_is_split_where_words_begin() -> None:
    documents = synthetic_documents.placed([[200]])
    plan = WordSentences(length=10).plan(documents, KEY)
    stretches = [block[0] for block in runs(all_blocks(plan))]
    assert plan.notes["sentences split"] == 1
    assert len(stretches) > 10
    assert all(documents.marks[run[0]] & Mark.WORD for run in stretches)


def test_a_sentence_that_fits_is_not_split() -> None:
    documents = prose(most=20)
    for (run,) in runs(all_blocks(WordSentences(length=30).plan(documents, KEY))):
        ends = sentence_of(documents, run[[0, -1]])
        bounds = documents.sentences[ends + [0, 1]]
        assert bounds.tolist() == [run[0], run[-1] + 1]


def test_a_word_is_its_bytes_between_its_ends() -> None:
    blocks = all_blocks(WordSentences(length=8, characters=6).plan(hand_made(), KEY))
    assert spelled(blocks).characters.tolist() == [
        [BOW, BOS, EOW, PAD, PAD, PAD],
        [BOW, ord("a"), EOW, PAD, PAD, PAD],
        [BOW, ord("b"), *"é".encode(), EOW, PAD],
        [BOW, *b"xxxx", EOW],
        [BOW, EOS, EOW, PAD, PAD, PAD],
    ]


def test_a_word_is_cut_at_fifty_characters_ends_included() -> None:
    blocks = all_blocks(WordSentences(length=8).plan(hand_made(), KEY))
    assert spelled(blocks).characters.shape == (5, 50)
    assert spelled(blocks).characters[3].tolist() == [BOW, *b"x" * 48, EOW]


@pytest.mark.parametrize(("letters", "row"), [(47, [EOW, PAD]), (48, [ord("x"), EOW])])
def test_a_word_that_just_fits_is_whole(letters: int, row: list[int]) -> None:
    documents = hand_made()
    assert documents.spelling is not None
    starts = documents.spelling.starts.copy()
    starts[-1] = starts[-2] + letters
    documents = replace(documents, spelling=replace(documents.spelling, starts=starts))
    characters = spelled(all_blocks(WordSentences(length=8).plan(documents, KEY))).characters[3]
    assert characters[1:48].tolist() == [ord("x")] * 47
    assert characters[48:].tolist() == row


def test_known_words_have_their_number_and_others_none() -> None:
    assert (UNKNOWN, OPEN, CLOSE) == (0, 1, 2)
    blocks = all_blocks(WordSentences(length=8).plan(hand_made(known=[[9], [7, 8]]), KEY))
    assert spelled(blocks).ids.tolist() == [OPEN, UNKNOWN, 4, 3, CLOSE]


def test_a_piece_of_a_known_word_is_not_that_word() -> None:
    blocks = all_blocks(WordSentences(length=8).plan(hand_made(known=[[7], [8], [6, 7]]), KEY))
    assert spelled(blocks).ids.tolist() == [OPEN, UNKNOWN, UNKNOWN, UNKNOWN, CLOSE]


def test_a_store_without_known_words_knows_none() -> None:
    blocks = all_blocks(WordSentences(length=8).plan(hand_made(), KEY))
    assert spelled(blocks).ids.tolist() == [OPEN, UNKNOWN, UNKNOWN, UNKNOWN, CLOSE]


def test_many_blocks_are_spelled_as_a_loop_spells_them() -> None:
    documents = prose(20)
    spelling = documents.spelling
    assert spelling is not None
    known = dict(zip(spelling.words.tolist(), spelling.numbers.tolist(), strict=True))
    blocks = all_blocks(WordSentences(length=9, characters=12).plan(documents, KEY))
    numbers: list[int] = []
    rows: list[list[int]] = []
    for (run,) in runs(blocks):
        words = words_of(documents, int(run[0]), int(run[-1]) + 1)
        numbers.append(OPEN)
        rows.append([BOW, BOS, EOW] + [PAD] * 9)
        for word in words:
            numbers.append(known.get(int(fold(np.array(word), np.array([0]))[0]), UNKNOWN))
            text = [
                int(letter)
                for id_ in word
                for letter in spelling.letters[spelling.starts[id_] : spelling.starts[id_ + 1]]
            ]
            row = [BOW, *text[:10], EOW]
            rows.append(row + [PAD] * (12 - len(row)))
        numbers.append(CLOSE)
        rows.append([BOW, EOS, EOW] + [PAD] * 9)
    assert spelled(blocks).ids.tolist() == numbers
    assert spelled(blocks).characters.tolist() == rows
    assert 0.2 < np.mean(np.array(numbers) == UNKNOWN) < 0.8


def test_words_are_counted_over_many_stretches() -> None:
    shape = [[2, 0, 1] * 25_000]
    documents = synthetic_documents.documents(shape)
    begins = np.concatenate([[0], np.cumsum((documents.marks & Mark.WORD) != 0)])
    assert len(documents.sentences) > 1 << 16
    counts = word_counts(documents, 0, len(documents.sentences) - 1)
    assert np.array_equal(counts, np.diff(begins[documents.sentences]))


def test_a_store_without_words_is_refused() -> None:
    with pytest.raises(UserError, match="word vocabulary"):
        WordSentences().plan(replace(prose(), spelling=None), KEY)


@pytest.mark.parametrize("wrong", [{"length": 2}, {"characters": 2}])
def test_settings_too_small_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="at least 3"):
        WordSentences(**wrong)

"""Texts of tasks as each encoder reads them: marks, segments, words, characters."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hypothesis_settings import max_examples
from support.pretrain_runs import shrunk
from support.texts import ATOMS, KINDS, real, tokenizer

from clozelab import data
from clozelab.blocks.words import spell
from clozelab.contracts import Blocks, Mark, Pieces, Spelling
from clozelab.finetuning.files.splits import own
from clozelab.models.interop.tokenizer import family_tokenizer
from clozelab.models.reader import TaskReader
from clozelab.text.vocabulary import letters

FAMILIES = {
    "bert": ("bert", "wordpiece"),
    "roberta": ("roberta", "byte_bpe"),
    "albert": ("albert", "unigram"),
    "distilbert": ("distilbert", "wordpiece"),
    "xlnet": ("xlnet", "unigram"),
    "openai-gpt": ("gpt", "char_bpe"),
}
RECIPES = [*(recipe for recipe, _ in FAMILIES.values()), "elmo"]
# The marks before, between and after two texts, where they stand for the whole, and the segments
# of a text of two tokens and one of three.
LAYOUTS = {
    "bert": (["[CLS]"], ["[SEP]"], ["[SEP]"], 0, [0, 0, 0, 0, 1, 1, 1, 1]),
    "roberta": (["<s>"], ["</s>", "</s>"], ["</s>"], 0, [0] * 9),
    "albert": (["[CLS]"], ["[SEP]"], ["[SEP]"], 0, [0, 0, 0, 0, 1, 1, 1, 1]),
    "distilbert": (["[CLS]"], ["[SEP]"], ["[SEP]"], 0, [0] * 8),
    "xlnet": ([], ["[SEP]"], ["[SEP]", "[CLS]"], 7, [0, 0, 0, 1, 1, 1, 1, 2]),
    "gpt": (["<s>"], ["</s>"], ["<mask>"], 7, [0] * 8),
}
ODD = [
    "x",
    "\u200b",
    "中文",
    "👩‍👩‍👧",
    "don't",
    "",
    "3.5",
    "\ufeff\u200d",
    "İ",
    "ﬁn",
    "…",
    "e\u0301",
]


@cache
def reader(recipe: str, kind: str = "") -> TaskReader:
    kind = kind or {family: its for family, its in FAMILIES.values()}.get(recipe, "wordpiece")
    return TaskReader(shrunk(recipe), tokenizer(kind), 32)


@cache
def pairs() -> list[Any]:
    return own("pairs", dev=data.task("pairs", "dev")).read("dev")[:60]


def texts_of(pieces: Pieces, texts: list[str]) -> list[list[str]]:
    """What each token stands for, text by text."""
    return [
        [text[first:stop] for first, stop in pieces.spans[pieces.text(number)].tolist()]
        for number, text in enumerate(texts)
    ]


# Marks.


@pytest.mark.parametrize("recipe", LAYOUTS)
def test_two_texts_have_the_marks_and_segments_of_the_encoders_kind(recipe: str) -> None:
    task_reader, known = reader(recipe), reader(recipe).tokenizer
    before, between, after, mark, segments = LAYOUTS[recipe]
    a, b = {"ids": np.array([11, 12])}, {"ids": np.array([21, 22, 23])}
    row = task_reader.with_special_tokens(a, b)
    marks = [[known.token_to_id(name) for name in names] for names in (before, between, after)]
    assert row.columns["ids"].tolist() == [*marks[0], 11, 12, *marks[1], 21, 22, 23, *marks[2]]
    assert row.columns["segments"].tolist() == segments
    assert row.columns["ids"][row.first].tolist() == [11, 12]
    assert row.columns["ids"][row.second].tolist() == [21, 22, 23]
    assert row.mark == mark
    alone = task_reader.with_special_tokens(a)
    assert alone.columns["ids"].tolist() == [*marks[0], 11, 12, *marks[2]]
    assert alone.columns["segments"].tolist() == [0, 0, 0, 2 if recipe == "xlnet" else 0]
    assert alone.columns["ids"][alone.first].tolist() == [11, 12]
    assert alone.second == slice(0, 0) and alone.mark == (3 if mark else 0)


@pytest.mark.parametrize("recipe", RECIPES)
def test_marks_are_as_many_as_laying_adds_and_lie_around_the_texts(recipe: str) -> None:
    task_reader = reader(recipe)
    texts = ["One short text.", "", "Another, rather longer one, of words!"]
    pieces = task_reader.pieces(texts)
    parts = [pieces.part(pieces.text(number)) for number in range(3)]
    for first in parts:
        row = task_reader.with_special_tokens(first)
        assert len(row.columns["ids"]) == len(first["ids"]) + task_reader.num_special_tokens(1)
        for second in parts:
            row = task_reader.with_special_tokens(first, second)
            assert len(row.columns["ids"]) == len(first["ids"]) + len(
                second["ids"]
            ) + task_reader.num_special_tokens(2)
            for name in first:
                assert len(row.columns[name]) == len(row.columns["ids"])
                assert (row.columns[name][row.first] == first[name]).all()
                assert (row.columns[name][row.second] == second[name]).all()
            taken = {*range(*row.first.indices(99)), *range(*row.second.indices(99))}
            assert len(taken) + task_reader.num_special_tokens(2) == len(row.columns["ids"])
            assert row.mark not in taken
    assert task_reader.passage_first == (recipe == "xlnet")


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
def test_texts_are_read_as_the_exported_tokenizer_reads_them(family: str) -> None:
    import transformers  # two seconds

    recipe, _ = FAMILIES[family]
    task_reader = reader(recipe)
    known = family_tokenizer(task_reader.tokenizer, family, task_reader.vocabulary, tuned=True)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=known)
    firsts, seconds = [pair.first for pair in pairs()], [pair.second for pair in pairs()]
    a, b = task_reader.pieces(firsts), task_reader.pieces(seconds)
    theirs = fast(firsts, seconds, return_token_type_ids=True, return_offsets_mapping=True)
    alone = fast(firsts, return_token_type_ids=True)
    segmented = family in ("bert", "albert", "xlnet")
    for number in range(len(firsts)):
        row = task_reader.with_special_tokens(a.part(a.text(number)), b.part(b.text(number)))
        assert row.columns["ids"].tolist() == theirs["input_ids"][number]
        single = task_reader.with_special_tokens(a.part(a.text(number)))
        assert single.columns["ids"].tolist() == alone["input_ids"][number]
        if segmented:
            assert row.columns["segments"].tolist() == theirs["token_type_ids"][number]
            assert single.columns["segments"].tolist() == alone["token_type_ids"][number]
        there = theirs["offset_mapping"][number]
        for text, pieces, where in ((firsts, a, row.first), (seconds, b, row.second)):
            mine = texts_of(pieces, text)[number]
            assert mine == [text[number][x:y].lstrip() for x, y in there[where]]


def test_elmo_reads_a_text_as_it_did_in_pretraining() -> None:
    task_reader = reader("elmo")
    pieces = task_reader.pieces(["Don't stop, Zürich!"])
    row = task_reader.with_special_tokens(pieces.part(pieces.text(0)))
    known = reader("bert").pieces(["Don't stop, Zürich!"])
    roles = task_reader.vocabulary.roles
    ids = np.array([roles["cls"], *known.columns["ids"], roles["sep"]], np.int32)
    begins = np.array([True, *known.begins, True])
    blocks = Blocks(
        ids=ids,
        starts=np.array([0, len(ids)]),
        marks=np.where(begins, Mark.ALL, 0).astype(np.uint8),
        segments=np.zeros(len(ids), np.uint8),
        fixed=np.array([True, *[False] * (len(ids) - 2), True]),
        numbers=np.zeros(1, np.int64),
    )
    none = (np.zeros(0, np.uint64), np.zeros(0, np.int32))
    form: Any = task_reader.recipe.blocks
    wanted = spell(blocks, Spelling(*letters(task_reader.tokenizer), *none), length=form.characters)
    assert row.columns["characters"].tolist() == wanted.characters.tolist()
    assert row.columns["ids"].tolist() == wanted.ids.tolist()
    assert texts_of(pieces, ["Don't stop, Zürich!"]) == [
        ["Don", "'", "t", "stop", ",", "Zürich", "!"]
    ]
    second = task_reader.with_special_tokens(pieces.part(pieces.text(0)), pieces.part(slice(0, 2)))
    closing = row.columns["characters"][-1].tolist()
    assert second.columns["characters"][second.first.stop].tolist() == closing
    assert second.columns["characters"][-1].tolist() == closing and second.mark == 0


# Words.


def expected(task_reader: TaskReader, words: list[str]) -> list[int]:
    """Each token's word, by looking for the word that its first character lies in."""
    text, numbers = " ".join(words), []
    owner: list[int] = []
    for number, word in enumerate(words):
        owner += [number] * (len(word) + 1)  # the space behind a word is taken for its own
    for first, _ in task_reader.pieces([text]).spans.tolist():
        numbers.append(owner[first])
    return numbers


def check(task_reader: TaskReader, sentences: list[list[str]]) -> Pieces:
    pieces = task_reader.words(sentences)
    assert len(pieces.starts) == len(sentences) + 1
    for number, words in enumerate(sentences):
        span = pieces.text(number)
        alone = task_reader.pieces([" ".join(words)])
        assert pieces.columns["ids"][span].tolist() == alone.columns["ids"].tolist()
        assert pieces.spans[span].tolist() == alone.spans.tolist()
        mine = pieces.words[span].tolist()
        assert mine == expected(task_reader, words)
        fresh = [first != second for first, second in pairwise([None, *mine])]
        assert pieces.begins[span].tolist() == fresh
    return pieces


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe", ["bert", "elmo"])
def test_tokens_are_mapped_to_the_words_given_whatever_they_are(recipe: str, kind: str) -> None:
    task_reader = reader(recipe, kind)
    pieces = check(
        task_reader, [["The", "first", "word"], [], ODD, ["中", "国", "人"], [""], ODD[::-1]]
    )
    span = pieces.text(3)
    assert pieces.words[span][pieces.begins[span]].tolist() == [0, 1, 2]
    empty = pieces.text(4)
    assert empty.start == empty.stop
    odd = pieces.words[pieces.text(2)]
    assert odd[0] == 0 and odd[-1] == len(ODD) - 1 and (np.diff(odd) >= 0).all()
    assert ODD.index("") not in odd
    if kind == "wordpiece":  # it drops what has no width
        assert not {1, 7} & {*odd.tolist()} and {0, 2, 3, 4, 6, 8, 9, 10, 11} == {*odd.tolist()}


@pytest.mark.parametrize("recipe", RECIPES)
def test_nothing_is_read_as_nothing(recipe: str) -> None:
    task_reader = reader(recipe)
    for pieces, texts in (
        (task_reader.pieces([]), 0),
        (task_reader.words([]), 0),
        (task_reader.pieces([""]), 1),
        (task_reader.pieces(["  ", ""]), 2),
        (task_reader.words([[]]), 1),
        (task_reader.words([[], [""]]), 2),
    ):
        assert pieces.starts.tolist() == [0] * (texts + 1)
        assert pieces.spans.shape == (0, 2)
        assert len(pieces.words) == len(pieces.begins) == len(pieces.columns["ids"]) == 0
    row = task_reader.with_special_tokens(task_reader.pieces([""]).part(slice(0, 0)))
    assert (
        len(row.columns["ids"]) == task_reader.num_special_tokens(1)
        and row.first.start == row.first.stop
    )


words = st.lists(st.lists(st.sampled_from([*ATOMS, ""]), max_size=6), max_size=4)


@max_examples(60)
@given(words, st.sampled_from(KINDS))
def test_any_words_are_found_again(sentences: list[list[str]], kind: str) -> None:
    pieces = check(reader("bert", kind), sentences)
    assert len(pieces.words) == len(pieces.spans)


# Texts.


@pytest.mark.parametrize("recipe", RECIPES)
def test_tokens_stand_for_exact_stretches_of_real_text(recipe: str) -> None:
    task_reader = reader(recipe)
    texts = [*real()[::40], "Zürich  and\tA\u00a0B 👍🏽 東京。"]
    pieces = task_reader.pieces(texts)
    for number, text in enumerate(texts):
        span = pieces.text(number)
        spans = pieces.spans[span]
        assert (spans[:, 0] <= spans[:, 1]).all() and spans.max() <= len(text)
        assert (np.diff(spans[:, 0]) >= 0).all()
        covered = np.zeros(len(text), dtype=bool)
        for first, stop in spans.tolist():
            assert text[first:stop] == text[first:stop].lstrip()
            covered[first:stop] = True
        left = "".join(letter for letter, seen in zip(text, covered, strict=True) if not seen)
        assert not left.strip(), left
        begins = pieces.begins[span]
        counted = np.cumsum(begins) - 1
        assert begins[0] and pieces.words[span].tolist() == counted.tolist()

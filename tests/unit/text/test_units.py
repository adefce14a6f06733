"""Names, given spans and mined phrases become units exactly where they stand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from support.texts import each_kind, each_of_text, encoder, tokenizer

from clozelab.contracts import Counts, Ints, Keys, Mark
from clozelab.errors import UserError
from clozelab.keys import fold, mix
from clozelab.packed import offsets
from clozelab.text.encoding import Tokenised
from clozelab.text.units import (
    LEAST_COUNT,
    LONGEST_ENTITY,
    LONGEST_PHRASE,
    KeyCounts,
    NgramTable,
    gazetteer,
    mark_entities,
    mark_phrases,
    mark_span,
    mine,
    pairs,
    read_spans,
)


def cut(text: str, encoded: Tokenised, bit: int) -> list[str]:
    """The units of more than one word's worth of tokens, as text."""
    assert encoded.firsts is not None and encoded.stops is not None
    first = np.flatnonzero(encoded.marks & bit).tolist()
    ends = [*first[1:], len(encoded.ids)]
    units = zip(first, ends, strict=True)
    return [text[encoded.firsts[a] : encoded.stops[b - 1]] for a, b in units if b - a > 1]


def entities(kind: str, names: list[str], text: str) -> list[str]:
    known = encoder(tokenizer(kind))
    runs = gazetteer(names, known, Counts())
    encoded = known.encode([text], characters=True)
    units = (encoded.ids, encoded.marks, encoded.starts)
    count = len(mark_entities(*units, entities=runs))
    marked = cut(text, encoded, Mark.ENTITY)
    assert count >= len(marked)  # a name of one token is found, and nothing changes
    return marked


@each_kind
def test_the_longest_name_from_the_left_wins(kind: str) -> None:
    names = ["New York", "New York City", "City Hall", "Hall Street Park"]
    text = "The New York City Hall Street Park in New York is a City Hall"
    wanted = ["New York City", "Hall Street Park", "New York", "City Hall"]
    assert entities(kind, names, text) == wanted
    assert entities(kind, [*reversed(names), *names, "", "  New York  "], text) == wanted


@each_of_text
def test_a_name_matches_whole_words_only(kind: str) -> None:
    assert entities(kind, ["New York"], "The New Yorker, a renew York, New-York, Newt York") == []


@pytest.mark.parametrize("kind", ["byte_bpe", "wordpiece", "char_bpe", "chars"])
def test_a_name_is_found_with_and_without_its_space(kind: str) -> None:
    text = 'Elizabeth Bennet and "Elizabeth Bennet" (Elizabeth Bennet)'
    assert entities(kind, ["Elizabeth Bennet"], text) == ["Elizabeth Bennet"] * 3


def test_chinese_names_are_found_among_ideographs() -> None:
    for kind in ("chars", "wordpiece"):
        text = "我在北京大学读书，北京很大"
        names_found = entities(kind, ["北京大学", "北京", "大学"], text)
        assert names_found == ["北京大学", "北京"]


def test_names_too_long_or_empty_are_counted_once() -> None:
    counts = Counts()
    names = ["word " * (LONGEST_ENTITY + 1), "\x00", "word " * LONGEST_ENTITY]
    runs = gazetteer(names, encoder(tokenizer("wordpiece")), counts)
    assert counts.numbers == {f"names of no or more than {LONGEST_ENTITY} words left out": 2}
    assert list(runs) == [LONGEST_ENTITY]


def test_no_names_mark_nothing() -> None:
    known = encoder(tokenizer("wordpiece"))
    runs = gazetteer([], known, Counts())
    assert not runs
    encoded = known.encode(["some words"])
    assert len(mark_entities(encoded.ids, encoded.marks, encoded.starts, entities=runs)) == 0
    empty = known.encode([])
    some = gazetteer(["some words"], known, Counts())
    assert len(mark_entities(empty.ids, empty.marks, empty.starts, entities=some)) == 0


def test_no_name_is_found_across_sentences() -> None:
    known = encoder(tokenizer("wordpiece"))
    runs = gazetteer(["New York"], known, Counts())
    encoded = known.encode(["It is new", "York it is, New York", "New"])
    assert len(mark_entities(encoded.ids, encoded.marks, encoded.starts, entities=runs)) == 1
    assert (encoded.marks[encoded.starts[:-1]] == Mark.ALL).all()
    assert np.count_nonzero(encoded.marks & Mark.PHRASE == 0) == 0  # the other bits are left


def spanned(kind: str, sentences: list[str], begin: int, end: int) -> tuple[list[str], Counts]:
    """Units of the joined sentences after one span is given."""
    counts = Counts()
    encoded = encoder(tokenizer(kind)).encode(sentences, characters=True)
    begins = offsets([len(sentence) for sentence in sentences])[:-1]
    shifts: Ints = np.repeat(begins, np.diff(encoded.starts))
    mark_span(encoded, begin, end, bit=Mark.ENTITY, shifts=shifts, counts=counts)
    assert encoded.firsts is not None and encoded.stops is not None
    moved = replace(encoded, firsts=encoded.firsts + shifts, stops=encoded.stops + shifts)
    return cut("".join(sentences), moved, Mark.ENTITY), counts


@each_kind
def test_a_span_on_the_edges_of_tokens_is_exact(kind: str) -> None:
    sentences = ["He went. ", "Then New  York City\tslept."]
    units, counts = spanned(kind, sentences, 14, 28)
    assert units == ["New  York City"]
    assert counts.numbers == {}


def test_tokens_that_touch_a_span_stay_outside() -> None:
    units, counts = spanned("wordpiece", ["(New York)"], 1, 9)
    assert units == ["New York"]
    assert counts.numbers == {}


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe", "unigram"])
def test_a_span_inside_tokens_is_widened_and_counted(kind: str) -> None:
    units, counts = spanned(kind, ["They met the mother of them"], 11, 16)  # "e mot"
    assert units == ["the mother"]
    assert counts.numbers == {"spans widened to whole tokens": 1}


def test_a_span_without_tokens_is_counted() -> None:
    units, counts = spanned("wordpiece", ["one   two"], 4, 5)
    assert units == []
    assert counts.numbers == {"spans without a token": 1}


def test_a_span_is_cut_where_a_sentence_ends() -> None:
    units, counts = spanned("wordpiece", ["see the house. ", "The house is new"], 4, 24)
    assert units == ["the house.", "The house"]
    assert counts.numbers == {"spans cut at the end of a sentence": 1}


def test_spans_are_read_by_document() -> None:
    lines = ["a\t0\t5\tentity\n", "\n", "b:2\t3\t4\tphrase\r\n", "a\t7\t9\tPER\n"]
    assert read_spans(lines, "spans.tsv") == {
        "a": [(0, 5, Mark.ENTITY), (7, 9, Mark.ENTITY)],
        "b:2": [(3, 4, Mark.PHRASE)],
    }


@pytest.mark.parametrize(
    "line", ["a 0 5 entity", "a\t0\t5", "a\tx\t5\tentity", "a\t5\t5\tentity", "a\t-1\t5\tentity"]
)
def test_a_bad_span_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(UserError) as caught:
        read_spans(["a\t0\t5\tentity", "", line], "my/spans.tsv")
    assert str(caught.value).startswith("my/spans.tsv:3: ")
    assert "\n" not in str(caught.value)


ONE, TWO, THREE, OFTEN, COMMON, SIGN = range(6)


def collocated() -> tuple[Ints, Ints]:
    """Two thousand sentences of words drawn apart; ONE TWO stand together, OFTEN COMMON chance."""
    draw = np.random.default_rng(5)
    chances = np.full(200, 1.0)
    chances[[ONE, TWO, THREE, SIGN]] = 0
    chances[[OFTEN, COMMON]] = 40
    sentences = []
    for number in range(2000):
        words = draw.choice(200, size=10, p=chances / chances.sum())
        if number % 10 == 0:
            words[4:7] = [SIGN, ONE, TWO] if number % 20 else [ONE, TWO, THREE]
        sentences.append(words)
    return np.concatenate(sentences), np.arange(0, 20_001, 10)


def mined(ids: Ints, starts: Ints, signs: set[int]) -> Keys:
    marks = np.full(len(ids), Mark.ALL, dtype=np.uint8)
    lettered = np.array([n not in signs for n in range(200)])
    words, together = pairs(ids, marks, starts, lettered=lettered)
    keys = fold(ids, np.arange(len(ids)))
    again = [np.stack([mix(keys[:-1], keys[1:]), keys[:-1], keys[1:]])]
    counted = [np.unique(some, return_counts=True) for some in (words, together)]
    return mine(counted[0], counted[1], pieces=iter(again))


def pair(first: int, second: int) -> int:
    keys = fold([first, second], np.arange(2))
    return int(mix(keys[0], keys[1]))


def test_collocations_are_mined_and_frequent_neighbours_are_not() -> None:
    ids, starts = collocated()
    together = Counter(zip(ids[:-1].tolist(), ids[1:].tolist(), strict=True))
    assert together[OFTEN, COMMON] > together[ONE, TWO] > LEAST_COUNT
    phrases = set(mined(ids, starts, {SIGN}).tolist())
    assert phrases == {pair(ONE, TWO), pair(TWO, THREE)}


def test_signs_and_sentence_ends_make_no_phrase() -> None:
    ids, starts = collocated()
    assert pair(SIGN, ONE) not in set(mined(ids, starts, {SIGN}).tolist())
    assert pair(SIGN, ONE) in set(mined(ids, starts, set()).tolist())
    apart = np.sort([*starts.tolist(), *(np.flatnonzero(ids == TWO).tolist())])
    assert pair(ONE, TWO) not in set(mined(ids, apart, {SIGN}).tolist())


def test_a_word_is_plain_when_any_of_its_pieces_has_a_letter() -> None:
    ids = np.array([7, 0, 7, 1, 9, 0, 9])  # 7 a lone space, 9 a sign
    word = [Mark.ALL, 0, Mark.ALL, 0, Mark.ALL, Mark.ALL, Mark.ALL]
    marks = np.array(word, dtype=np.uint8)
    lettered = np.array([n < 5 for n in range(10)])
    words, together = pairs(ids, marks, np.array([0, 7]), lettered=lettered)
    assert len(words) == 5
    assert together.tolist() == [int(mix(words[0], words[1]))]
    nothing = np.zeros(0, dtype=np.int64)
    none, neither = pairs(nothing, marks[:0], np.array([0]), lettered=lettered)
    assert len(none) == len(neither) == 0


def test_chains_of_pairs_make_phrases_of_at_most_four_words() -> None:
    phrases = np.sort(np.array([pair(n, n + 1) for n in range(1, 9)], dtype=np.uint64))
    ids = np.array([0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7, 8])
    marks = np.full(len(ids), Mark.ALL, dtype=np.uint8)
    assert LONGEST_PHRASE == 4
    assert len(mark_phrases(ids, marks, np.array([0, 11, 12]), phrases=phrases)) == 3
    begins = (marks & Mark.PHRASE > 0).astype(int).tolist()
    assert begins == [1, 1, 0, 1, 1, 0, 0, 0, 1, 0, 0, 1]
    assert (marks | Mark.PHRASE == Mark.ALL).all()


def test_a_tally_below_its_limit_is_a_counter() -> None:
    draw = np.random.default_rng(3)
    tally, counter = KeyCounts(), Counter[int]()
    for _ in range(40):
        keys = draw.integers(0, 1 << 20, size=20_000, dtype=np.uint64)
        counts = draw.integers(1, 5, size=20_000)
        tally.add(keys, counts)
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            counter[key] += count
    keys, counts = tally.table()
    assert (np.diff(keys.astype(np.int64)) > 0).all()
    assert dict(zip(keys.tolist(), counts.tolist(), strict=True)) == counter


@pytest.mark.parametrize("often", [1, 3])
def test_a_tally_above_its_limit_is_bounded_and_keeps_the_frequent(often: int) -> None:
    tally = KeyCounts(limit=1000)
    frequent = np.arange(100, dtype=np.uint64)
    for number in range(10):
        tally.add(frequent, np.full(100, often + 1))
        rare = np.arange(number * 50_000 + 100, number * 50_000 + 50_100, dtype=np.uint64)
        tally.add(rare, np.full(len(rare), often))
        assert sum(map(len, tally._keys)) <= (1 << 18) + 52_000
    keys, counts = tally.table()
    assert len(keys) == len(counts) == 1000
    assert keys[:100].tolist() == frequent.tolist()
    assert (counts[:100] == 10 * (often + 1)).all()


def test_runs_of_other_lengths_do_not_match() -> None:
    runs = NgramTable({3: np.array([1], dtype=np.uint64)})
    encoded = encoder(tokenizer("wordpiece")).encode(["two words"])
    assert len(mark_entities(encoded.ids, encoded.marks, encoded.starts, entities=runs)) == 0

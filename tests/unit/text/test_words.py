"""Words begin where BERT's own splitting begins them, the same under every tokenizer."""

from __future__ import annotations

import numpy as np
import pytest
import rjieba
from hypothesis import given
from hypothesis import strategies as st
from support.hypothesis_settings import max_examples
from support.texts import KINDS, chinese, each_of_text, encoder, real, tokenizer
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from clozelab.contracts import Counts, Mark
from clozelab.text import words as text_words
from clozelab.text.encoding import CachedTokenizer, Tokenised
from clozelab.text.words import after_space, begins, inside_segments, kind, segmenter

SPLIT = pre_tokenizers.BertPreTokenizer()


def word_starts(text: str) -> set[int]:
    """Where BERT's basic tokenization begins words; the ideographs are split off here."""
    starts = set()
    for _, (first, stop) in SPLIT.pre_tokenize_str(text):
        solo = {at for at in range(first, stop) if kind(text[at]) == "ideograph"}
        starts |= {first} | solo | {at + 1 for at in solo if at + 1 < stop}
    return starts


def words(kind: str, text: str, *, bit: int = Mark.WORD) -> list[str]:
    """A text cut where a tokenizer's tokens begin a unit."""
    encoded = encoder(tokenizer(kind), segment=bit == Mark.SEGMENT).encode([text], characters=True)
    assert encoded.firsts is not None
    cuts = encoded.firsts[(encoded.marks & bit) > 0].tolist()
    return [text[a:b].strip() for a, b in zip(cuts, [*cuts[1:], len(text)], strict=True)]


def test_word_starts_are_those_of_berts_own_splitting() -> None:
    encoded = encoder(tokenizer("wordpiece")).encode(list(real()))
    pieces = tokenizer("wordpiece").encode_batch(list(real()), add_special_tokens=False)
    wanted = []
    for piece in pieces:
        numbers = piece.word_ids
        wanted += [n == 0 or numbers[n] != numbers[n - 1] for n in range(len(numbers))]
    assert (encoded.marks & Mark.WORD).astype(bool).tolist() == wanted
    assert len(wanted) > 30_000


@pytest.mark.thorough
@each_of_text
def test_every_tokenizer_begins_the_words_of_the_text(kind: str) -> None:
    """All of them, but those that a piece swallows ("...", "'t", a run of unknown letters)."""
    known = encoder(tokenizer(kind))
    swallowed = total = 0
    for text in real():
        encoded = known.encode([text], characters=True)
        assert encoded.firsts is not None and encoded.stops is not None
        wanted = word_starts(text)
        starts = encoded.firsts[(encoded.marks & Mark.WORD) > 0].tolist()
        assert len(set(starts)) == len(starts)
        lost = wanted.difference(starts)
        assert wanted.issuperset(starts)
        assert lost.isdisjoint(encoded.firsts.tolist())
        swallowed, total = swallowed + len(lost), total + len(wanted)
    assert total > 30_000
    if kind in ("wordpiece", "char_bpe", "chars", "bytes"):
        assert swallowed == 0
    else:
        assert 0 < swallowed < 0.06 * total


@each_of_text
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("the cat", ["the", "cat"]),
        ("unbelievableness", ["unbelievableness"]),
        ("  two   spaces", ["two", "spaces"]),
        ("a , b ; c", ["a", ",", "b", ";", "c"]),
        ("12 345", ["12", "345"]),
        ("one\n\ntwo\tthree", ["one", "two", "three"]),
        ("x\u00a0y\u3000z", ["x", "y", "z"]),
        ("naïve café", ["naïve", "café"]),
        ("cafe\u0301s", ["cafe\u0301s"]),
        ("日 本", ["日", "本"]),
        ("a\x1cb c", ["a\x1cb", "c"]),
    ],
)
def test_words_that_no_piece_joins(kind: str, text: str, wanted: list[str]) -> None:
    assert words(kind, text) == wanted


@pytest.mark.parametrize("kind", ["wordpiece", "char_bpe", "chars"])
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("don't", ["don", "'", "t"]),
        ("U.S.", ["U", ".", "S", "."]),
        ("3,141.59%", ["3", ",", "141", ".", "59", "%"]),
        ("http://a.b/c?d=1", ["http", ":", "/", "/", "a", ".", "b", "/", "c", "?", "d", "=", "1"]),
        ("中文mix字", ["中", "文", "mix", "字"]),
        ("かな한국", ["かな한국"]),
        ("a…b", ["a", "…", "b"]),
        ("x+y^z", ["x", "+", "y", "^", "z"]),
    ],
)
def test_signs_and_ideographs_are_words(kind: str, text: str, wanted: list[str]) -> None:
    assert words(kind, text) == wanted


def test_a_piece_of_several_signs_is_one_word_of_byte_bpe() -> None:
    assert words("byte_bpe", "I don't know...") == ["I", "don", "'t", "know", "..."]


def test_byte_bpe_begins_a_word_with_or_without_its_space() -> None:
    for text in ("zymurgy zymurgy", '"zymurgy" (zymurgy)', "zymurgy\nzymurgy"):
        encoded = encoder(tokenizer("byte_bpe")).encode([text], characters=True)
        assert encoded.firsts is not None
        marked = set(encoded.firsts[(encoded.marks & Mark.WORD) > 0].tolist())
        starts = [at for at in range(len(text)) if text.startswith("zymurgy", at)]
        assert marked.issuperset(starts)
        assert len(encoded.ids) > len(marked)  # the word takes several pieces


def test_a_lone_space_piece_begins_the_word_and_the_word_does_not() -> None:
    pieces = tokenizer("unigram").encode("a ŋx", add_special_tokens=False).tokens
    assert pieces[1] == "▁"
    marks = encoder(tokenizer("unigram")).encode(["a ŋx"]).marks & Mark.WORD
    assert marks.tolist() == [1, 1] + [0] * (len(pieces) - 2)


def test_an_emoji_in_bytes_begins_once() -> None:
    encoded = encoder(tokenizer("byte_bpe")).encode(["no 😀 no"])
    assert len(encoded.ids) >= 5
    assert np.count_nonzero(encoded.marks & Mark.WORD) == 3


def test_chinese_is_one_word_an_ideograph() -> None:
    text = chinese()[0].replace("\n", "")
    assert text.isprintable()
    assert words("chars", text) == [letter for letter in text if not letter.isspace()]


@max_examples(200)
@given(st.characters(exclude_categories=["Cs"]))
def test_kinds_of_characters_are_the_librarys(character: str) -> None:
    parts = SPLIT.pre_tokenize_str(f"a{character}b")
    gap = {1: "letter", 2: "space", 3: "sign"}[len(parts)]
    spaced = normalizers.BertNormalizer(clean_text=False, lowercase=False, strip_accents=False)
    split = spaced.normalize_str(character) == f" {character} "
    assert kind(character) == ("ideograph" if split else gap)


def test_begins_by_hand() -> None:
    text = " ab,中c"
    assert after_space(text, [0, 2, 3]) == [1, 2, 3]
    assert begins(text, [1, 1, 2, 3, 4, 5]) == [True, False, False, True, True, True]


def test_segmented_words_are_all_or_nothing() -> None:
    assert segmenter() is not None
    for text in chinese()[:60]:
        for line in filter(str.strip, text.split("\n")):
            wanted = [w for w in rjieba.cut(line) if any(kind(c) == "ideograph" for c in w)]
            segments = words("chars", line, bit=Mark.SEGMENT)
            assert [w for w in segments if any(kind(c) == "ideograph" for c in w)] == wanted


def test_a_segmented_word_may_hold_letters() -> None:
    assert words("chars", "我看阿Q正传", bit=Mark.SEGMENT) == ["我", "看", "阿Q", "正传"]
    assert words("chars", "约3.14公里", bit=Mark.SEGMENT) == ["约", "3", ".", "14", "公里"]


def test_other_scripts_are_left_to_the_words() -> None:
    text = "don't stop at http://a.b"
    assert not inside_segments(text)[0].any()
    for kind_ in KINDS:
        assert words(kind_, text, bit=Mark.SEGMENT) == words(kind_, text)


@each_of_text
def test_segmentation_never_changes_ids_or_words(kind: str) -> None:
    texts = list(chinese()[:40])
    plain = encoder(tokenizer(kind)).encode(texts)
    segmented = encoder(tokenizer(kind), segment=True).encode(texts)
    assert segmented.ids.tolist() == plain.ids.tolist()
    assert ((segmented.marks | Mark.SEGMENT) == (plain.marks | Mark.SEGMENT)).all()
    assert (segmented.marks & Mark.SEGMENT).sum() < (plain.marks & Mark.SEGMENT).sum()


def _marks(known: Tokenizer, texts: list[str], counts: Counts) -> Tokenised:
    return CachedTokenizer(known, segment=True, counts=counts).encode(texts)


def test_words_of_one_character_are_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rjieba, "cut", list)
    for name in KINDS:
        marks = _marks(tokenizer(name), list(chinese()[:20]), Counts()).marks
        assert ((marks & Mark.SEGMENT > 0) == (marks & Mark.WORD > 0)).all()


def test_a_segmentation_that_does_not_match_is_left_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut = rjieba.cut
    monkeypatch.setattr(rjieba, "cut", lambda text: [] if "国" in text else cut(text))
    counts = Counts()
    encoded = _marks(tokenizer("chars"), ["中国人民", "人民日报", "plain"], counts)
    assert counts.numbers["sentences with Chinese, cut into words"] == 2
    assert counts.numbers["sentences whose segmentation did not match"] == 1
    assert counts.places["sentences whose segmentation did not match"] == "中国人民"
    assert (encoded.marks[:4] & Mark.SEGMENT).all()
    assert not (encoded.marks[4:8] & Mark.SEGMENT).all()


def test_the_segmenter_matches_the_sample_corpus() -> None:
    counts = Counts()
    _marks(tokenizer("chars"), list(chinese()), counts)
    assert "sentences whose segmentation did not match" not in counts.numbers
    assert counts.numbers["sentences with Chinese, cut into words"] == len(chinese())


def test_a_text_is_cut_into_its_words_without_a_tokenizer() -> None:
    text = " It's 3.5 km,\n我们住在北京 ok "
    cut = [text[a:b] for a, b in text_words.words(text)]
    assert cut == ["It", "'", "s", "3", ".", "5", "km", ",", "我们", "住", "在", "北京", "ok"]
    assert text_words.words("") == text_words.words(" \n") == []


@given(st.text(max_size=40))
@max_examples(200)
def test_every_character_but_space_is_in_one_word(text: str) -> None:
    spans = text_words.words(text)
    inside = [at for start, stop in spans for at in range(start, stop)]
    assert inside == sorted({*inside}) and all(start < stop for start, stop in spans)
    assert {at for at, letter in enumerate(text) if kind(letter) != "space"} <= {*inside}
    for start, stop in spans:
        assert kind(text[start]) != "space" and kind(text[stop - 1]) != "space"

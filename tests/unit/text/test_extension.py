"""Words of a new text in an old tokenizer: found whole, and nothing else moved."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from support.hypothesis_settings import max_examples
from support.texts import ATOMS, copy, each_learned, encoder, hard, literal, real, tokenizer, whole
from tokenizers import Tokenizer, models, pre_tokenizers

from clozelab.contracts import Mark
from clozelab.errors import UserError
from clozelab.text.extension import Extension, NewWord, WordCounts, extended, pieces
from clozelab.text.vocabulary import describe
from clozelab.text.words import after_space, begins

TEXT = [
    "The plasmation of gastrology, a plasmation; gastrology! The abcdq42 and zq, zq, zq.",
    "Gastrology's (plasmation) in the plasmation-like plasmation of plasmation",
]
WORDS = ["plasmation", "gastrology"]


def grown(tokenizer: Tokenizer, texts: Iterable[str], *, words: int) -> Tokenizer:
    return extended(tokenizer, [each.word for each in ranked(tokenizer, texts)], most=words)


def ranked(tokenizer: Tokenizer, texts: Iterable[str]) -> list[NewWord]:
    counts = WordCounts(tokenizer)
    counts.update(texts)
    return counts.ranked()


def extended_tokenizer(kind: str, *, times: int = 10, words: int = 50) -> Tokenizer:
    return Tokenizer.from_str(_extended_json(kind, times, words))


@cache
def _extended_json(kind: str, times: int, words: int) -> str:
    return grown(copy(kind), TEXT * times, words=words).to_str()


def added(kind: str, more: Tokenizer) -> list[str]:
    old = copy(kind).get_vocab()
    table = more.get_vocab()
    assert {word: table[word] for word in old} == old
    names = sorted(table.keys() - old.keys(), key=table.__getitem__)
    assert [table[name] for name in names] == list(range(len(old), len(table)))
    return names


@each_learned
def test_new_words_are_single_tokens_and_the_most_frequent_come_first(kind: str) -> None:
    more = extended_tokenizer(kind)
    names = added(kind, more)
    bare = [name.strip("Ġ▁").removesuffix("</w>") for name in names]
    assert [word for word in bare if word in WORDS] == WORDS
    assert all(word.isalpha() for word in bare)
    if kind == "char_bpe":  # merges on the way to a word are tokens too
        assert all(any(word.endswith(part) for word in WORDS) for part in bare)
    else:
        assert bare[:2] == WORDS and all(len(word) >= 4 for word in bare)
    for word, name in zip(bare, names, strict=True):
        if word not in WORDS:
            continue
        encoded = encoder(more).encode([f"of {word}, ({word}) {word}"])
        assert int((encoded.ids == more.token_to_id(name)).sum()) >= 2, word
    assert describe(more).special.tolist() == describe(copy(kind)).special.tolist()


@each_learned
def test_new_words_that_begin_with_each_other_are_single_tokens(kind: str) -> None:
    old = copy(kind)
    words = [word for word in real_words() if len(word) > 6]
    nested = [word[:end] for word in words for end in range(4, len(word) + 1)]
    best = [each.word for each in ranked(old, [" ".join(nested)] * 10)]
    assert len(best) > 100
    for order in (best, best[::-1]):
        more = extended(old, order)
        assert all(len(more.model.tokenize(word)) == 1 for word in order)


@cache
def real_words() -> tuple[str, ...]:
    """Some English words, each once."""
    words = (word for line in real() for word in line.lower().split())
    return tuple(sorted({word for word in words if word.isascii() and word.isalpha()})[::40])


@each_learned
def test_extended_tokenizers_still_encode_by_stretches_as_in_one_piece(kind: str) -> None:
    more = extended_tokenizer(kind)
    plain, shared = literal(more), encoder(more)
    assert len(shared._pattern.findall("one two, three")) > 1, "not cut into stretches any more"

    def check(sentence: str) -> None:
        encoded = shared.encode([sentence], characters=True)
        wanted = whole(plain, sentence)
        assert encoded.ids.tolist() == wanted.ids
        firsts = after_space(sentence, [first for first, _ in wanted.offsets])
        assert encoded.firsts is not None
        assert encoded.firsts.tolist() == firsts
        words = ((encoded.marks & Mark.WORD) != 0).tolist()
        assert words[1:] == begins(sentence, firsts)[1:]

    for text in [*TEXT, *real()[::40], "plasmationgastrology plasmations\nUnplasmation "]:
        check(text)
    for atom in ATOMS:
        check(f"a plasmation{atom}gastrology {atom} plasmation")

    @max_examples(60)
    @given(hard, hard)
    def any_text(first: str, second: str) -> None:
        check(f"{first}plasmation{second} gastrology")

    any_text()


@pytest.mark.thorough
@each_learned
def test_texts_without_the_new_words_are_encoded_as_before(kind: str) -> None:
    more = extended_tokenizer(kind)
    names = [name.strip("Ġ▁").removesuffix("</w>") for name in added(kind, more)]
    texts = [text for text in real() if not any(name in text.lower() for name in names)]
    assert len(texts) > 400
    first, second = (encoder(each).encode(texts) for each in (tokenizer(kind), more))
    assert np.array_equal(first.ids, second.ids)
    assert np.array_equal(first.marks, second.marks)


@each_learned
def test_new_words_decode_to_what_they_were(kind: str) -> None:
    old, more = copy(kind), extended_tokenizer(kind)
    for text in ("of plasmation and gastrology now", "plasmation"):
        read = [each.decode(encoder(each).encode([text]).ids.tolist()) for each in (old, more)]
        assert read[0] == read[1]


@pytest.mark.thorough
@each_learned
def test_a_rare_word_is_not_worth_a_row_and_no_more_are_added_than_asked(kind: str) -> None:
    rare = added(kind, extended_tokenizer(kind, times=3))
    assert rare and not any("gastrology" in name for name in rare)
    most = len(rare)
    assert added(kind, extended_tokenizer(kind, words=most)) == rare
    assert len(added(kind, extended_tokenizer(kind, words=most - 1))) < most


@each_learned
def test_the_pieces_of_a_new_word_are_those_the_old_tokenizer_gave_it(kind: str) -> None:
    old = copy(kind)
    names = added(kind, extended_tokenizer(kind))
    words = [name.strip("Ġ▁").removesuffix("</w>") for name in names]
    skipped = len(encoder(old).encode(["of"]).ids)
    plain = [encoder(old).encode([f"of {word}"]).ids.tolist()[skipped:] for word in words]
    assert pieces(old, names) == plain


@each_learned
def test_letters_of_any_script_make_words_and_ideographs_stay_alone(kind: str) -> None:
    text = "Кардиология кардиология, naïvetés naïvetés 中国人民中国人民 中国人民"
    more = grown(copy(kind), [text] * 10, words=30)
    encoded = encoder(more).encode(["x naïvetés"])
    old, new = copy(kind), {*more.get_vocab()} - {*copy(kind).get_vocab()}
    assert more.id_to_token(int(encoded.ids[-1])) in new
    unknown = describe(old).roles.get("unk")
    for letter in "中国人民":
        was, now = (encoder(each).encode([f"x {letter}"]).ids.tolist() for each in (old, more))
        if kind == "byte_bpe":
            assert was == now
        else:  # one that was unknown is a token now
            assert unknown not in now
            assert (unknown in was) == (more.id_to_token(now[-1]) in new)
    several = encoder(more).encode(["x 中国人民"]).ids.tolist()
    assert len(several) >= 5


def test_what_saves_most_tokens_comes_first() -> None:
    tokenizer, words = copy("wordpiece"), ["plasmation", "abcdefghijk", "gastrology"]
    piece_counts = {word: len(tokenizer.model.tokenize(word)) for word in words}
    assert piece_counts["abcdefghijk"] > piece_counts["gastrology"] > 1
    texts = ["abcdefghijk"] * 10 + ["gastrology"] * 11 + ["plasmation"] * 40
    ranking = ranked(tokenizer, texts)
    assert [each.word for each in ranking] == words  # the second is rarer than the third
    assert [each.saves for each in ranking] == [
        times * (piece_counts[word] - 1) for times, word in zip((40, 10, 11), words, strict=True)
    ]
    more = extended(tokenizer, [each.word for each in ranking])
    was, now = (sum(len(encoder(t).encode([x]).ids) for x in texts) for t in (tokenizer, more))
    assert was - now == sum(each.saves for each in ranking)


def test_a_word_that_would_make_a_longer_one_unknown_is_not_added() -> None:
    names = ["[UNK]", "abc", "##de", "##defg", "wxyz", "##s", "##er"]
    table = {name: number for number, name in enumerate(names)}
    old = Tokenizer(models.WordPiece(table, unk_token="[UNK]", max_input_chars_per_word=100))
    old.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    texts = ["abcde abcdefg wxyzer wxyzers wxyzersq"] * 20
    words = [each.word for each in ranked(old, texts)]
    assert "abcde" not in words and {"abcdefg", "wxyzer", "wxyzers"} <= {*words}
    more = extended(old, words)
    assert more.encode("abcdefg").tokens == ["abcdefg"]
    assert [each.word for each in ranked(old, ["abcde"] * 20)] == ["abcde"]


def test_an_extension_trains_like_any_tokenizer() -> None:
    training = Extension(copy("wordpiece").to_str(), 1)
    assert training.vocabulary == copy("wordpiece").get_vocab_size() + 1
    assert training.train(iter(TEXT * 10)).token_to_id("plasmation") is not None


def test_words_split_twice_as_in_the_files_of_albert_are_extended_too() -> None:
    twice = copy("unigram")
    twice.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    more = grown(twice, TEXT * 10, words=9)
    assert more.encode("of plasmation,", add_special_tokens=False).tokens[1] == "▁plasmation"


@each_learned
def test_specials_behind_the_pieces_stay_behind_them(kind: str) -> None:
    old = copy(kind)
    old.add_special_tokens(["<extra>"])
    with pytest.raises(UserError, match=r"<extra> and other tokens after .* vocabulary add"):
        Extension(old.to_str(), 5)
    more = grown(old, TEXT * 10, words=9)
    table = more.get_vocab()
    assert sorted(table.values()) == [*range(len(table))]
    assert table["<extra>"] == len(table) - 1
    assert more.encode("of <extra>", add_special_tokens=False).ids[-1] == len(table) - 1
    text = "of plasmation and gastrology now"
    assert more.decode(more.encode(text).ids) == old.decode(old.encode(text).ids)


def test_what_cannot_be_extended_is_refused_at_once() -> None:
    word_level = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    word_level.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(UserError, match="WordLevel with Whitespace cannot be extended"):
        Extension(word_level.to_str(), 5)
    for kind in ("kmer", "regex", "bytes"):
        with pytest.raises(UserError, match="cannot be extended; use it unchanged"):
            Extension(copy(kind).to_str(), 5)
    with pytest.raises(UserError, match="words = 0: --extend takes at least 1"):
        Extension(copy("wordpiece").to_str(), 0)

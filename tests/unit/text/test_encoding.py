"""Encoding by stretches equals encoding whole sentences, or falls back to doing just that."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.hypothesis_settings import max_examples
from support.texts import (
    KINDS,
    MADE,
    copy,
    corpus,
    each_kind,
    each_of_text,
    encoder,
    hard,
    literal,
    real,
    tokenizer,
    whole,
)
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from clozelab.contracts import Counts, Mark
from clozelab.text import encoding
from clozelab.text.encoding import CachedTokenizer, Tokenised, stretches
from clozelab.text.words import after_space

SENTENCE = "one two, three"


def check_equals_whole(plain: Tokenizer, encoder: CachedTokenizer, sentence: str) -> None:
    """Ids and characters are those of the library given the sentence in one piece."""
    encoded = encoder.encode([sentence], characters=True)
    wanted = whole(plain, sentence)
    assert encoded.ids.tolist() == wanted.ids
    assert encoded.firsts is not None and encoded.stops is not None
    assert encoded.firsts.tolist() == after_space(sentence, [first for first, _ in wanted.offsets])
    assert encoded.stops.tolist() == [stop for _, stop in wanted.offsets]


def same(first: Tokenised, second: Tokenised) -> bool:
    return (
        first.ids.tolist() == second.ids.tolist()
        and first.marks.tolist() == second.marks.tolist()
        and first.starts.tolist() == second.starts.tolist()
    )


def test_words_are_counted_alike_whatever_was_met_before() -> None:
    """A zero-width space has no token, so the word that it begins has no first token of its own."""
    sentence = "one'\u200btwo one three"
    counted = []
    for before in ([], ["'three"]):
        memory = encoder(tokenizer("wordpiece", MADE[0]))
        for met in before:
            memory.encode([met])
        ids, marks, times = memory.words(memory.encode([sentence]).stretches)
        begin = np.flatnonzero(marks & Mark.WORD)
        words = (tuple(word.tolist()) for word in np.split(ids, begin)[1:])
        counted.append(sorted(zip(words, times[begin].tolist(), strict=True)))
    assert counted[0] == counted[1]


@each_kind
@pytest.mark.parametrize("variant", MADE)
def test_stretches_give_what_whole_sentences_give(kind: str, variant: str) -> None:
    known = tokenizer(kind, variant)
    plain, shared = literal(known), encoder(known)  # whose memory grows, as in use

    @max_examples(120)
    @given(hard)
    @example("a´ b")
    @example("\u00b4\u3000 a\u00a0\u00a0!")
    @example("MMM MMMM\nM MMMMM")
    @example("x\x1c y\x1f\n [MASK] <s>the</s>")
    def check(sentence: str) -> None:
        check_equals_whole(plain, shared, sentence)

    check()


@pytest.mark.thorough
@each_kind
def test_odd_characters_inside_words_join_or_part_as_in_one_piece(kind: str) -> None:
    plain, shared = literal(tokenizer(kind)), encoder(tokenizer(kind))
    for odd in "\x00\x0b\x0c\x1c\x1f\x85\xa0\xad\u1680\u2003\u2028\u200b\u200d\u3000\u0301\ufeff´":
        for sentence in (
            "the{}se",
            " the {}se",
            "the{} se",
            "the{}!{}se",
            "中{}the{}中",
            "a{0}{0}b",
        ):
            check_equals_whole(plain, shared, sentence.format(odd, odd))


@pytest.mark.thorough
@each_kind
def test_real_text_is_encoded_as_in_one_piece(kind: str) -> None:
    encoded = encoder(tokenizer(kind)).encode(list(real()))
    plain = literal(tokenizer(kind))
    pieces = plain.encode_batch([text.rstrip() for text in real()], add_special_tokens=False)
    assert encoded.ids.tolist() == [number for piece in pieces for number in piece.ids]
    assert np.diff(encoded.starts).tolist() == [len(piece.ids) for piece in pieces]


@max_examples(100)
@given(st.text(alphabet="M \n", max_size=30))
def test_equal_scores_are_settled_the_same_way(sentence: str) -> None:
    pieces = [("<unk>", 0.0), ("▁", -1.0), ("M", -1.0), ("MM", -2.0), ("▁M", -2.0), ("MMM", -3.0)]
    tied = Tokenizer(models.Unigram(pieces, unk_id=0))
    tied.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip(left=False, right=True)]
    )
    tied.pre_tokenizer = pre_tokenizers.Metaspace()
    assert len(stretches(tied).findall(SENTENCE)) == 3
    check_equals_whole(literal(tied), encoder(tied), sentence)


@each_of_text
def test_own_kinds_are_cut_and_lose_nothing(kind: str) -> None:
    text = "one two, [MASK]\n 中文\u00a0x"
    pieces = [match.group() for match in stretches(tokenizer(kind)).finditer(text)]
    assert len(pieces) > 3
    assert "".join(pieces) == text


def _normalized(kind: str, *steps: normalizers.Normalizer) -> Tokenizer:
    changed = copy(kind)
    changed.normalizer = normalizers.Sequence(list(steps))
    return changed


def _split(kind: str, before: pre_tokenizers.PreTokenizer) -> Tokenizer:
    changed = copy(kind)
    changed.pre_tokenizer = before
    return changed


def _added() -> Tokenizer:
    changed = copy("wordpiece")
    changed.add_tokens(["two, three"])
    return changed


def _unspaced() -> Tokenizer:
    changed = copy("wordpiece")
    changed.normalizer = normalizers.BertNormalizer(handle_chinese_chars=False)
    return changed


_SQUEEZE = normalizers.Replace(Regex(r"\s+"), " ")
_STRIP = normalizers.Strip(left=False, right=True)
_NFKD, _ACCENTS = normalizers.NFKD(), normalizers.StripAccents()

FOREIGN: dict[str, Callable[[], Tokenizer]] = {
    "prefix space": lambda: _split("byte_bpe", pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "bytes unsplit": lambda: _split(
        "byte_bpe", pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ),
    "bytes normalised": lambda: _normalized("byte_bpe", normalizers.NFC()),
    "spaces kept": lambda: _normalized("unigram", _NFKD, normalizers.Lowercase()),
    "not stripped": lambda: _normalized("unigram", _NFKD, _ACCENTS, _SQUEEZE),
    "squeezed first": lambda: _normalized("unigram", _SQUEEZE, _NFKD, _ACCENTS, _STRIP),
    "composed": lambda: _normalized("unigram", normalizers.NFKC(), _SQUEEZE, _STRIP),
    "words replaced": lambda: _normalized(
        "unigram", normalizers.Replace("e t", "x"), _SQUEEZE, _STRIP
    ),
    "metaspace first": lambda: _split("unigram", pre_tokenizers.Metaspace(prepend_scheme="first")),
    "metaspace whole": lambda: _split("unigram", pre_tokenizers.Metaspace(split=False)),
    "added words": _added,
    "ideographs unspaced": _unspaced,
    "white space": lambda: _split("wordpiece", pre_tokenizers.Whitespace()),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_not_safe_to_cut_gets_whole_sentences(name: str) -> None:
    foreign = FOREIGN[name]()
    assert stretches(foreign).findall(f"{SENTENCE} \n") == [SENTENCE]
    for sentence in (SENTENCE, "´ a\n\nb´ \u3000c \u00a0", " 中文 two, three\x1c "):
        check_equals_whole(literal(foreign), encoder(foreign), sentence)


def test_roberta_files_that_trim_offsets_are_cut_rightly() -> None:
    trimmed = copy("byte_bpe")
    trimmed.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    for sentence in ("one  two\n\nthree", " 中文 don't 😀", "\t\x1c a\u00a0 b"):
        check_equals_whole(literal(trimmed), encoder(trimmed), sentence)


def test_padding_and_truncation_of_a_file_are_not_followed() -> None:
    padded = copy("wordpiece")
    padded.enable_padding(length=8)
    padded.enable_truncation(2)
    sentence = "an unspeakablelongishword of these"
    assert same(encoder(padded).encode([sentence]), encoder(copy("wordpiece")).encode([sentence]))


@each_kind
def test_names_of_specials_in_the_text_are_text(kind: str) -> None:
    known = tokenizer(kind)
    names = {token.content: n for n, token in known.get_added_tokens_decoder().items()}
    ids = set(encoder(known).encode([f"a {name} b{name}" for name in names]).ids.tolist())
    assert len(names) == 5
    assert ids.isdisjoint({number for name, number in names.items() if "unk" not in name.lower()})
    assert not known.encode_special_tokens  # the caller's is left alone


@each_kind
def test_forgetting_changes_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [line for text in corpus()[:6] for line in text.split("\n")]
    unforgotten = encoder(tokenizer(kind)).encode(texts, characters=True)
    monkeypatch.setattr(encoding, "_MOST_LETTERS", 300)
    forgetful = encoder(tokenizer(kind))
    longest = 0
    for number, text in enumerate(texts):
        forgetful.forget()
        part = forgetful.encode([text], characters=True)
        span = slice(unforgotten.starts[number], unforgotten.starts[number + 1])
        assert part.ids.tolist() == unforgotten.ids[span].tolist()
        assert part.marks.tolist() == unforgotten.marks[span].tolist()
        assert part.firsts is not None and unforgotten.firsts is not None
        assert part.firsts.tolist() == unforgotten.firsts[span].tolist()
        assert sum(map(len, forgetful._known)) <= 300 + len(text)
        longest = max(longest, len(text))
    assert longest > 300  # one text alone went past the limit


@each_kind
def test_nothing_encodes_to_nothing(kind: str) -> None:
    fresh = encoder(tokenizer(kind), segment=True)
    assert fresh.encode([]).starts.tolist() == [0]
    encoded = fresh.encode(["", " ", "\n\u3000\t", "a", ""], characters=True)
    assert encoded.starts.tolist() == [0, 0, 0, 0, len(encoded.ids), len(encoded.ids)]
    assert len(encoded.ids) == len(encoded.marks) > 0


@each_kind
def test_a_very_long_word_is_encoded_like_any_other(kind: str) -> None:
    word = "xyzzy" * 4000
    check_equals_whole(literal(tokenizer(kind)), encoder(tokenizer(kind)), f"a {word} b")
    marks = encoder(tokenizer(kind)).encode([f"a {word} b"]).marks
    assert np.count_nonzero(marks & Mark.WORD) == 3


def test_a_batch_is_its_sentences_end_to_end() -> None:
    known = [encoder(tokenizer(kind)) for kind in KINDS]

    @max_examples(60)
    @given(st.lists(hard, max_size=6))
    def check(sentences: list[str]) -> None:
        for known_sentence in known:
            batch = known_sentence.encode(sentences, characters=True)
            alone = [known_sentence.encode([sentence], characters=True) for sentence in sentences]
            assert batch.ids.tolist() == [n for part in alone for n in part.ids.tolist()]
            assert batch.marks.tolist() == [n for part in alone for n in part.marks.tolist()]
            assert batch.firsts is not None
            places = [n for part in alone if part.firsts is not None for n in part.firsts.tolist()]
            assert batch.firsts.tolist() == places
            assert np.diff(batch.starts).tolist() == [len(part.ids) for part in alone]

    check()


@each_kind
def test_the_first_token_of_a_sentence_begins_every_unit(kind: str) -> None:
    encoded = encoder(tokenizer(kind), segment=True).encode(
        [*real()[:50], "中国人", "\u0301a", "😀"]
    )
    assert (encoded.marks[encoded.starts[:-1]] == Mark.ALL).all()
    assert np.isin(encoded.marks & (Mark.PHRASE | Mark.ENTITY), [Mark.PHRASE | Mark.ENTITY]).all()


def test_counts_belong_to_the_encoder_that_was_given_them() -> None:
    counts = Counts()
    CachedTokenizer(tokenizer("chars"), segment=True, counts=counts).encode(
        ["中国", "no ideograph", "人"]
    )
    assert counts.numbers == {"sentences with Chinese, cut into words": 2}

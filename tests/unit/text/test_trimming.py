"""A tokenizer trimmed to a text: what has none of the removed pieces is read as before."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from support.hypothesis_settings import max_examples
from support.texts import ATOMS, copy, each_learned, hard, real
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from clozelab.contracts import Ints
from clozelab.errors import UserError
from clozelab.text.extension import extended
from clozelab.text.reading.layouts import RawDocument
from clozelab.text.reading.sources import BytesRead
from clozelab.text.trimming import trimmed
from clozelab.text.usage import Usage, usage
from clozelab.text.vocabulary import describe


def used(tokenizer: Tokenizer, texts: list[str]) -> Usage:
    steps = usage(tokenizer, [RawDocument("\n".join(texts), "test")], progress=BytesRead())
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: Usage = ended.value
            return result


@cache
def trimmed_tokenizer(kind: str) -> tuple[Tokenizer, Tokenizer, dict[int, int]]:
    """A tokenizer, what a part of the text leaves of it, and the new ids of the old ones."""
    old = copy(kind)
    token_usage = used(old, list(real()[::9]))
    new = trimmed(old, token_usage.counts, unknown=token_usage.unknown)
    names, table = old.get_vocab(), new.get_vocab()
    return old, new, {number: table[name] for name, number in names.items() if name in table}


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


@each_learned
def test_the_text_itself_is_read_as_before(kind: str) -> None:
    old, new, numbers = trimmed_tokenizer(kind)
    assert len(numbers) < 0.8 * old.get_vocab_size()
    assert sorted(new.get_vocab().values()) == [*range(new.get_vocab_size())]
    for text in real()[::9]:
        assert ids(new, text) == [numbers[number] for number in ids(old, text)], text


def test_wordpiece_that_does_not_split_text_has_whole_texts_that_are_unknown() -> None:
    names = {name: number for number, name in enumerate(["[UNK]", "the river", "the"])}
    tokenizer = Tokenizer(models.WordPiece(names, unk_token="[UNK]"))
    token_usage = used(tokenizer, ["the river", "the sea"])
    assert token_usage.counts.tolist() == [1, 1, 0] and token_usage.unknown == {"the sea"}


def test_a_sentence_may_stand_alone_later() -> None:
    old = copy("byte_bpe")
    token_usage = used(old, ["It was wide. The river was slow."])
    new = trimmed(old, token_usage.counts)
    assert old.encode("The").tokens[1] == "The" and old.encode("In").tokens[1] == "In"
    for text in ("The river was slow.", "It was wide. The river was slow."):
        assert new.encode(text).tokens == old.encode(text).tokens
    assert new.encode("In").tokens != old.encode("In").tokens


@each_learned
def test_other_text_without_the_removed_pieces_is_read_as_before(kind: str) -> None:
    old, new, numbers = trimmed_tokenizer(kind)
    unknown = describe(old).roles.get("unk")
    compared = 0

    def check(text: str) -> bool:
        was = ids(old, text)
        if unknown in was or not numbers.keys() >= {*was}:
            return False
        assert ids(new, text) == [numbers[number] for number in was], text
        return True

    words = {word for text in real() for word in text.split()}
    compared = sum(map(check, sorted(words)[::7]))
    assert compared > 300
    for atom in ATOMS:
        check(f"the {atom} and{atom}")

    @max_examples(60)
    @given(hard)
    def any_text(text: str) -> None:
        check(text)

    any_text()


@each_learned
def test_special_tokens_and_marks_have_their_new_ids(kind: str) -> None:
    old, new, numbers = trimmed_tokenizer(kind)
    roles = describe(old).roles
    assert describe(new).roles == {role: numbers[number] for role, number in roles.items()}
    text = real()[0]
    assert new.encode(text).ids == [numbers[number] for number in old.encode(text).ids]
    assert new.encode(text, text).tokens == old.encode(text, text).tokens
    assert new.decode(new.encode(text).ids) == old.decode(old.encode(text).ids)


@each_learned
def test_any_text_can_still_be_read(kind: str) -> None:
    old, new, _ = trimmed_tokenizer(kind)
    for text in (*ATOMS, *real()[1::50]):
        assert not (was := ids(old, text)) or ids(new, text), was
        if kind == "byte_bpe":
            assert new.decode(ids(new, text)) == old.decode(ids(old, text))


@pytest.mark.thorough
@each_learned
def test_a_size_keeps_the_most_frequent(kind: str) -> None:
    old = copy(kind)
    token_usage = used(old, list(real()[::9]))
    size = 280
    new = trimmed(old, token_usage.counts, size=size)
    assert size - 5 <= new.get_vocab_size() <= size
    assert describe(new).roles.keys() == describe(old).roles.keys()
    with pytest.raises(
        UserError, match=r"--size 3: the tokens that every text needs .* give at least that"
    ):
        trimmed(old, token_usage.counts, size=3)
    rare = trimmed(old, token_usage.counts, least=20)
    assert rare.get_vocab_size() < trimmed(old, token_usage.counts).get_vocab_size()


def test_a_text_that_uses_all_leaves_nothing_to_trim() -> None:
    old = copy("wordpiece")
    with pytest.raises(UserError, match="nothing to trim, because the text uses every piece"):
        trimmed(old, np.ones(old.get_vocab_size(), np.int64))


def counts(tokenizer: Tokenizer, *texts: str) -> Ints:
    numbers = [number for text in texts for number in ids(tokenizer, text)]
    return np.bincount(numbers, minlength=describe(tokenizer).size)


def wordpiece(*names: str) -> Tokenizer:
    table = {name: number for number, name in enumerate(["[UNK]", *names])}
    tokenizer = Tokenizer(models.WordPiece(table, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def test_a_word_that_was_unknown_stays_so_where_it_is_of_the_text() -> None:
    old = wordpiece("ab", "a", "##bc", "##x")
    assert ids(old, "abc") == [0]  # led astray by "ab"
    text = ["a abc a", "abc"]
    token_usage = used(old, text)
    assert token_usage.unknown == {"abc"}
    rest = np.array([1, 0, 1, 1, 0])  # the others occur
    trimmed_again = trimmed(old, rest, unknown=token_usage.unknown)
    assert ids(trimmed_again, "abc") == [0] and trimmed_again.token_to_id("##x") is None
    assert ids(trimmed(old, rest), "abc") != [0]


def test_a_merge_stays_with_all_that_it_needs() -> None:
    table = {name: number for number, name in enumerate(["a", "b", "c", "ab", "abc", "bc"])}
    merges = [("a", "b"), ("b", "c"), ("ab", "c")]
    old = Tokenizer(models.BPE(vocab=table, merges=merges))
    new = trimmed(old, counts(old, "abc"))
    assert new.get_vocab() == {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}  # "bc" is gone
    assert new.encode("abc").tokens == ["abc"]


def test_unknown_letters_cost_a_unigram_what_they_did() -> None:
    scores = [("<unk>", 0.0), ("a", -2.0), ("b", -40.0), ("ab", -5.0), ("c", -3.0), ("ca", -30.0)]
    old = Tokenizer(models.Unigram(scores, unk_id=0))
    assert old.encode("cab").tokens == ["c", "ab"]
    new = trimmed(old, counts(old, "ab", "c", "ca", "a"))
    assert new.token_to_id("b") is not None, "the lowest score stays"
    assert new.encode("cab").tokens == ["c", "ab"]


def test_words_that_were_looked_up_are_still() -> None:
    old = copy("byte_bpe")
    more = extended(old, ["Ġplasmation"])
    new = trimmed(more, counts(more, "of plasmation"))
    assert new.encode("of plasmation", add_special_tokens=False).tokens[-1] == "Ġplasmation"


def template(sep: tuple[str, int], cls: tuple[str, int]) -> processors.PostProcessor:
    return processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[sep, cls])


@pytest.mark.parametrize(
    "processor", [template, processors.BertProcessing, processors.RobertaProcessing]
)
def test_marks_around_a_text_have_their_new_ids_in_any_file(processor: Any) -> None:
    old = wordpiece("x", "a", "[SEP]", "[CLS]", "[PAD]")
    old.post_processor = processors.Sequence([processor(("[SEP]", 3), ("[CLS]", 4))])
    old.enable_padding(pad_id=5, pad_token="[PAD]", length=6)
    new = trimmed(old, counts(old, "a"))
    assert new.encode("a").tokens == ["[CLS]", "a", "[SEP]", *["[PAD]"] * 3]
    assert new.encode("a").ids == [new.token_to_id(token) for token in new.encode("a").tokens]
    assert json.loads(new.to_str())["padding"]["pad_id"] == new.token_to_id("[PAD]")


def test_the_first_ids_may_be_asked_to_stay() -> None:
    old = wordpiece("x", "y", "[PAD]", "a", "b")
    assert trimmed(old, counts(old, "a")).get_vocab() == {"[UNK]": 0, "[PAD]": 1, "a": 2}
    trimmed_again = trimmed(old, counts(old, "a"), first=4)
    assert trimmed_again.token_to_id("[PAD]") == old.token_to_id("[PAD]")

"""The bytes of a word's pieces, end to end, are the word as the tokenizer normalises it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from support.hypothesis_settings import max_examples
from support.texts import (
    MADE,
    copy,
    each_kind,
    each_of_text,
    encoder,
    hard,
    literal,
    real,
    tokenizer,
)
from tokenizers import Tokenizer

from clozelab.contracts import Mark
from clozelab.text.vocabulary import describe, lettered, letters

GAPS = str.maketrans("", "", " \t\n\r\x0b\x0c")


def spelled(known: Tokenizer) -> list[bytes]:
    """Every id's bytes."""
    flat, starts = letters(known)
    raw = flat.tobytes()
    return [raw[a:b] for a, b in zip(starts[:-1], starts[1:], strict=True)]


def normal(known: Tokenizer, text: str) -> str:
    """A text as the tokenizer normalises it, less its white space."""
    if known.normalizer is not None:
        text = known.normalizer.normalize_str(text)
    return text.translate(GAPS)


@pytest.mark.thorough
@pytest.mark.parametrize("variant", MADE)
@each_kind
def test_the_pieces_of_every_word_spell_it(kind: str, variant: str) -> None:
    known = tokenizer(kind, variant)
    pieces, shared = spelled(known), encoder(known)
    unknown = describe(known).roles["unk"]
    checked = 0
    for text in real()[::7]:
        encoded = shared.encode([text], characters=True)
        assert encoded.firsts is not None
        first = np.flatnonzero(encoded.marks & Mark.WORD)
        ends = [*first[1:].tolist(), len(encoded.ids)]
        cuts = [*encoded.firsts[first].tolist(), len(text)]
        for number, (begin, end) in enumerate(zip(first.tolist(), ends, strict=True)):
            ids = encoded.ids[begin:end].tolist()
            if unknown not in ids:
                word = text[cuts[number] : cuts[number + 1]]
                assert b"".join(pieces[n] for n in ids).decode() == normal(known, word)
                checked += 1
    assert checked > 2000


def test_bytes_spell_any_text() -> None:
    plain, pieces = literal(tokenizer("byte_bpe")), spelled(tokenizer("byte_bpe"))

    @max_examples(200)
    @given(hard)
    def check(text: str) -> None:
        ids = plain.encode(text, add_special_tokens=False).ids
        assert b"".join(pieces[n] for n in ids).decode().translate(GAPS) == text.translate(GAPS)

    check()


@each_kind
def test_no_piece_keeps_a_sign_of_its_tokenizer(kind: str) -> None:
    pieces = spelled(tokenizer(kind))
    ordinary = [pieces[n] for n in describe(tokenizer(kind)).ordinary.tolist()]
    marks = ("▁", "Ġ", "</w>", "##")
    assert not any(mark.encode() in piece for mark in marks for piece in ordinary)
    assert not any(piece[:1].isspace() for piece in ordinary)
    assert sum(not piece for piece in ordinary) <= 12  # lone spaces


def test_ids_without_a_piece_spell_nothing() -> None:
    more = copy("wordpiece")
    more.add_tokens(["newword"])
    flat, starts = letters(more)
    assert len(starts) == more.get_vocab_size(with_added_tokens=True) + 1
    assert spelled(more)[-1] == b"newword"
    assert starts[-1] == len(flat)


@each_of_text
def test_lettered_tells_words_from_signs(kind: str) -> None:
    known, has = tokenizer(kind), lettered(tokenizer(kind))
    assert has.shape == (describe(known).size,)

    def has_letters(text: str) -> list[bool]:
        ids = known.encode(text, add_special_tokens=False).ids
        return [bool(has[n]) for n in ids]

    assert any(has_letters("the"))
    assert any(has_letters("1"))
    for sign in (",", ".", "?", "("):
        assert not any(has_letters(sign))

"""Text that is hard on a tokenizer, real text, and tokenizers to try on both."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import strategies as st
from tokenizers import Encoding, Tokenizer

from clozelab import data
from clozelab.contracts import Counts
from clozelab.text.encoding import CachedTokenizer
from clozelab.text.tokenizers import TOKENIZERS

KINDS = sorted(TOKENIZERS)
# Those that published models of most families have; the others are left to `make test`.
_COMMON = ("byte_bpe", "unigram", "wordpiece")


def _each(kinds: Sequence[str]) -> pytest.MarkDecorator:
    marks = {kind: [pytest.mark.thorough] * (kind not in _COMMON) for kind in kinds}
    return pytest.mark.parametrize("kind", [pytest.param(k, marks=marks[k]) for k in kinds])


each_kind = _each(KINDS)
# Without those whose tokens are words, wherever the text has spaces; and that learn their pieces.
each_of_text = _each([kind for kind in KINDS if kind not in ("kmer", "regex")])
each_learned = _each(data.TOKENIZERS)
_SETTINGS: dict[str, dict[str, Any]] = {
    "kmer": {"k": 2, "alphabet": "ETAOINSH"},
    "regex": {"pattern": r"[a-z]+|[^a-z\s]"},
}
MADE = ["embedded", "small", "cased"]

# fmt: off
ATOMS = [
    "a", "M", "MMM", "the", "Don't", "U.S.", "http://x.y/z?q=1", "12,345.67", "a_b", "I’m", "'ll",
    "[MASK]", "<s>", "<pad>", "##ing", "</w>", "▁", "Ġ", "``", "''", "“", "—", "…", "$", "+", "^",
    " ", "   ", "\n", "\n\n", "\t", "\r\n", "\x0b", "\x0c", "\x85", "\u00a0", "\u3000", "\u2028",
    "\u2029", "\u2003", "\u202f", "\u1680", "\u200b", "\u200d", "\ufeff", "\xad", "\x1c", "\x1d",
    "\x1e", "\x1f", "\x00", "\x07", "\x7f", "\ufffd", "e\u0301", "é", "\u0301", "\u0308", "´", "¯",
    "Å", "İ", "ß", "ΑΣ", "ﬁ", "ﬃ", "½", "²", "™", "≠", "㎏", "Ａ", "ｱﾞ", "①", "\ufdfa", "\u037a",
    "👩‍👩‍👧", "👍🏽", "🇨🇭", "😀",
    "中", "中文字", "豈", "㐀", "\U00020000", "⼀", "かな", "カナ", "か\u3099",
    "한국", "\u1112\u1161\u11ab", "مرحبا", "العَرَبِيَّة", "שָׁלוֹם", "नमस्ते", "ไทย", "、", "。", "「", "，",
    "\ue000", "\U000f0000", "\U0010ffff", "x" * 40,
]
# fmt: on

hard = st.lists(st.sampled_from(ATOMS) | st.characters(exclude_categories=["Cs"]), max_size=10).map(
    "".join
)


@cache
def corpus() -> tuple[str, ...]:
    """The embedded English texts."""
    with gzip.open(data.corpus(), "rt", encoding="utf-8") as lines:
        return tuple(json.loads(line)["text"] for line in lines)


@cache
def chinese() -> tuple[str, ...]:
    """The embedded Chinese texts."""
    with gzip.open(data.chinese(), "rt", encoding="utf-8") as lines:
        return tuple(json.loads(line)["text"] for line in lines)


@cache
def real() -> tuple[str, ...]:
    """Some paragraphs of each, a thousand or so."""
    some = [*corpus()[::20], *chinese()[::4]]
    return tuple(line for text in some for line in text.split("\n") if line.strip())


@cache
def tokenizer(kind: str, variant: str = "embedded") -> Tokenizer:
    """The embedded tokenizer of a kind, or a small one that knows little; not to be changed."""
    if variant == "embedded" and kind in data.TOKENIZERS:
        return Tokenizer.from_file(str(data.tokenizer(kind)))
    cased = variant == "cased" or kind in ("byte_bpe", "bytes")
    return spec(kind, vocabulary=600, cased=cased).train(iter(corpus()[:40]))


def spec(kind: str, **settings: Any) -> Any:
    """A tokenizer of a kind yet to be trained, small enough for English in k-mers."""
    own = _SETTINGS.get(kind, {})
    if kind == "kmer" and settings.get("cased"):
        own = own | {"alphabet": own["alphabet"].lower()}
    return TOKENIZERS[kind](**own, **settings)


def copy(kind: str) -> Tokenizer:
    """The embedded tokenizer of a kind, to be changed."""
    return Tokenizer.from_str(tokenizer(kind).to_str())


def encoder(tokenizer: Tokenizer, *, segment: bool = False) -> CachedTokenizer:
    """An encoder with an empty memory, made once for a tokenizer; its counts do not matter."""
    cached = _encoder(tokenizer, segment)
    cached._forget()
    return cached


@cache
def _encoder(tokenizer: Tokenizer, segment: bool) -> CachedTokenizer:
    return CachedTokenizer(tokenizer, segment=segment, counts=Counts())


@cache
def literal(tokenizer: Tokenizer) -> Tokenizer:
    """A copy to which a special's name is text; a unigram model is to forget the names as well."""
    names = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    settings = json.loads(tokenizer.to_str())
    if settings["model"]["type"] == "WordLevel":
        settings["added_tokens"] = []
        vocab = settings["model"]["vocab"]
        unknown = settings["model"]["unk_token"]
        settings["model"]["unk_token"] = f"\0{unknown}"
        settings["model"]["vocab"] = {f"\0{n}" if n in names else n: at for n, at in vocab.items()}
    if settings["model"]["type"] == "Unigram":
        settings["added_tokens"] = []
        pieces = settings["model"]["vocab"]
        settings["model"]["vocab"] = [[f"\0{n}" if n in names else n, score] for n, score in pieces]
    plain = Tokenizer.from_str(json.dumps(settings))
    plain.encode_special_tokens = True
    return plain


def whole(plain: Tokenizer, sentence: str) -> Encoding:
    """A sentence given to the library in one piece, less the gap at its end."""
    end = len(sentence)
    while end and sentence[end - 1].isspace() and not "\x1c" <= sentence[end - 1] <= "\x1f":
        end -= 1
    return plain.encode(sentence[:end], add_special_tokens=False)

"""Training gives the same bytes every time, from a stream, and pieces as good as the library's."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest
from hypothesis import given
from support.hypothesis_settings import max_examples
from support.texts import KINDS, chinese, corpus, each_kind, hard, spec, tokenizer
from tokenizers import Tokenizer, models, trainers

from clozelab.errors import UserError
from clozelab.text.tokenizers import ByteBpe, Chars, Unigram, Wordpiece
from clozelab.text.vocabulary import ALBERT, BERT, GPT, ROBERTA, bert_like

SPECIALS = {
    "wordpiece": BERT,
    "chars": BERT,
    "byte_bpe": ROBERTA,
    "unigram": ALBERT,
    "char_bpe": GPT,
    "kmer": BERT,
    "regex": BERT,
    "bytes": ROBERTA,
}
FIXED = {"kmer": 5 + 8 + 8 * 8, "bytes": 5 + 256}  # ids, whatever the text

TRAIN_ALL = """
import sys
from hashlib import sha256
sys.path[:0] = ["src", "tests"]
from support.texts import KINDS, chinese, corpus, spec
for kind in KINDS:
    texts = [*corpus()[:120], *chinese()[:20]]
    trained = spec(kind, vocabulary=3000).train(iter(texts))
    print(kind, trained.get_vocab_size(), sha256(trained.to_str().encode()).hexdigest())
"""


def tokens(known: Tokenizer, text: str) -> list[str]:
    return known.encode(text, add_special_tokens=False).tokens


@pytest.mark.thorough
def test_training_twice_gives_the_same_bytes() -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", TRAIN_ALL],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONHASHSEED": seed},
            text=True,
        )
        for seed in ("1", "2")
    ]
    first, second = (run.communicate()[0].splitlines() for run in runs)
    assert len(first) == len(KINDS)
    assert first == second


@each_kind
@pytest.mark.parametrize("size", [5, 6, 40, 90, 262, 400, 1000, 100_000])
def test_the_vocabulary_is_at_most_what_was_asked(kind: str, size: int) -> None:
    texts = corpus()[:12]
    letters = len(set("".join(texts)))
    least = FIXED | {"byte_bpe": 261, "unigram": letters}
    if size < least.get(kind, 0):
        with pytest.raises(UserError, match=f"tokenizer.vocabulary = {size}: "):
            spec(kind, vocabulary=size).train(iter(texts))
        return
    trained = spec(kind, vocabulary=size).train(iter(texts))
    names = list(trained.get_vocab(with_added_tokens=True).values())
    assert sorted(names) == list(range(len(names)))
    enough = {"chars": 0, "regex": 500, "unigram": 500}.get(kind, 2000)
    if kind in FIXED:
        assert len(names) == FIXED[kind]
    elif size < enough:
        assert len(names) == size  # this text has enough for it
    else:
        assert 5 <= len(names) <= size


@each_kind
def test_specials_have_the_ids_of_the_family(kind: str) -> None:
    for known in (tokenizer(kind), tokenizer(kind, "small")):
        assert [known.id_to_token(number) for number in range(5)] == list(SPECIALS[kind])
        added = known.get_added_tokens_decoder()
        assert sorted(added) == list(range(5))
        assert all(token.special for token in added.values())


@each_kind
def test_other_specials_take_their_places(kind: str) -> None:
    names = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
    trained = spec(kind, vocabulary=400, specials=names).train(iter(corpus()[:5]))
    assert [trained.id_to_token(number) for number in range(9)] == list(names)
    assert trained.encode("a").tokens[0] == "<cls>"
    assert trained.encode("a").tokens[-1] == "<sep>"


def test_specials_without_an_unknown_are_refused() -> None:
    with pytest.raises(UserError, match="specials"):
        Wordpiece(vocabulary=100, specials=("[PAD]", "[MASK]")).train(iter(["a"]))


@each_kind
@pytest.mark.parametrize("texts", [[], [""], [" \n"], ["a"]])
def test_next_to_no_text_trains_to_next_to_nothing(kind: str, texts: list[str]) -> None:
    trained = spec(kind, vocabulary=400).train(iter(texts))
    fixed = FIXED.get(kind, 5 + (256 if kind == "byte_bpe" else 0))
    learned_tokens = trained.get_vocab_size() - fixed
    assert 0 <= learned_tokens <= 2


class Text(str):
    """A string that can be watched."""


@each_kind
def test_training_holds_few_texts_at_a_time(kind: str) -> None:
    alive: weakref.WeakSet[Text] = weakref.WeakSet()
    most = 0

    def stream() -> Iterator[str]:
        nonlocal most
        for number in range(3000):
            text = Text(f"text number {number} of many")
            alive.add(text)
            most = max(most, len(alive))
            yield text

    spec(kind, vocabulary=400).train(stream())
    assert most <= 600
    assert (most > 0) == (kind not in FIXED)  # which read none


@max_examples(150)
@given(hard)
def test_byte_bpe_gives_any_text_back(text: str) -> None:
    known = tokenizer("byte_bpe", "small")
    plain = Tokenizer.from_str(known.to_str())
    plain.encode_special_tokens = True
    ids = plain.encode(text, add_special_tokens=False).ids
    assert plain.decode(ids, skip_special_tokens=False) == text


def test_normalisation_is_each_familys() -> None:
    texts = ["Café ÅNGSTRÖM ﬁne 中文 ``quote'' x"] * 9
    spelled = {}
    for kind, cased in [("wordpiece", False), ("wordpiece", True), ("char_bpe", False)]:
        spelled[kind, cased] = spec(kind, vocabulary=300, cased=cased).train(iter(texts))
    assert tokens(spelled["wordpiece", False], "CAFÉ") == ["cafe"]
    assert tokens(spelled["wordpiece", False], "fine") == ["[UNK]"]  # no compatibility mapping
    assert tokens(spelled["wordpiece", True], "Café café") == ["Café", "[UNK]"]
    assert tokens(spelled["wordpiece", True], "中文x") == ["中", "文", "x"]
    assert tokens(spelled["char_bpe", False], "CAFÉ中文") == ["cafe</w>", "中</w>", "文</w>"]
    unigram = Unigram(vocabulary=60).train(iter(texts))
    normal = unigram.normalizer.normalize_str("Café\u00a0 \tÅ ﬁ ``q''  ")
    assert normal == 'cafe a fi "q"'
    cased = Unigram(vocabulary=60, cased=True).train(iter(texts))
    assert cased.normalizer.normalize_str("Café Å") == "Cafe A"
    assert ByteBpe(vocabulary=300).train(iter(texts)).normalizer is None
    with pytest.raises(UserError, match="cased"):
        ByteBpe(cased=False)


def test_chars_keeps_the_most_frequent_characters() -> None:
    trained = Chars(vocabulary=9).train(iter(["中中中文文字 abb", "中"]))
    assert list(trained.get_vocab()) and trained.get_vocab_size() == 9
    assert [trained.id_to_token(number) for number in range(5, 9)] == ["中", "##b", "文", "a"]
    assert tokens(trained, "abb 字") == ["a", "##b", "##b", "[UNK]"]


def _peer(kind: str, size: int, texts: tuple[str, ...]) -> Tokenizer:
    """The library's own trainer at the same size."""
    if kind == "wordpiece":
        peer = bert_like(models.WordPiece(unk_token="[UNK]"), False)
        trainer = trainers.WordPieceTrainer(
            vocab_size=size, special_tokens=list(BERT), show_progress=False
        )
    else:
        peer = bert_like(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"), False)
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=list(GPT),
            end_of_word_suffix="</w>",
            show_progress=False,
        )
    peer.train_from_iterator(iter(texts), trainer)
    return peer


def _rates(known: Tokenizer, texts: tuple[str, ...]) -> tuple[float, float]:
    """Tokens a word, and the share of tokens that are unknown."""
    number = words = lost = 0
    for piece in known.encode_batch(list(texts), add_special_tokens=False):
        number += len(piece.ids)
        words += len(set(piece.word_ids))
        lost += sum(token in ("[UNK]", "<unk>") for token in piece.tokens)
    return number / words, lost / number


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["wordpiece", "char_bpe"])
@pytest.mark.parametrize("size", [600, 4000])
def test_pieces_are_as_good_as_the_librarys(kind: str, size: int) -> None:
    seen, unseen = corpus()[::12], corpus()[1::24]
    ours = spec(kind, vocabulary=size).train(iter(seen))
    theirs = _peer(kind, size, seen)
    assert _rates(ours, seen)[1] == 0
    pieces, lost = _rates(ours, unseen)
    peer_pieces, peer_lost = _rates(theirs, unseen)
    assert 0.9 * peer_pieces < pieces < 1.02 * peer_pieces
    assert lost < 3e-4
    assert lost < peer_lost + 5e-5


@pytest.mark.parametrize("kind", ["wordpiece", "char_bpe"])
def test_rare_letters_fill_the_room_that_is_left(kind: str) -> None:
    letters = len(set("".join(chinese()[::2])))
    trained = spec(kind, vocabulary=letters + 300).train(iter(chinese()[::2]))
    assert letters > 3 * 256
    assert _rates(trained, chinese()[::2])[1] == 0


def test_frequent_letters_are_kept_where_not_all_fit() -> None:
    trained = Wordpiece(vocabulary=300).train(iter(chinese()))
    best = Chars(vocabulary=300).train(iter(chinese()))
    assert trained.get_vocab_size() == 300
    assert _rates(trained, chinese())[1] <= 1.02 * _rates(best, chinese())[1]

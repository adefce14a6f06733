"""Tokens of sequences that are not prose: found by a rule, none over another, each a word."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hypothesis_settings import max_examples
from support.texts import encoder, hard, spec, tokenizer
from tokenizers import Tokenizer

from clozelab.contracts import Blocks, Mark
from clozelab.errors import UserError
from clozelab.masking.words import SpanMasking, WholeWord
from clozelab.models.interop.tokenizer import family_tokenizer, tokenizer_config
from clozelab.text.building import choose_tokenizer
from clozelab.text.reading.sentences import splitter
from clozelab.text.sequences import Kmer, RegexMatches, SingleBytes
from clozelab.text.tokenizers import part_of
from clozelab.text.trimming import trimmed
from clozelab.text.vocabulary import describe

DNA = Kmer(k=3)
SMILES = RegexMatches(pattern=r"\[[^\]]*\]|Br|Cl|%\d\d|[A-Za-z]|\d|[^\w\s]")
LOG = RegexMatches(pattern=r"[a-z]+|\d+ ms|\d+", cased=False)


def train_tokenizer(part: Kmer | RegexMatches | SingleBytes, *texts: str) -> Tokenizer:
    return part.train(iter(texts))


def tokens(known: Tokenizer, text: str) -> list[tuple[str, str]]:
    """Tokens, and what of the text each covers."""
    read = known.encode(text, add_special_tokens=False)
    return [(name, text[slice(*at)]) for name, at in zip(read.tokens, read.offsets, strict=True)]


def test_kmers_follow_one_another_and_what_is_left_over_stands_alone() -> None:
    known = train_tokenizer(DNA)
    assert tokens(known, "ACGTTTGC") == [(t, t) for t in ("ACG", "TTT", "G", "C")]
    assert tokens(known, "ACGT TGCA") == [(t, t) for t in ("ACG", "T", "TGC", "A")]
    assert known.get_vocab_size() == 5 + 4 + 64
    assert known.decode(known.encode("ACGTTTGC").ids) == "ACGTTTGC"


def test_letters_of_no_alphabet_are_one_unknown_and_kmers_are_counted_anew() -> None:
    known = train_tokenizer(DNA)
    assert tokens(known, "acgNNNNNttt--A") == [
        ("ACG", "acg"), ("[UNK]", "NNNNN"), ("TTT", "ttt"), ("[UNK]", "--"), ("A", "A")
    ]  # fmt: skip
    cased = train_tokenizer(replace(DNA, cased=True))
    assert tokens(cased, "ACGacg") == [("ACG", "ACG"), ("[UNK]", "acg")]


def test_matches_are_tokens_and_what_lies_between_is_unknown() -> None:
    known = train_tokenizer(SMILES, "CC(=O)Oc1ccccc1C(=O)O", "C[C@@H](Br)Cl")
    assert [name for name, _ in tokens(known, "C[C@@H]Br1")] == ["C", "[C@@H]", "Br", "1"]
    log = train_tokenizer(LOG, "Served in 12 ms", "in 7 ms")
    assert tokens(log, "  SERVED ??in 12 ms! ") == [
        ("served", "SERVED"), ("[UNK]", "??"), ("in", "in"), ("12 ms", "12 ms"), ("[UNK]", "!")
    ]  # fmt: skip


def test_the_most_frequent_matches_are_kept() -> None:
    few = train_tokenizer(replace(LOG, vocabulary=7), "a b b c c c")
    assert [few.id_to_token(number) for number in (5, 6)] == ["c", "b"]


@max_examples(100)
@given(st.sampled_from([DNA, SMILES, LOG]), hard | st.text(alphabet="ACGTacgtN- ", max_size=40))
def test_no_token_covers_a_letter_of_another(part: Kmer | RegexMatches, text: str) -> None:
    known = train_tokenizer(part, "C1 ab 12 ms")
    encoded = encoder(known).encode([text], characters=True)
    assert encoded.firsts is not None and encoded.stops is not None
    assert (encoded.firsts[1:] >= encoded.stops[:-1]).all()
    covered = {at for a, b in zip(encoded.firsts, encoded.stops, strict=True) for at in range(a, b)}
    left = {text[at] for at in range(len(text)) if at not in covered}
    assert all(letter.isspace() for letter in left)  # nothing but white space has no token


def test_bytes_are_numbered_in_their_order_and_know_all() -> None:
    known = train_tokenizer(SingleBytes())
    text = "Aé 中\n\x00"
    ids = known.encode(text, add_special_tokens=False).ids
    assert ids == [5 + byte for byte in text.encode()]
    assert known.decode(ids) == text


@pytest.mark.parametrize("kind", ["kmer", "regex"])
def test_every_token_is_a_word(kind: str) -> None:
    encoded = encoder(tokenizer(kind)).encode(["hesitation at noon", "THE SAINTS"])
    assert len(encoded.ids) > 4
    assert (encoded.marks == Mark.ALL).all()


def test_whole_words_and_spans_are_of_kmers() -> None:
    """A line without spaces is not one word, which would be hidden whole or not at all."""
    text = "".join(np.random.default_rng(0).choice([*"ACGT"], 600))
    encoded = encoder(train_tokenizer(DNA)).encode([text] * 50)
    blocks = Blocks(
        ids=encoded.ids,
        starts=encoded.starts,
        marks=encoded.marks,
        segments=np.zeros(len(encoded.ids), np.uint8),
        fixed=np.zeros(len(encoded.ids), bool),
        numbers=np.arange(50),
    )
    vocabulary = describe(train_tokenizer(DNA))
    hidden_words = WholeWord(mask_rate=0.15).hide(blocks, 1, vocabulary=vocabulary)
    spans = SpanMasking(mask_rate=0.15).hide(blocks, 1, vocabulary=vocabulary)
    for hidden in (hidden_words, spans):
        chosen = np.diff(hidden.spans).sum()
        assert chosen == 50 * 30
    assert np.diff(spans.spans).mean() > 2 > np.diff(hidden_words.spans).mean()


@pytest.mark.parametrize(
    "part",
    [DNA, Kmer(k=1, alphabet="AC-*]^\\", cased=True), SMILES, LOG, SingleBytes()],
    ids=lambda part: type(part).__name__,
)
def test_a_trained_tokenizer_tells_what_part_it_is_of(
    part: Kmer | RegexMatches | SingleBytes,
) -> None:
    trained = train_tokenizer(part, "C1 ab 12 ms")
    again = Tokenizer.from_str(trained.to_str())
    assert part_of(again) == replace(part, vocabulary=trained.get_vocab_size())


@pytest.mark.parametrize("kind", ["kmer", "regex", "bytes"])
def test_transformers_reads_the_exported_folder_alike(kind: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    known = tokenizer(kind)
    ready = family_tokenizer(known, "bert", vocabulary := describe(known))
    settings = tokenizer_config(ready, vocabulary, family="bert", types=2, length=64)
    ready.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("Hesitation, at NOON", "  the saints\n--xyz 12", "éa中"):
        ours = encoder(known).encode([text.rstrip()]).ids.tolist()
        read = theirs(text.rstrip(), return_offsets_mapping=True)
        assert read["input_ids"][1:-1] == ours
        assert theirs.cls_token_id == read["input_ids"][0]
    mask = theirs.mask_token
    assert theirs.tokenize(f"at {mask}at").count(mask) == 1
    if kind == "bytes":  # whose masks stand for bytes: the space before one is another
        assert len(theirs.tokenize(f"at {mask}")) == 4


def test_a_trimmed_vocabulary_reads_its_text_as_before() -> None:
    old = tokenizer("kmer")
    counts = np.zeros(old.get_vocab_size(), np.int64)
    ids = old.encode("hesitation", add_special_tokens=False).ids
    np.add.at(counts, ids, 1)
    new = trimmed(old, counts)
    assert tokens(new, "hesitation") == tokens(old, "hesitation")
    assert new.get_vocab_size() < old.get_vocab_size()


def test_a_line_is_a_sentence_without_a_splitter() -> None:
    text = "Closed. Opened again. 到了。走了。\nDone. Ok."
    assert splitter("none").split(text) == ["Closed. Opened again. 到了。走了。", "\nDone. Ok."]


REFUSED = [
    ({"kind": "kmer", "k": 0}, "k = 0: must be at least 1"),
    ({"kind": "kmer", "k": 8}, "the 8-mers of ACGT need 65,545 ids; give it as many, or choose"),
    ({"kind": "kmer", "k": 10_000}, "need over a billion ids"),
    ({"kind": "kmer", "alphabet": "ACCT"}, 'alphabet = "ACCT": name each letter once'),
    ({"kind": "kmer", "alphabet": ""}, "name each letter once"),
    ({"kind": "kmer", "alphabet": "acgt"}, "write capitals, or set cased = true"),
    ({"kind": "regex", "pattern": "(a"}, "not a regular expression .* unmatched"),
    ({"kind": "regex", "pattern": ""}, "matches nothing; give a regular expression"),
    ({"kind": "regex", "pattern": "z+"}, 'matches nothing in the text, which begins with "ACG"'),
    ({"kind": "regex", "pattern": "z*"}, "matches nothing in the text"),
    ({"kind": "bytes", "cased": False}, "bytes does not change the text"),
    ({"kind": "regex", "k": 3}, "--k: is not a setting of this tokenizer; .* --tokenizer kmer$"),
    ({"pattern": "a"}, "--pattern: is not a setting of this tokenizer; .* --tokenizer regex$"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_what_cannot_be_meant_is_refused(settings: dict[str, Any], message: str) -> None:
    def train() -> None:
        chosen: Any = choose_tokenizer(**settings)
        chosen.train(iter(["ACG"]))

    with pytest.raises(UserError, match=message):
        train()


def test_a_pattern_that_tries_too_many_ways_is_refused() -> None:
    pattern, text = r"(a+)+b|\w", "a" * 54
    message = re.escape(f'pattern = "{pattern}": cannot be searched for in this text')
    with pytest.raises(UserError, match=message):
        RegexMatches(pattern=pattern).train(iter([text]))
    trained = RegexMatches(pattern=pattern).train(iter(["ab"]))
    with pytest.raises(UserError, match=message):
        encoder(trained).encode([text])


def test_settings_are_those_of_the_recipe_unless_given() -> None:
    chosen = choose_tokenizer(recipe=spec("kmer"), k=1, alphabet="AC")
    assert chosen == replace(spec("kmer"), k=1, alphabet="AC")
    assert choose_tokenizer(kind="regex", vocabulary=20) == RegexMatches(vocabulary=20)


def test_the_name_of_a_special_in_a_sequence_is_text() -> None:
    known = train_tokenizer(SMILES, "C[MASK]C", "[SEP]")
    assert SMILES.specials[-1] == "[MASK]"
    ids = encoder(known).encode(["C[MASK][SEP]"]).ids.tolist()
    assert ids == [known.token_to_id("C"), known.token_to_id("[UNK]"), known.token_to_id("[UNK]")]

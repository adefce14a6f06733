"""Tokenizers that others made are read as they meant them, or refused in one sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.texts import copy, tokenizer
from tokenizers import AddedToken, Tokenizer, models

from clozelab.errors import UserError
from clozelab.text.loading import load
from clozelab.text.vocabulary import BERT, describe

PIECES = [*BERT, "caf", "##e", "##é", "the", "中", "x"]


def vocab_txt(folder: Path, pieces: list[str], **config: object) -> Path:
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def tokens(known: Tokenizer, text: str) -> list[str]:
    return known.encode(text, add_special_tokens=False).tokens


def refusal(place: Path) -> str:
    """The message a place is refused with."""
    with pytest.raises(UserError) as caught:
        load(place)
    message = str(caught.value)
    assert message.startswith(str(place.parent)) or message.startswith(str(place))
    assert "\n" not in message
    return message


def test_a_directory_with_a_tokenizer_json_is_read(tmp_path: Path) -> None:
    tokenizer("unigram").save(str(tmp_path / "tokenizer.json"))
    assert load(tmp_path).to_str() == tokenizer("unigram").to_str()
    assert load(str(tmp_path / "tokenizer.json")).to_str() == tokenizer("unigram").to_str()


def test_a_vocab_txt_without_capitals_is_uncased(tmp_path: Path) -> None:
    known = load(vocab_txt(tmp_path, PIECES))
    assert tokens(known, "CAFÉ The") == ["caf", "##e", "the"]
    assert known.encode("the").tokens == ["[CLS]", "the", "[SEP]"]


def test_a_vocab_txt_with_capitals_is_cased(tmp_path: Path) -> None:
    known = load(vocab_txt(tmp_path, [*PIECES, "The"]))
    assert tokens(known, "café The THE") == ["caf", "##é", "The", "[UNK]"]


@pytest.mark.parametrize("name", ["vocab.txt", ""])
def test_settings_beside_a_vocab_txt_are_followed(tmp_path: Path, name: str) -> None:
    folder = vocab_txt(tmp_path, [*PIECES, "The"], do_lower_case=True)
    assert tokens(load(folder / name), "CAFÉ The") == ["caf", "##e", "the"]
    vocab_txt(tmp_path, PIECES, do_lower_case=False)
    assert tokens(load(folder / name), "café The") == ["caf", "##é", "[UNK]"]
    vocab_txt(tmp_path, PIECES, do_lower_case=True, strip_accents=False)
    assert tokens(load(folder / name), "CAFÉ") == ["caf", "##é"]
    vocab_txt(tmp_path, PIECES, do_lower_case=True, tokenize_chinese_chars=False)
    assert tokens(load(folder / name), "中x 中") == ["[UNK]", "中"]


def test_odd_separators_in_a_vocab_txt_do_not_move_ids(tmp_path: Path) -> None:
    known = load(vocab_txt(tmp_path, [*BERT, "\u2028", "\x85", "\x1c", "", "the"]))
    assert known.token_to_id("the") == 9
    (tmp_path / "vocab.txt").write_bytes("\r\n".join([*BERT, "the"]).encode())
    assert load(tmp_path).token_to_id("the") == 5


def test_byte_bpe_is_read_from_its_two_files(tmp_path: Path) -> None:
    copy("byte_bpe").model.save(str(tmp_path))
    known = load(tmp_path)
    text = "Don't  panic: 中文 😀\n"
    assert known.encode(text).ids == tokenizer("byte_bpe").encode(text).ids
    assert describe(known).special.tolist() == [0, 1, 2, 3, 4]


def test_missing_files_are_said_in_one_sentence(tmp_path: Path) -> None:
    assert "spiece.model" in refusal(tmp_path)
    assert "does not exist" in refusal(tmp_path / "nothing")
    copy("byte_bpe").model.save(str(tmp_path))
    (tmp_path / "merges.txt").unlink()
    assert "merges.txt" in refusal(tmp_path / "vocab.json")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b"{"),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b""),
        ("tokenizer.json", b"\xff\xfe"),
        ("vocab.txt", b"[PAD]\n[UNK]\nthe\n"),
        ("vocab.txt", b""),
        ("vocab.txt", b"[PAD]\n\xff\n"),
        ("vocab.json", b'{"a": 0}'),
    ],
)
def test_corrupt_files_are_said_in_one_sentence(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b c\n")
    (tmp_path / name).write_bytes(content)
    refusal(tmp_path / name)


def test_the_missing_special_and_the_broken_settings_are_named(tmp_path: Path) -> None:
    vocab_txt(tmp_path, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the"])
    assert "missing [MASK]" in refusal(tmp_path / "vocab.txt")
    vocab_txt(tmp_path, PIECES)
    (tmp_path / "tokenizer_config.json").write_text("{")
    assert "tokenizer_config.json: not JSON" in refusal(tmp_path / "vocab.txt")


def test_a_bpe_over_characters_is_gpt_s(tmp_path: Path) -> None:
    copy("char_bpe").model.save(str(tmp_path))
    text = "The river was wide, and slow: 在冬天 naïve."
    loaded = load(tmp_path / "vocab.json")
    assert loaded.encode(text).ids == copy("char_bpe").encode(text).ids


def named(*names: str) -> Tokenizer:
    """A tokenizer with some specials and one word."""
    pieces = {name: number for number, name in enumerate([*names, "word"])}
    word_piece = Tokenizer(models.WordPiece(pieces, unk_token=names[0]))
    word_piece.add_special_tokens([AddedToken(name, special=True) for name in names])
    return word_piece


def test_roles_of_every_family_are_found() -> None:
    bert = describe(tokenizer("wordpiece"))
    assert bert.roles == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    roberta = describe(tokenizer("byte_bpe"))
    assert roberta.roles == {"cls": 0, "pad": 1, "sep": 2, "unk": 3, "mask": 4}
    albert = describe(tokenizer("unigram"))
    assert albert.roles == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    xlnet = describe(
        named("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
    )
    wanted = {"unk": 0, "cls": 3, "sep": 4, "pad": 5, "mask": 6, "eod": 7}
    assert xlnet.roles == wanted
    assert xlnet.special.tolist() == list(range(9))
    assert xlnet.role("eod") == 7
    assert bert.role("eod") == bert.role("sep") == 3


def test_a_role_that_is_missing_is_refused() -> None:
    gpt = describe(named("<|endoftext|>"))
    assert gpt.roles == {"eod": 0}
    with pytest.raises(UserError, match=re.escape("no 'mask' token, only eod")):
        gpt.role("mask")


def test_unused_entries_are_special(tmp_path: Path) -> None:
    pieces = ["[PAD]", "[unused0]", "[unused99]", *BERT[1:], "[unused", "the"]
    vocabulary = describe(load(vocab_txt(tmp_path, pieces)))
    assert vocabulary.size == 9
    assert vocabulary.special.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert vocabulary.ordinary.tolist() == [7, 8]


def test_entries_added_behind_the_model_count() -> None:
    more = copy("wordpiece")
    size = more.get_vocab_size()
    more.add_special_tokens(["[EOD]"])
    more.add_tokens(["newword"])
    vocabulary = describe(more)
    assert vocabulary.size == size + 2
    assert vocabulary.role("eod") == size
    assert size in vocabulary.special
    assert size + 1 in vocabulary.ordinary

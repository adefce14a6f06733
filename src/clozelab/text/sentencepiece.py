"""Files of sentencepiece (spiece.model), read without it: their pieces, and who normalises how.

The file is a message of protocol buffers, of which four fields are needed. A tokenizer made of it
gives the ids that transformers gives: for ALBERT and XLNet with their own normalisation before that
of the file, for XLM-R and CamemBERT with fairseq's numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from clozelab.errors import UserError

Family = Literal["albert", "xlnet", "xlm-roberta", "camembert"]

_UNIGRAM = 1  # of the trainer's model types
_NORMAL, _CONTROL, _USER = 1, 3, 4  # of a piece's types
# What stands before and after the pieces, and how many of the file's own go, in fairseq's numbers.
_FAIRSEQ: dict[str, tuple[tuple[tuple[str, float], ...], int]] = {
    "xlm-roberta": ((("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)), 3),
    "camembert": (
        (
            ("<s>NOTUSED", 0.0),
            ("<pad>", 0.0),
            ("</s>NOTUSED", 0.0),
            ("<unk>", 0.0),
            ("<unk>NOTUSED", -100.0),
        ),
        1,
    ),
}


@dataclass
class SentencePieceModel:
    """What a file says."""

    pieces: list[tuple[str, float, int]] = field(default_factory=list)  # text, score, type
    unknown: int = 0
    kind: int = _UNIGRAM
    charsmap: bytes = b""  # the normaliser, compiled


def parse(content: bytes) -> SentencePieceModel:
    """The model in a file's bytes; ValueError where they are none."""
    model = SentencePieceModel()
    for number, value in _fields(content):
        if number not in (1, 2, 3):
            continue
        inside = dict(_fields(_bytes(value)))
        if number == 1:
            score = struct.unpack("<f", _bytes(inside.get(2, b"\0\0\0\0")))[0]
            model.pieces.append((_bytes(inside[1]).decode(), score, _int(inside.get(3, _NORMAL))))
        elif number == 2:
            model.kind = _int(inside.get(3, _UNIGRAM))
            model.unknown = _int(inside.get(40, 0))
        else:
            model.charsmap = _bytes(inside.get(2, b""))
    if not model.pieces or not 0 <= model.unknown < len(model.pieces):
        raise ValueError("no pieces, or none for what is unknown")
    return model


def tokenizer(
    model: SentencePieceModel, family: Family, *, lower: bool, accents: bool
) -> Tokenizer:
    """The family's tokenizer of those pieces; `lower` and `accents` are for ALBERT and XLNet."""
    if model.kind != _UNIGRAM:
        raise UserError("its pieces are no unigram model, which a known family would have")
    pieces = [(text, score) for text, score, _ in model.pieces]
    unknown, steps = model.unknown, list[normalizers.Normalizer]()
    if family in _FAIRSEQ:
        before, dropped = _FAIRSEQ[family]
        pieces, unknown = [*before, *pieces[dropped:], ("<mask>", 0.0)], 3
    else:
        steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        steps += [] if accents else [normalizers.NFKD(), normalizers.StripAccents()]
        steps += [normalizers.Lowercase()] if lower else []
    steps += [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    steps += [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip(left=False, right=True)]
    unigram = Tokenizer(models.Unigram(pieces, unk_id=unknown, byte_fallback=False))
    unigram.normalizer = normalizers.Sequence(steps)
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.decoder = decoders.Metaspace()
    unigram.add_tokens(
        [
            AddedToken(text, normalized=False, special=kind == _CONTROL)
            for text, _, kind in model.pieces
            if kind in (_CONTROL, _USER)
        ]
    )
    return unigram


def family_of(model: SentencePieceModel, names: Mapping[str, str]) -> Family:
    """Whose file it is: as the folder's configs say, else by the names of its pieces."""
    said = " ".join(names.values()).lower().replace("-", "").replace("_", "")
    words: dict[str, Family] = {"camembert": "camembert", "xlmroberta": "xlm-roberta"}
    words |= {"xlnet": "xlnet", "albert": "albert"}
    for word, family in words.items():
        if word in said:
            return family
    texts = {text for text, _, _ in model.pieces}
    if "<cls>" in texts or "[CLS]" in texts:
        return "xlnet" if "<cls>" in texts else "albert"
    raise UserError("whose tokenizer it is is not said; add model_type to config.json beside it")


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: numbers, or the bytes of what is longer."""
    place = 0
    while place < len(content):
        key, place = _varint(content, place)
        kind, value = key & 7, b""
        if kind == 0:
            number, place = _varint(content, place)
            yield key >> 3, number
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, place = _varint(content, place)
        if size is None or place + size > len(content):
            raise ValueError("a field that is cut off, or none")
        value = content[place : place + size]
        place += size
        yield key >> 3, value


def _varint(content: bytes, place: int) -> tuple[int, int]:
    """A number in groups of seven bits, and where it ends."""
    number = 0
    for shift in range(0, 70, 7):
        if place >= len(content):
            break
        byte = content[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, place
    raise ValueError("a number that does not end")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where bytes should be")
    return value


def _int(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("bytes where a number should be")
    return value

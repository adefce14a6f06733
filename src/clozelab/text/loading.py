"""Loading tokenizers made elsewhere: tokenizer.json, and the files of older checkpoints.

sentencepiece's files (spiece.model) are read without that library: they are protocol buffers, of
which a few fields are needed. The tokenizer gives the same ids as in transformers: ALBERT and XLNet
have their own normalisation before that of the file, XLM-R and CamemBERT have fairseq's ids.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from clozelab.errors import UserError
from clozelab.files import read_json
from clozelab.text.roles import as_stated
from clozelab.text.vocabulary import BERT, ROLES, bert_like, check_ids, finished

# The files of a tokenizer, the preferred first; old checkpoints have only one of the later ones.
_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")
_DEBERTA = "spm.model"  # refused: releases of transformers read it in different ways
_UNIGRAM = 1  # one of sentencepiece's model types
_NORMAL, _CONTROL, _USER = 1, 3, 4  # some of its types of pieces
# By family with fairseq's ids: the pieces put before the file's, and how many of those are dropped.
_FAIRSEQ: dict[str, tuple[dict[str, float], int]] = {
    "xlm-roberta": (dict.fromkeys(("<s>", "<pad>", "</s>", "<unk>"), 0.0), 3),
    "camembert": (
        dict.fromkeys(("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>"), 0.0)
        | {"<unk>NOTUSED": -100.0},
        1,
    ),
}


def load(place: str | Path) -> Tokenizer:
    """A tokenizer from a Hugging Face directory, a run, or a file of a tokenizer."""
    path = Path(place)
    if path.is_dir():
        in_checkpoints = sorted(path.glob("checkpoints/step-*/tokenizer.json"))
        for file in [*in_checkpoints[-1:], *(path / name for name in _FILES)]:
            if file.is_file():
                return load(file)
        if (path / _DEBERTA).is_file():
            raise _deberta_error(path / _DEBERTA)
        raise UserError(
            f"{path}: has no tokenizer.json, vocab.txt, vocab.json with merges.txt or"
            " spiece.model; put the tokenizer's files beside the model"
        )
    if not path.is_file():
        raise UserError(f"{path}: does not exist; give a directory, tokenizer.json or vocab.txt")
    readers: dict[str, Callable[[Path], Tokenizer]] = {
        ".txt": _from_vocab_txt,
        ".model": _from_sentencepiece,
        "vocab.json": _from_merges,
    }
    read = readers.get(path.suffix) or readers.get(path.name)
    try:
        if read:
            tokenizer = _with_added(read(path), path.parent / "added_tokens.json")
        else:
            tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
        check_ids(tokenizer, path)
        return as_stated(tokenizer, path.parent, by_template=read is None)
    except (UserError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises Exception, or panics
        raise UserError(
            f"{path}: is not a readable tokenizer file ({error}); give another"
        ) from error


def _deberta_error(file: Path) -> UserError:
    folder = str(file.parent)
    return UserError(
        f"{file}: clozelab does not read DeBERTa's sentencepiece file; write tokenizer.json"
        " beside it with transformers:"
        f" AutoTokenizer.from_pretrained({folder!r}).save_pretrained({folder!r})"
    )


def _settings(path: Path) -> dict[str, Any]:
    """The contents of a JSON file; empty if there is none."""
    return read_json(path, fix="fix it or take it away") if path.is_file() else {}


def _flag(path: Path, key: str, default: bool | None) -> bool | None:
    """A boolean setting in the tokenizer_config.json beside a file."""
    config = path.parent / "tokenizer_config.json"
    value = _settings(config).get(key)
    if value is not None and not isinstance(value, bool):
        raise UserError(f"{config}: {key} must be true or false; fix the file")
    return default if value is None else value


def _with_added(tokenizer: Tokenizer, file: Path) -> Tokenizer:
    """The tokenizer with the tokens of added_tokens.json, whose ids must follow its own."""
    table = _settings(file)
    for name in sorted(table, key=lambda name: str(table[name]).zfill(20)):
        if tokenizer.token_to_id(name) is None:
            tokenizer.add_tokens([AddedToken(name, normalized=False)])
        if tokenizer.token_to_id(name) != table[name]:
            raise UserError(
                f"{file}: {name!r} cannot have that id; continue the numbers of the others"
            )
    return tokenizer


def _known_specials(tokenizer: Tokenizer) -> tuple[str, ...]:
    """The names of the special tokens of any family that a tokenizer has."""
    names = (name for names in ROLES.values() for name in names)
    return tuple(name for name in names if tokenizer.token_to_id(name) is not None)


def _from_vocab_txt(path: Path) -> Tokenizer:
    """BERT's list of pieces; lower-cased as tokenizer_config.json says, else if none is upper."""
    # Not splitlines: some vocabularies have U+2028 and the like as pieces.
    pieces = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    table = {piece: number for number, piece in enumerate(pieces)}
    missing = [name for name in BERT if name not in table]
    if missing:
        raise UserError(f"{path}: a BERT vocabulary has {', '.join(BERT)}; missing {missing[0]}")
    upper = any(piece.isascii() and piece[:1].isupper() for piece in pieces)
    lower = bool(_flag(path, "do_lower_case", not upper))
    tokenizer = bert_like(models.WordPiece(table, unk_token="[UNK]"), not lower)
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lower,
        strip_accents=_flag(path, "strip_accents", None),  # None: where text is lower-cased
        handle_chinese_chars=bool(_flag(path, "tokenize_chinese_chars", True)),
    )
    return finished(tokenizer, BERT)


def _from_merges(path: Path) -> Tokenizer:
    """The vocab.json and merges.txt of GPT-2 and RoBERTa, or of GPT, with </w> at ends of words."""
    merges = path.parent / "merges.txt"
    if not merges.is_file():
        raise UserError(f"{path}: a BPE needs merges.txt beside it")
    vocabulary, pairs = models.BPE.read_file(str(path), str(merges))
    if any(piece.endswith("</w>") for piece in vocabulary):
        unk = next((name for name in ROLES["unk"] if name in vocabulary), None)
        model = models.BPE(vocabulary, pairs, unk_token=unk, end_of_word_suffix="</w>")
        tokenizer = bert_like(model, cased=False)
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    else:
        tokenizer = Tokenizer(models.BPE(vocabulary, pairs))
        prefix = bool(_flag(path, "add_prefix_space", False))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        tokenizer.decoder = decoders.ByteLevel()
    return finished(tokenizer, _known_specials(tokenizer))


def _from_sentencepiece(path: Path) -> Tokenizer:
    """The sentencepiece model of ALBERT, XLNet, XLM-R or CamemBERT."""
    model = _parse_sentencepiece(path.read_bytes())
    family = _family(model, path)
    if model.kind != _UNIGRAM:
        raise UserError(
            f"{path}: is not a unigram model, as every known family has; give another tokenizer"
        )
    pieces = [(text, score) for text, score, _ in model.pieces]
    unknown, steps = model.unknown, list[normalizers.Normalizer]()
    if family in _FAIRSEQ:
        before, dropped = _FAIRSEQ[family]
        pieces, unknown = [*before.items(), *pieces[dropped:], ("<mask>", 0.0)], 3
    else:
        steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        # Differs from XLNet's own code, as transformers does: it never keeps accents.
        if not (family == "albert" and _flag(path, "keep_accents", False)):
            steps += [normalizers.NFKD(), normalizers.StripAccents()]
        if _flag(path, "do_lower_case", family == "albert"):
            steps.append(normalizers.Lowercase())
    steps += [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    steps += [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip(left=False, right=True)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=unknown, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    added = [(text, kind) for text, _, kind in model.pieces if kind in (_CONTROL, _USER)]
    tokenizer.add_tokens(
        [AddedToken(text, normalized=False, special=kind == _CONTROL) for text, kind in added]
    )
    return finished(tokenizer, _known_specials(tokenizer))


@dataclass
class _SentencePieceModel:
    """The fields of a sentencepiece file that are needed."""

    pieces: list[tuple[str, float, int]] = field(default_factory=list)  # text, score, type
    unknown: int = 0  # id
    kind: int = _UNIGRAM
    charsmap: bytes = b""  # the compiled normaliser


def _family(model: _SentencePieceModel, path: Path) -> str:
    """The family of a file: as the configs beside it say, else by its special tokens."""
    names = [
        _settings(path.parent / "tokenizer_config.json").get("tokenizer_class"),
        _settings(path.parent / "config.json").get("model_type"),
    ]
    written = " ".join(name for name in names if isinstance(name, str))
    written = written.lower().replace("-", "").replace("_", "")
    for family in ("camembert", "xlm-roberta", "xlnet", "albert"):
        if family.replace("-", "") in written:
            return family
    if "deberta" in written or path.name == _DEBERTA:
        raise _deberta_error(path)
    texts = {text for text, _, _ in model.pieces}
    for special, family in (("<cls>", "xlnet"), ("[CLS]", "albert")):
        if special in texts:
            return family
    raise UserError(f"{path}: the model family is unknown; add model_type to config.json beside it")


def _parse_sentencepiece(content: bytes) -> _SentencePieceModel:
    """Parse the bytes of a sentencepiece file; raises where they are not one."""
    model = _SentencePieceModel()
    for number, value in _protobuf_fields(content):
        if number not in (1, 2, 3):
            continue
        fields = dict(_protobuf_fields(value))
        if number == 1:
            score = struct.unpack("<f", fields.get(2, b"\0\0\0\0"))[0]
            model.pieces.append((fields[1].decode(), score, fields.get(3, _NORMAL)))
        elif number == 2:
            model.kind, model.unknown = fields.get(3, _UNIGRAM), fields.get(40, 0)
        else:
            model.charsmap = fields.get(2, b"")
    if not model.pieces or not 0 <= model.unknown < len(model.pieces):
        raise ValueError("no pieces, or none for what is unknown")
    return model


def _protobuf_fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protocol buffer: field number, and an integer or the bytes."""
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        kind = key & 7
        if kind == 0:
            number, at = _varint(content, at)
            yield key >> 3, number
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, at = _varint(content, at)
        if size is None or at + size > len(content):
            raise ValueError("a field that is cut off, or none")
        yield key >> 3, content[at : at + size]
        at += size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """The varint (seven bits per byte) at `at`, and where it ends."""
    number = 0
    for shift, byte in zip(range(0, 70, 7), content[at : at + 10], strict=False):
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise ValueError("a number that does not end")

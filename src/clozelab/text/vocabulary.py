"""The vocabulary of a tokenizer: ids, special tokens and their roles, and each token's bytes."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import PostProcessor, Sequence, TemplateProcessing

from clozelab.contracts import Bools, Bytes, Ints, Vocabulary
from clozelab.errors import UserError
from clozelab.packed import offsets

BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
ALBERT = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
GPT = ("<unk>", "<pad>", "<s>", "</s>", "<mask>")

# The spellings of each role, in order of preference: XLNet's files have both <cls> and <s>.
ROLES = {
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "pad": ("[PAD]", "<pad>"),
    "mask": ("[MASK]", "<mask>"),
    "unk": ("[UNK]", "<unk>"),
    "eod": ("[EOD]", "<eod>", "<|endoftext|>"),
}

_ROLE = "role:"  # the prefix under which a tokenizer's file holds its roles
_ODD_IDS = 10_000  # unused ids that any vocabulary may have: with more, the file is damaged


def bert_normalizer(cased: bool) -> normalizers.Normalizer:
    """BERT's normaliser; accents are stripped where text is lower-cased."""
    return normalizers.BertNormalizer(lowercase=not cased, strip_accents=not cased)


def bert_like(model: models.Model, cased: bool) -> Tokenizer:
    """A tokenizer that normalises and splits as BERT's."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = bert_normalizer(cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def unknown(specials: tuple[str, ...]) -> str:
    """The name of the unknown token among `specials`."""
    if name := next((name for name in ROLES["unk"] if name in specials), None):
        return name
    raise UserError(f"tokenizer.specials: name an unknown token, one of {', '.join(ROLES['unk'])}")


def finished(tokenizer: Tokenizer, specials: tuple[str, ...] = ()) -> Tokenizer:
    """Add the special tokens, and let `encode` put [CLS] and [SEP] around a text."""
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in specials])
    roles = roles_of(tokenizer)
    if "cls" in roles and "sep" in roles:
        opening, closing = (tokenizer.id_to_token(roles[name]) for name in ("cls", "sep"))
        tokenizer.post_processor = TemplateProcessing(
            single=f"{opening} $A {closing}",
            pair=f"{opening} $A {closing} $B:1 {closing}:1",
            special_tokens=[(opening, roles["cls"]), (closing, roles["sep"])],
        )
    return tokenizer


def roles_of(tokenizer: Tokenizer) -> dict[str, int]:
    """The ids of special tokens by role: as the tokenizer's file states, else by spelling."""
    names = [
        (role, name)
        for role, spellings in ROLES.items()
        for name in reversed(spellings)  # the preferred spelling comes last and overwrites others
    ]
    return {
        role: number
        for role, name in [*names, *_stated_roles(settings_of(tokenizer.post_processor)).items()]
        if (number := tokenizer.token_to_id(name)) is not None
    }


def with_roles(tokenizer: Tokenizer, roles: Mapping[str, int]) -> Tokenizer:
    """A copy in which these ids have these roles, also after it is saved and loaded.

    A tokenizer's file has no field for roles; a post-processor that adds no tokens holds them.
    """
    names = {role: tokenizer.id_to_token(number) for role, number in roles.items()}
    tokens = [
        {"id": f"{_ROLE}{role}", "ids": [roles[role]], "tokens": [name]}
        for role, name in names.items()
    ]
    stated = TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=tokens)
    copy = Tokenizer.from_str(tokenizer.to_str())
    before = copy.post_processor
    copy.post_processor = stated if before is None else Sequence([before, stated])
    return copy


def _stated_roles(step: Mapping[str, Any]) -> dict[str, str]:
    """The names of tokens by the roles that a post-processor of `with_roles` holds for them."""
    tokens = step.get("special_tokens", {}).items()
    stated = {
        name.removeprefix(_ROLE): token["tokens"][0]
        for name, token in tokens
        if name.startswith(_ROLE)
    }
    for inner in step.get("processors", ()):
        stated |= _stated_roles(inner)
    return stated


def numbered(specials: Iterable[str], pieces: Iterable[str] = ()) -> dict[str, int]:
    """The vocabulary as piece → id: special tokens first, then the learned pieces."""
    return {piece: number for number, piece in enumerate(dict.fromkeys([*specials, *pieces]))}


def describe(tokenizer: Tokenizer) -> Vocabulary:
    """The size, roles and special ids of a tokenizer; BERT's [unused…] entries count as special."""
    table = tokenizer.get_vocab(with_added_tokens=True)
    special = {n for n, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    special |= {n for name, n in table.items() if name.startswith("[unused") and name[-1:] == "]"}
    roles = roles_of(tokenizer)
    special |= set(roles.values())
    size = max(table.values(), default=-1) + 1
    return Vocabulary(size, roles, np.array(sorted(special), dtype=np.int32))


def check_ids(tokenizer: Tokenizer, place: str | Path) -> None:
    """Refuse ids far above the number of tokens: every id up to the highest gets an embedding."""
    table = tokenizer.get_vocab(with_added_tokens=True)
    name = max(table, key=table.__getitem__, default="")
    if table and table[name] > 4 * len(table) + _ODD_IDS:
        raise UserError(
            f"{place}: the token {name!r} has the id {table[name]:,} in a vocabulary of"
            f" {len(table):,}; number the tokens from 0 on"
        )


def settings_of(
    step: normalizers.Normalizer | pre_tokenizers.PreTokenizer | PostProcessor | None,
) -> dict[str, Any]:
    """The settings of one step of a tokenizer, without serialising its large vocabulary."""
    settings: dict[str, Any] = {} if step is None else json.loads(step.__getstate__())
    return settings


def strips_marks(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer removes accents and other marks that combine with a letter (が → か)."""
    normalizer = tokenizer.normalizer
    if normalizer is None:
        return False
    return unicodedata.normalize("NFC", normalizer.normalize_str("が")).strip() == "か"


def lower_cases(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer lower-cases text, by the settings of its normaliser at any depth."""

    def lowers(step: Any) -> bool:
        if isinstance(step, list):
            return any(map(lowers, step))
        if not isinstance(step, dict):
            return False
        lower = step.get("type") == "Lowercase" or step.get("lowercase") is True
        return lower or any(map(lowers, step.values()))

    return lowers(settings_of(tokenizer.normalizer))


def within(tokenizer: Tokenizer, size: int) -> tuple[Tokenizer, list[str]]:
    """The tokenizer without added tokens whose ids are `size` or more, and the names of these.

    A model whose embeddings were not enlarged has no rows for them.
    """
    settings = json.loads(tokenizer.to_str())
    beyond = [token["content"] for token in settings["added_tokens"] if token["id"] >= size]
    if not beyond:
        return tokenizer, []
    settings["added_tokens"] = [t for t in settings["added_tokens"] if t["id"] < size]
    return Tokenizer.from_str(json.dumps(settings)), beyond


def letters(tokenizer: Tokenizer) -> tuple[Bytes, Ints]:
    """The bytes that each id spells, concatenated, and their offsets."""
    settings = json.loads(tokenizer.to_str())
    in_bytes = (settings.get("decoder") or {}).get("type") == "ByteLevel"
    alphabet = byte_alphabet() if in_bytes else {}
    prefix = settings["model"].get("continuing_subword_prefix") or ""
    suffix = settings["model"].get("end_of_word_suffix") or ""

    def spelled(piece: str) -> bytes:
        if not in_bytes:
            return piece.removeprefix(prefix).removesuffix(suffix).replace("▁", "").encode()
        if all(letter in alphabet for letter in piece):
            return bytes(alphabet[letter] for letter in piece).lstrip()
        return piece.encode()

    table = tokenizer.get_vocab(with_added_tokens=True)
    pieces = [b""] * (max(table.values(), default=-1) + 1)
    for piece, number in table.items():
        pieces[number] = spelled(piece)
    flat = np.frombuffer(b"".join(pieces), dtype=np.uint8)
    return flat, offsets([len(piece) for piece in pieces])


def lettered(tokenizer: Tokenizer) -> Bools:
    """[V] which tokens contain a letter or digit."""
    flat, starts = letters(tokenizer)
    pieces = (bytes(piece).decode("utf-8", "ignore") for piece in np.split(flat, starts[1:-1]))
    return np.array([any(map(str.isalnum, piece)) for piece in pieces], dtype=bool)


def byte_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: a printable byte is itself, the others start at 256."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted({*range(256)} - {*printable})
    return {chr(byte): byte for byte in printable} | {chr(256 + n): b for n, b in enumerate(others)}

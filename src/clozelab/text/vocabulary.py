"""Tokenizers as they are found: their specials and roles, and loading those that others made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from clozelab.contracts import UserError, Vocabulary

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

_ODD_IDS = 10_000  # ids without a token that a small vocabulary may have besides


def bert_normalizer(cased: bool) -> normalizers.Normalizer:
    """BERT's normalisation; accents go with the case."""
    return normalizers.BertNormalizer(lowercase=not cased, strip_accents=not cased)


def bert_like(model: models.Model, cased: bool) -> Tokenizer:
    """A tokenizer that normalises and splits as BERT's."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = bert_normalizer(cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def unknown(specials: tuple[str, ...]) -> str:
    """The unknown token among some specials."""
    for name in ROLES["unk"]:
        if name in specials:
            return name
    raise UserError(f"tokenizer.specials: name an unknown token, one of {', '.join(ROLES['unk'])}")


def finished(tokenizer: Tokenizer, specials: tuple[str, ...] = ()) -> Tokenizer:
    """Declare the specials, and let a plain `encode` add the opening and closing ones."""
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in specials])
    roles = roles_of(tokenizer)
    if "cls" in roles and "sep" in roles:
        opening, closing = (tokenizer.id_to_token(roles[name]) for name in ("cls", "sep"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{opening} $A {closing}",
            pair=f"{opening} $A {closing} $B:1 {closing}:1",
            special_tokens=[(opening, roles["cls"]), (closing, roles["sep"])],
        )
    return tokenizer


def roles_of(tokenizer: Tokenizer) -> dict[str, int]:
    """The ids that play a role, by its name."""
    found = {}
    for role, spellings in ROLES.items():
        for name in spellings:
            number = tokenizer.token_to_id(name)
            if number is not None:
                found[role] = number
                break
    return found


def describe(tokenizer: Tokenizer) -> Vocabulary:
    """The ids a tokenizer deals in; BERT's unused entries count as special."""
    table = tokenizer.get_vocab(with_added_tokens=True)
    special = {n for n, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    special |= {n for name, n in table.items() if name.startswith("[unused") and name[-1:] == "]"}
    roles = roles_of(tokenizer)
    special |= set(roles.values())
    size = max(table.values(), default=-1) + 1
    return Vocabulary(size, roles, np.array(sorted(special), dtype=np.int32))


def check_ids(tokenizer: Tokenizer, place: str | Path) -> None:
    """Refuse ids far beyond the number of tokens: every id up to the last becomes an embedding."""
    table = tokenizer.get_vocab(with_added_tokens=True)
    name = max(table, key=table.__getitem__, default="")
    if table and table[name] > 4 * len(table) + _ODD_IDS:
        raise UserError(
            f"{place}: the token {name!r} has the id {table[name]:,} in a vocabulary of"
            f" {len(table):,}; number the tokens from 0 on"
        )


def load(place: str | Path) -> Tokenizer:
    """A tokenizer from a Hugging Face directory, a run, a `tokenizer.json` or a `vocab.txt`."""
    path = Path(place)
    if path.is_dir():
        saved = sorted(path.glob("checkpoints/step-*/tokenizer.json"))
        if saved:  # a run's, which every checkpoint has
            return load(saved[-1])
        for name in ("tokenizer.json", "vocab.txt", "vocab.json"):
            if (path / name).is_file():
                return load(path / name)
        raise UserError(
            f"{path}: no tokenizer.json, vocab.txt or vocab.json with merges.txt here; with other"
            " files (spiece.model), save it once by transformers' AutoTokenizer.save_pretrained"
        )
    if not path.is_file():
        raise UserError(f"{path}: no such tokenizer; give a directory, tokenizer.json or vocab.txt")
    try:
        if path.name.endswith(".txt"):
            return _from_vocab_txt(path)
        if path.name == "vocab.json":
            return _from_merges(path)
        tokenizer = Tokenizer.from_file(str(path))
        check_ids(tokenizer, path)
        return tokenizer
    except UserError:
        raise
    except Exception as error:  # the library raises bare Exception for a bad file
        raise UserError(f"{path}: not a tokenizer file that can be read ({error})") from error


def _settings(path: Path) -> dict[str, Any]:
    """What the directory's tokenizer_config.json says, if there is one."""
    config = path.parent / "tokenizer_config.json"
    if not config.is_file():
        return {}
    try:
        read: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{config}: not JSON; mend it or take it away ({error})") from error
    return read


def _from_vocab_txt(path: Path) -> Tokenizer:
    """BERT's list of pieces, one a line; cased unless the directory's settings or the list say."""
    # Not splitlines: U+2028 and its like are pieces of some vocabularies.
    pieces = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    table = {piece: number for number, piece in enumerate(pieces)}
    missing = [name for name in BERT if name not in table]
    if missing:
        raise UserError(f"{path}: a BERT vocabulary has {', '.join(BERT)}; missing {missing[0]}")
    upper = any(piece.isascii() and piece[:1].isupper() for piece in pieces)
    settings = _settings(path)
    lower = settings.get("do_lower_case", not upper)
    tokenizer = bert_like(models.WordPiece(table, unk_token="[UNK]"), not lower)
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lower,
        strip_accents=settings.get("strip_accents"),  # None: as the case
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )
    return finished(tokenizer, BERT)


def _from_merges(path: Path) -> Tokenizer:
    """GPT-2's or RoBERTa's vocab.json with merges.txt."""
    merges = path.parent / "merges.txt"
    if not merges.is_file():
        raise UserError(f"{path}: a byte-level BPE needs merges.txt beside it")
    tokenizer = Tokenizer(models.BPE.from_file(str(path), str(merges)))
    if any(piece.endswith("</w>") for piece in tokenizer.get_vocab()):
        raise UserError(f"{path}: pieces with </w> are not byte-level BPE; save a tokenizer.json")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = (name for names in ROLES.values() for name in names)
    known = tuple(name for name in names if tokenizer.token_to_id(name) is not None)
    return finished(tokenizer, known)

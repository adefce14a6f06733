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

from clozelab.contracts import Vocabulary
from clozelab.errors import UserError
from clozelab.text import sentencepiece

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
    roles = {}
    for role, spellings in ROLES.items():
        for name in spellings:
            number = tokenizer.token_to_id(name)
            if number is not None:
                roles[role] = number
                break
    return roles


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


def within(tokenizer: Tokenizer, size: int) -> tuple[Tokenizer, list[str]]:
    """The tokenizer without words that were added to it with ids from `size` on; and these words.

    A model whose table was not made larger has no rows for them.
    """
    settings = json.loads(tokenizer.to_str())
    beyond = [token["content"] for token in settings["added_tokens"] if token["id"] >= size]
    if not beyond:
        return tokenizer, []
    settings["added_tokens"] = [t for t in settings["added_tokens"] if t["id"] < size]
    return Tokenizer.from_str(json.dumps(settings)), beyond


# The files of a tokenizer, the best first; old checkpoints have one of the later ones alone.
_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")


def load(place: str | Path) -> Tokenizer:
    """A tokenizer from a Hugging Face directory, a run, or one of the files that it may have.

    These are tokenizer.json, vocab.txt, vocab.json with merges.txt, and sentencepiece's .model.
    """
    path = Path(place)
    if path.is_dir():
        saved = sorted(path.glob("checkpoints/step-*/tokenizer.json"))
        if saved:  # a run's, which every checkpoint has
            return load(saved[-1])
        for name in _FILES:
            if (path / name).is_file():
                return load(path / name)
        raise UserError(
            f"{path}: no tokenizer.json, vocab.txt, vocab.json with merges.txt or spiece.model"
            " here; put the tokenizer's files beside the model"
        )
    if not path.is_file():
        raise UserError(f"{path}: no such tokenizer; give a directory, tokenizer.json or vocab.txt")
    try:
        if path.suffix not in (".txt", ".model") and path.name != "vocab.json":
            tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
        elif path.suffix == ".model":
            tokenizer = _with_added(_from_sentencepiece(path), path)
        elif path.suffix == ".txt":
            tokenizer = _with_added(_from_vocab_txt(path), path)
        else:
            tokenizer = _with_added(_from_merges(path), path)
        check_ids(tokenizer, path)
        return tokenizer
    except (UserError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # bare Exception for a bad file, or a panic of the library's
        raise UserError(f"{path}: not a tokenizer file that can be read ({error})") from error


def _table(path: Path) -> dict[str, Any]:
    """A file of settings, if there is one."""
    if not path.is_file():
        return {}
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON; fix it or take it away ({error})") from error
    if not isinstance(read, dict):
        raise UserError(f"{path}: not a JSON object; fix it or take it away")
    return read


def _flag(path: Path, key: str, default: bool | None) -> bool | None:
    """A switch in the tokenizer_config.json beside a file."""
    config = path.parent / "tokenizer_config.json"
    value = _table(config).get(key)
    if value is not None and not isinstance(value, bool):
        raise UserError(f"{config}: {key} must be true or false; fix it there")
    return default if value is None else value


def _with_added(tokenizer: Tokenizer, path: Path) -> Tokenizer:
    """The tokenizer with the words of added_tokens.json, numbered on from its own."""
    file = path.parent / "added_tokens.json"
    table = _table(file)
    for name in sorted(table, key=lambda name: str(table[name]).zfill(20)):
        if tokenizer.token_to_id(name) is None:
            tokenizer.add_tokens([AddedToken(name, normalized=False)])
        if tokenizer.token_to_id(name) != table[name]:
            raise UserError(f"{file}: {name!r} cannot have that number; number on from the others")
    return tokenizer


def _from_sentencepiece(path: Path) -> Tokenizer:
    """ALBERT's and XLNet's spiece.model, and XLM-R's and CamemBERT's."""
    model = sentencepiece.parse(path.read_bytes())
    names = {
        "class": _table(path.parent / "tokenizer_config.json").get("tokenizer_class"),
        "type": _table(path.parent / "config.json").get("model_type"),
    }
    try:
        family = sentencepiece.family_of(
            model, {key: name for key, name in names.items() if isinstance(name, str)}
        )
        tokenizer = sentencepiece.tokenizer(
            model,
            family,
            lower=bool(_flag(path, "do_lower_case", family == "albert")),
            # Differs from XLNet's own code, as transformers does: it never keeps them.
            accents=family == "albert" and bool(_flag(path, "keep_accents", False)),
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return finished(tokenizer, _known(tokenizer))


def _known(tokenizer: Tokenizer) -> tuple[str, ...]:
    """The specials that a tokenizer has, by any spelling."""
    names = (name for names in ROLES.values() for name in names)
    return tuple(name for name in names if tokenizer.token_to_id(name) is not None)


def _from_vocab_txt(path: Path) -> Tokenizer:
    """BERT's list of pieces, one a line; cased unless the directory's settings or the list say."""
    # Not splitlines: U+2028 and its like are pieces of some vocabularies.
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
        strip_accents=_flag(path, "strip_accents", None),  # None: as the case
        handle_chinese_chars=bool(_flag(path, "tokenize_chinese_chars", True)),
    )
    return finished(tokenizer, BERT)


def _from_merges(path: Path) -> Tokenizer:
    """The vocab.json and merges.txt of GPT-2 and RoBERTa, or of GPT, whose words end in </w>."""
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
    return finished(tokenizer, _known(tokenizer))

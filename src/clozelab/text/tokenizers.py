"""The tokenizers of the family, trained and run by the `tokenizers` library.

Each normalises as its papers did: WordPiece as BERT (cased or not, ideographs spaced), byte BPE
not at all, unigram by NFKD without accents.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
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


class Training(Protocol):
    """A tokenizer yet to be trained."""

    provides: ClassVar[frozenset[str]]
    needs: ClassVar[frozenset[str]]
    vocabulary: int
    cased: bool
    specials: tuple[str, ...]

    def train(self, texts: Iterator[str]) -> Tokenizer:
        """Learn from texts, read once."""
        ...


@dataclass(frozen=True)
class Wordpiece:
    """WordPiece with BERT's normalisation: greedy longest match, `##` before continuations."""

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()

    vocabulary: int = 30522
    cased: bool = False
    specials: tuple[str, ...] = BERT

    def train(self, texts: Iterator[str]) -> Tokenizer:
        """Learn the pieces."""
        tokenizer = _bert_like(models.WordPiece(unk_token=_unknown(self.specials)), self.cased)
        trainer = trainers.WordPieceTrainer(
            vocab_size=self.vocabulary, special_tokens=list(self.specials), show_progress=False
        )
        tokenizer.train_from_iterator(texts, trainer)
        return finished(tokenizer)


@dataclass(frozen=True)
class ByteBpe:
    """BPE over bytes, text untouched, a word's leading space part of it (GPT-2, RoBERTa)."""

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()

    vocabulary: int = 50265
    cased: bool = True
    specials: tuple[str, ...] = ROBERTA

    def __post_init__(self) -> None:
        if not self.cased:
            raise UserError("byte_bpe leaves text as it is: cased = false is not to be had")

    def train(self, texts: Iterator[str]) -> Tokenizer:
        """Learn the merges."""
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocabulary,
            special_tokens=list(self.specials),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return finished(tokenizer)


@dataclass(frozen=True)
class CharBpe:
    """BPE over characters, `</w>` closing a word (GPT)."""

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()

    vocabulary: int = 40478
    cased: bool = False
    specials: tuple[str, ...] = GPT

    def train(self, texts: Iterator[str]) -> Tokenizer:
        """Learn the merges."""
        model = models.BPE(unk_token=_unknown(self.specials), end_of_word_suffix="</w>")
        tokenizer = _bert_like(model, self.cased)
        tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocabulary,
            special_tokens=list(self.specials),
            end_of_word_suffix="</w>",
            limit_alphabet=1000,
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return finished(tokenizer)


@dataclass(frozen=True)
class Unigram:
    """Unigram pieces over NFKD text without accents, `▁` for a space (ALBERT, XLNet)."""

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()

    vocabulary: int = 30000
    cased: bool = False
    specials: tuple[str, ...] = ALBERT

    def train(self, texts: Iterator[str]) -> Tokenizer:
        """Learn the pieces."""
        tokenizer = Tokenizer(models.Unigram())
        steps = [
            normalizers.Replace("``", '"'),
            normalizers.Replace("''", '"'),
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Replace(Regex(r"\s+"), " "),
        ]
        lower = [] if self.cased else [normalizers.Lowercase()]
        end = normalizers.Strip(left=False, right=True)
        tokenizer.normalizer = normalizers.Sequence([*steps, *lower, end])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=self.vocabulary,
            special_tokens=list(self.specials),
            unk_token=_unknown(self.specials),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return finished(tokenizer)


@dataclass(frozen=True)
class Chars:
    """Single characters, the most frequent ones (ERNIE's Chinese vocabulary)."""

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()

    vocabulary: int = 18000
    cased: bool = False
    specials: tuple[str, ...] = BERT

    def train(self, texts: Iterator[str]) -> Tokenizer:
        """Count the characters; inside a word of letters a character is a `##` piece."""
        normal = _bert_normalizer(self.cased)
        split = pre_tokenizers.BertPreTokenizer()
        words: Counter[str] = Counter()
        for text in texts:
            words.update(word for word, _ in split.pre_tokenize_str(normal.normalize_str(text)))
        pieces: Counter[str] = Counter()
        for word, count in words.items():
            pieces[word[0]] += count
            for letter in word[1:]:
                pieces[f"##{letter}"] += count
        best = sorted(pieces.items(), key=lambda item: (-item[1], item[0]))
        kept = [piece for piece, _ in best if piece not in self.specials]
        kept = kept[: max(self.vocabulary - len(self.specials), 0)]
        table = {piece: number for number, piece in enumerate([*self.specials, *kept])}
        model = models.WordPiece(table, unk_token=_unknown(self.specials))
        return finished(_bert_like(model, self.cased), self.specials)


TOKENIZERS: dict[str, type] = {
    "wordpiece": Wordpiece,
    "byte_bpe": ByteBpe,
    "char_bpe": CharBpe,
    "unigram": Unigram,
    "chars": Chars,
}


def _bert_normalizer(cased: bool) -> normalizers.Normalizer:
    return normalizers.BertNormalizer(lowercase=not cased, strip_accents=not cased)


def _bert_like(model: models.Model, cased: bool) -> Tokenizer:
    """A tokenizer that normalises and splits as BERT's."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = _bert_normalizer(cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _unknown(specials: tuple[str, ...]) -> str:
    for name in ROLES["unk"]:
        if name in specials:
            return name
    raise UserError(f"tokenizer.specials: name an unknown token, one of {', '.join(ROLES['unk'])}")


def finished(tokenizer: Tokenizer, specials: tuple[str, ...] = ()) -> Tokenizer:
    """Declare the specials, and let a plain `encode` add the opening and closing ones."""
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in specials])
    roles = _roles(tokenizer)
    if "cls" in roles and "sep" in roles:
        opening, closing = (tokenizer.id_to_token(roles[name]) for name in ("cls", "sep"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{opening} $A {closing}",
            pair=f"{opening} $A {closing} $B:1 {closing}:1",
            special_tokens=[(opening, roles["cls"]), (closing, roles["sep"])],
        )
    return tokenizer


def _roles(tokenizer: Tokenizer) -> dict[str, int]:
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
    roles = _roles(tokenizer)
    special |= set(roles.values())
    size = max(table.values(), default=-1) + 1
    return Vocabulary(size, roles, np.array(sorted(special), dtype=np.int32))


def load(place: str | Path) -> Tokenizer:
    """A tokenizer from a Hugging Face directory, a `tokenizer.json` or a BERT `vocab.txt`."""
    path = Path(place)
    if path.is_dir():
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
        return Tokenizer.from_file(str(path))
    except UserError:
        raise
    except Exception as error:  # the library raises bare Exception for a bad file
        raise UserError(f"{path}: not a tokenizer file that can be read ({error})") from error


def _settings(path: Path) -> dict[str, Any]:
    """What the directory's tokenizer_config.json says, if there is one."""
    config = path.parent / "tokenizer_config.json"
    if not config.is_file():
        return {}
    read: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    return read


def _from_vocab_txt(path: Path) -> Tokenizer:
    """BERT's list of pieces, one a line; cased unless the directory's settings or the list say."""
    pieces = path.read_text(encoding="utf-8").splitlines()
    table = {piece: number for number, piece in enumerate(pieces)}
    missing = [name for name in BERT if name not in table]
    if missing:
        raise UserError(f"{path}: a BERT vocabulary has {', '.join(BERT)}; missing {missing[0]}")
    upper = any(piece.isascii() and piece[:1].isupper() for piece in pieces)
    lower = _settings(path).get("do_lower_case", not upper)
    model = models.WordPiece(table, unk_token="[UNK]")
    return finished(_bert_like(model, not lower), BERT)


def _from_merges(path: Path) -> Tokenizer:
    """GPT-2's or RoBERTa's vocab.json with merges.txt."""
    merges = path.parent / "merges.txt"
    if not merges.is_file():
        raise UserError(f"{path}: a byte-level BPE needs merges.txt beside it")
    tokenizer = Tokenizer(models.BPE.from_file(str(path), str(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = (name for names in ROLES.values() for name in names)
    known = tuple(name for name in names if tokenizer.token_to_id(name) is not None)
    return finished(tokenizer, known)

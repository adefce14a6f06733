"""The tokenizers of the family, trained and run by the `tokenizers` library.

Each normalises as in its papers: WordPiece as BERT (cased or not, spaces around ideographs), byte
BPE not at all, unigram by NFKD without accents.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from clozelab.errors import UserError
from clozelab.ranges import Part, PositiveInt
from clozelab.text.pieces import Letters, settled, too_small
from clozelab.text.sequences import Kmer, RegexMatches, SingleBytes, settings
from clozelab.text.vocabulary import (
    ALBERT,
    BERT,
    GPT,
    ROBERTA,
    bert_like,
    bert_normalizer,
    describe,
    finished,
    lower_cases,
    numbered,
    roles_of,
    settings_of,
    unknown,
)


class TokenizerSpec(Protocol):
    """The settings of a tokenizer that is to be trained."""

    provides: ClassVar[frozenset[str]]
    needs: ClassVar[frozenset[str]]

    @property
    def vocabulary(self) -> int:
        """How many ids it will have."""
        ...

    @property
    def specials(self) -> tuple[str, ...]:
        """The special tokens, which take the first ids."""
        ...

    def train(self, texts: Iterator[str]) -> Tokenizer:
        """Train the tokenizer on texts, which are iterated over once."""
        ...


@dataclass(frozen=True)
class Wordpiece(Part):
    """WordPiece with BERT's normalisation: greedy longest match, `##` before continuations."""

    vocabulary: PositiveInt = 30522
    cased: bool = False
    specials: tuple[str, ...] = BERT

    def train(self, texts: Iterator[str]) -> Tokenizer:
        """Learn the pieces."""
        letters = Letters(bert_normalizer(self.cased), "first")
        pieces, _ = letters.learn(texts, size=self.vocabulary - len(self.specials), affix="##")
        table = numbered(self.specials, pieces)
        model = models.WordPiece(table, unk_token=unknown(self.specials))
        return finished(bert_like(model, self.cased), self.specials)


@dataclass(frozen=True)
class ByteBpe(Part):
    """BPE over bytes, text untouched, a word's leading space part of it (GPT-2, RoBERTa)."""

    vocabulary: PositiveInt = 50265
    cased: bool = True
    specials: tuple[str, ...] = ROBERTA

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.cased:
            raise UserError("byte_bpe does not change the text; leave out cased = false")

    def train(self, texts: Iterator[str]) -> Tokenizer:
        """Learn the merges, with all 256 bytes in the alphabet."""
        least = 256 + len(self.specials)
        if self.vocabulary < least:
            raise UserError(f"tokenizer.vocabulary = {self.vocabulary}: byte_bpe needs {least}")
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
class CharBpe(Part):
    """BPE over characters, `</w>` closing a word (GPT)."""

    vocabulary: PositiveInt = 40478
    cased: bool = False
    specials: tuple[str, ...] = GPT

    def train(self, texts: Iterator[str]) -> Tokenizer:
        """Learn the merges."""
        letters = Letters(bert_normalizer(self.cased), "last")
        room = self.vocabulary - len(self.specials)
        pieces, merges = letters.learn(texts, size=room, affix="</w>")
        model = models.BPE(
            vocab=numbered(self.specials, pieces),
            merges=merges,
            unk_token=unknown(self.specials),
            end_of_word_suffix="</w>",
        )
        tokenizer = bert_like(model, self.cased)
        tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
        return finished(tokenizer, self.specials)


@dataclass(frozen=True)
class Unigram(Part):
    """Unigram pieces over NFKD text without accents, `▁` for a space (ALBERT, XLNet)."""

    vocabulary: PositiveInt = 30000
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
            vocab_size=self.vocabulary + self.vocabulary // 2,  # `settled` drops mixed pieces
            special_tokens=list(self.specials),
            unk_token=unknown(self.specials),
            show_progress=False,
        )
        try:
            tokenizer.train_from_iterator(texts, trainer)
        except Exception as error:
            if "not large enough to contain all chars" not in str(error):
                raise
            raise too_small(self.vocabulary) from error
        return finished(settled(tokenizer, len(self.specials), size=self.vocabulary))


@dataclass(frozen=True)
class Chars(Part):
    """Single characters, the most frequent ones (ERNIE's Chinese vocabulary)."""

    vocabulary: PositiveInt = 18000
    cased: bool = False
    specials: tuple[str, ...] = BERT

    def train(self, texts: Iterator[str]) -> Tokenizer:
        """Count the characters; inside a word of letters a character is a `##` piece."""
        normal = bert_normalizer(self.cased)
        split = pre_tokenizers.BertPreTokenizer()
        words: Counter[str] = Counter()
        for text in texts:
            words.update(word for word, _ in split.pre_tokenize_str(normal.normalize_str(text)))
        pieces: Counter[str] = Counter()
        for word, count in words.items():
            pieces[word[0]] += count
            for letter in word[1:]:
                pieces[f"##{letter}"] += count
        ranked = sorted(pieces, key=lambda piece: (-pieces[piece], piece))
        names = list(numbered(self.specials, ranked))
        table = numbered(names[: max(self.vocabulary, len(self.specials))])
        model = models.WordPiece(table, unk_token=unknown(self.specials))
        return finished(bert_like(model, self.cased), self.specials)


TOKENIZERS: dict[str, type] = {
    "wordpiece": Wordpiece,
    "byte_bpe": ByteBpe,
    "char_bpe": CharBpe,
    "unigram": Unigram,
    "chars": Chars,
    "kmer": Kmer,
    "regex": RegexMatches,
    "bytes": SingleBytes,
}


def part_of(tokenizer: Tokenizer, *, asked: TokenizerSpec | None = None) -> TokenizerSpec | None:
    """The part that trains tokenizers of this kind, case, specials and size; None if none does.

    From Chinese text WordPiece may learn single characters alone, as `Chars` does: if WordPiece was
    asked for, such a tokenizer is one.
    """
    kind, own_settings = settings(tokenizer) or (_kind(tokenizer), {})
    kind = Wordpiece if kind is Chars and isinstance(asked, Wordpiece) else kind
    if kind is None:
        return None
    added = tokenizer.get_added_tokens_decoder()
    special = {number for number, token in added.items() if token.special}
    special |= {*roles_of(tokenizer).values()}
    specials = tuple(tokenizer.id_to_token(number) for number in sorted(special))
    cased = kind in (ByteBpe, SingleBytes) or not lower_cases(tokenizer)
    common = {"vocabulary": describe(tokenizer).size, "cased": cased, "specials": specials}
    part: TokenizerSpec = kind(**common | own_settings)
    return part


def _kind(tokenizer: Tokenizer) -> type | None:
    model = tokenizer.model
    if isinstance(model, models.WordPiece):
        ordinary = tokenizer.get_vocab(with_added_tokens=False).keys() - {*BERT}
        pieces = (piece for piece in ordinary if not piece.startswith("["))
        single = all(len(piece.removeprefix("##")) == 1 for piece in pieces)
        return Chars if single else Wordpiece
    if isinstance(model, models.BPE):
        splitting = json.dumps(settings_of(tokenizer.pre_tokenizer))
        return ByteBpe if "ByteLevel" in splitting else CharBpe
    return Unigram if isinstance(model, models.Unigram) else None

"""Tokenizers for sequences that are not prose: k-mers, matches of a regular expression, bytes.

Their tokens are found by a rule; only the frequent matches are learned. Every k-mer and every match
of an expression is a word, since nothing else in such text marks words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from clozelab.errors import UserError
from clozelab.ranges import Part, PositiveInt
from clozelab.text.vocabulary import (
    BERT,
    ROBERTA,
    byte_alphabet,
    finished,
    lower_cases,
    numbered,
    settings_of,
    unknown,
)

_EDGES = r"\A\s+|\s+\z"
_KMERS = re.compile(r"\[(?P<letters>.+)\]\{(?P<k>\d+)\}\|\[(?P=letters)\]\|\[\^(?P=letters)\\s\]\+")


@dataclass(frozen=True)
class Kmer(Part):
    """Runs of k letters that do not overlap (the Nucleotide Transformer, Dalla-Torre et al. 2023).

    Every k-mer of the alphabet has an id, and so has every letter: letters left over at the end of
    a sequence, or before a letter outside the alphabet, are tokens by themselves. A run of other
    letters (N, gaps) is one unknown token, after which k-mers start anew.
    """

    learns: ClassVar[bool] = False

    vocabulary: PositiveInt = 4105  # the most ids; what the k-mers need is fixed
    cased: bool = False  # whether small letters and capitals differ
    specials: tuple[str, ...] = BERT
    k: PositiveInt = 6
    alphabet: str = "ACGT"

    def __post_init__(self) -> None:
        super().__post_init__()
        letters = self.alphabet
        if not letters or len({*letters}) < len(letters) or any(map(str.isspace, letters)):
            raise UserError(f'alphabet = "{letters}": name each letter once, without spaces')
        if not self.cased and letters != letters.upper():
            raise UserError(f'alphabet = "{letters}": write capitals, or set cased = true')

    def train(self, texts: Iterator[str]) -> Tokenizer:
        """Number the k-mers; the text is not read."""
        letters, sizes = self.alphabet, sorted({1, self.k})
        least = len(self.specials) + sum(len(letters) ** min(size, 64) for size in sizes)
        if self.vocabulary < least:
            needs = f"{least:,}" if least < 1e9 else "over a billion"
            raise UserError(
                f"tokenizer.vocabulary = {self.vocabulary}: the {self.k}-mers of {letters} need"
                f" {needs} ids; give it as many, or choose a smaller k"
            )
        kmers = ("".join(kmer) for size in sizes for kmer in product(letters, repeat=size))
        tokenizer = _word_level(kmers, self.specials)
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(self.pattern), "removed", invert=True)
        tokenizer.decoder = decoders.Fuse()
        if not self.cased:  # the library has no normaliser for capitals
            cases = [(letter.lower(), letter) for letter in self.alphabet]
            steps = [normalizers.Replace(small, letter) for small, letter in cases]
            tokenizer.normalizer = normalizers.Sequence(steps)
        return finished(tokenizer, self.specials)

    @property
    def pattern(self) -> str:
        """The expression whose matches are the tokens."""
        letters = "".join(re.escape(letter) for letter in self.alphabet)
        return rf"[{letters}]{{{self.k}}}|[{letters}]|[^{letters}\s]+"


@dataclass(frozen=True)
class RegexMatches(Part):
    """The most frequent matches of a regular expression; text between matches is unknown.

    White space between matches is no token. The syntax is Oniguruma's, in which `\\d`, `\\w` and
    `(?i)` mean the same as in Python.
    """

    spells: ClassVar[bool] = False

    vocabulary: PositiveInt = 30000
    cased: bool = True
    specials: tuple[str, ...] = BERT
    pattern: str = r"\w+|[^\w\s]"  # words and signs

    def __post_init__(self) -> None:
        super().__post_init__()
        self._split("isolated", invert=False)

    def train(self, texts: Iterator[str]) -> Tokenizer:
        """Count the matches."""
        normal = None if self.cased else normalizers.Lowercase()
        split = self._split("removed", invert=True)
        counts: Counter[str] = Counter()
        line = ""
        for text in texts:
            text = normal.normalize_str(text) if normal else text
            line = line or text.strip()
            with searching(self.pattern):
                matches = split.pre_tokenize_str(text)
            counts.update(match for match, _ in matches)
        if line and not counts:
            raise UserError(
                f'tokenizer.pattern = "{self.pattern}": matches nothing in the text, which'
                f' begins with "{line[:40]}"; change the pattern'
            )
        ranked = sorted(counts, key=lambda match: (-counts[match], match))
        room = max(self.vocabulary - len(self.specials), 0)
        tokenizer = _word_level(ranked[:room], self.specials)
        if normal:
            tokenizer.normalizer = normal
        tokenizer.pre_tokenizer = self._split("isolated", invert=False)
        return finished(tokenizer, self.specials)

    def _split(self, behaviour: str, *, invert: bool) -> pre_tokenizers.PreTokenizer:
        """The pre-tokenizer that splits by the expression, then strips each piece."""
        if not self.pattern:
            raise UserError('pattern = "": matches nothing; give a regular expression')
        try:
            expression = Regex(self.pattern)
        except Exception as error:
            reason = str(error).removeprefix("Oniguruma error: ")
            raise UserError(
                f'pattern = "{self.pattern}": not a regular expression ({reason}); fix it'
            ) from None
        edges = pre_tokenizers.Split(Regex(_EDGES), "removed")
        pieces = pre_tokenizers.Split(expression, behaviour, invert=invert)
        return pre_tokenizers.Sequence([pieces, edges])


@dataclass(frozen=True)
class SingleBytes(Part):
    """Every byte is a token, so nothing is unknown and nothing is learned (ByT5, Xue et al. 2021).

    Words are found in the text, as for byte BPE.
    """

    learns: ClassVar[bool] = False

    vocabulary: PositiveInt = 261  # the most ids; 256 and the specials are needed
    cased: bool = True
    specials: tuple[str, ...] = ROBERTA

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.cased:
            raise UserError("bytes does not change the text; leave out cased = false")

    def train(self, texts: Iterator[str]) -> Tokenizer:
        """Number the bytes; the text is not read."""
        least = 256 + len(self.specials)
        if self.vocabulary < least:
            raise UserError(f"tokenizer.vocabulary = {self.vocabulary}: bytes needs {least}")
        alphabet = byte_alphabet()
        table = numbered(self.specials, sorted(alphabet, key=alphabet.__getitem__))
        tokenizer = Tokenizer(models.BPE(vocab=table, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        return finished(tokenizer, self.specials)


@contextmanager
def searching(pattern: str) -> Iterator[None]:
    """Turn the library's panic over an expression with too many ways to match into a UserError."""
    try:
        yield
    except BaseException as error:  # a panic is no Exception, and its class cannot be imported
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(
            f'tokenizer.pattern = "{pattern}": cannot be searched for in this text ({error}); write'
            " it without repeats inside of repeats, as in (a+)+"
        ) from None


def pattern_of(tokenizer: Tokenizer) -> str:
    """The first regular expression that a tokenizer splits by; "" if there is none."""
    before = settings_of(tokenizer.pre_tokenizer)
    return next(filter(None, map(_expression, before.get("pretokenizers") or [before])), "")


def settings(tokenizer: Tokenizer) -> tuple[type, dict[str, Any]] | None:
    """The part of this module that trains tokenizers like this one, and its particular settings."""
    before = settings_of(tokenizer.pre_tokenizer)
    if is_bytes(tokenizer):
        return SingleBytes, {}
    if not isinstance(tokenizer.model, models.WordLevel):
        return None
    if kmers := _KMERS.fullmatch(_expression(before)):
        alphabet = re.sub(r"\\(.)", r"\1", kmers["letters"])
        cased = not settings_of(tokenizer.normalizer)
        return Kmer, {"k": int(kmers["k"]), "alphabet": alphabet, "cased": cased}
    pieces, *edges = before.get("pretokenizers") or [{}]
    if [_expression(step) for step in edges] == [_EDGES] and _expression(pieces):
        return RegexMatches, {"pattern": _expression(pieces), "cased": not lower_cases(tokenizer)}
    return None


def is_bytes(tokenizer: Tokenizer) -> bool:
    """Whether every token of a tokenizer is one byte."""
    before = settings_of(tokenizer.pre_tokenizer)
    if before.get("type") != "ByteLevel" or before["use_regex"] or before["add_prefix_space"]:
        return False
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    pieces = tokenizer.get_vocab(with_added_tokens=False).keys() - special
    return not settings_of(tokenizer.normalizer) and all(len(piece) == 1 for piece in pieces)


def _expression(step: dict[str, Any]) -> str:
    """The regular expression that a step splits by; "" if it has none."""
    expression: str = (step.get("pattern") or {}).get("Regex", "")
    return expression


def _word_level(words: Iterable[str], specials: tuple[str, ...]) -> Tokenizer:
    return Tokenizer(models.WordLevel(numbered(specials, words), unk_token=unknown(specials)))

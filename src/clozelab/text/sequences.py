"""Tokenizers for sequences that are not prose: k-mers, matches of a regular expression, bytes.

Their tokens are found by a rule, so nothing is learned but which matches are frequent. A k-mer and
a match of an expression are words: no text tells where else words would begin in them.
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

    Every k-mer of the alphabet has an id, and every letter: those that are left over at the end of
    a sequence, or before a letter that is none of the alphabet, stand alone. A run of other letters
    (N, gaps) is one unknown token, and k-mers are counted anew behind it.
    """

    learns: ClassVar[bool] = False

    vocabulary: PositiveInt = 4105  # the most ids; what the k-mers need is fixed
    cased: bool = False  # whether a small letter is another than its capital
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
        if not self.cased:  # to capitals, which the library has no step for
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
    """The matches of a regular expression, the most frequent ones; what lies between is unknown.

    White space between matches is no token. The expression is Oniguruma's, in which `\\d`, `\\w`
    and `(?i)` mean what they mean in Python.
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
                f'tokenizer.pattern = "{self.pattern}": matches nothing in the text, which begins'
                f' with "{line[:40]}"; change the expression'
            )
        ranked = sorted(counts, key=lambda match: (-counts[match], match))
        room = max(self.vocabulary - len(self.specials), 0)
        tokenizer = _word_level(ranked[:room], self.specials)
        if normal:
            tokenizer.normalizer = normal
        tokenizer.pre_tokenizer = self._split("isolated", invert=False)
        return finished(tokenizer, self.specials)

    def _split(self, behaviour: str, *, invert: bool) -> pre_tokenizers.PreTokenizer:
        """Cut by the expression, then take off the white space around each piece."""
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

    Words are those of the text, as for byte BPE.
    """

    learns: ClassVar[bool] = False

    vocabulary: PositiveInt = 261  # the most ids; 256 and the specials are needed
    cased: bool = True
    specials: tuple[str, ...] = ROBERTA

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.cased:
            raise UserError("bytes leaves text as it is: cased = false is not available")

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
    """Tell in a sentence of an expression that tries too many ways to match: the library panics."""
    try:
        yield
    except BaseException as error:  # a panic is no Exception, and its class has no other name
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(
            f'tokenizer.pattern = "{pattern}": cannot be searched for in this text ({error}); write'
            " it without repeats inside of repeats, as in (a+)+"
        ) from None


def pattern_of(tokenizer: Tokenizer) -> str:
    """The regular expression that a tokenizer splits by first, if it does."""
    before = settings_of(tokenizer.pre_tokenizer)
    return next(filter(None, map(_expression, before.get("pretokenizers") or [before])), "")


def settings(tokenizer: Tokenizer) -> tuple[type, dict[str, Any]] | None:
    """The part of this module that makes tokenizers like this one, and its own settings of it."""
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
    """Whether a tokenizer's every token is one byte."""
    before = settings_of(tokenizer.pre_tokenizer)
    if before.get("type") != "ByteLevel" or before["use_regex"] or before["add_prefix_space"]:
        return False
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    pieces = tokenizer.get_vocab(with_added_tokens=False).keys() - special
    return not settings_of(tokenizer.normalizer) and all(len(piece) == 1 for piece in pieces)


def _expression(step: dict[str, Any]) -> str:
    """The regular expression that a step splits by, if it does."""
    expression: str = (step.get("pattern") or {}).get("Regex", "")
    return expression


def _word_level(words: Iterable[str], specials: tuple[str, ...]) -> Tokenizer:
    return Tokenizer(models.WordLevel(numbered(specials, words), unk_token=unknown(specials)))

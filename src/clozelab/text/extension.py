"""Adding words of a new text to a tokenizer, so that pretraining can continue in another domain.

A word is added to the model's vocabulary, after the old ids, so that the kind of model finds it:
WordPiece by the longest match, byte BPE by looking words up before merging, BPE with marked ends
by more merges, unigram by a score just above that of the word's pieces. So words are still encoded
independently of each other, and words that contain none of the new tokens are encoded as before.

The words that save most tokens come first: how often a word occurs, times its pieces minus one.
Ideographs and signs are words by themselves; those that are unknown to a tokenizer are added like
words. To byte BPE none is unknown, and it looks up whole words only: it is given no ideographs.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Annotated, Any, ClassVar

from tokenizers import Tokenizer, decoders

from clozelab.errors import UserError
from clozelab.ranges import Part, at_least
from clozelab.text.numbering import behind, numbers_of, renumbered
from clozelab.text.sequences import is_bytes
from clozelab.text.vocabulary import describe, settings_of
from clozelab.text.words import IDEOGRAPH_CLASS, kind

LEAST = 10  # occurrences of a word that is added; not tuned: fewer would hardly train its row
_LETTERS = re.compile(rf"(?:(?![{IDEOGRAPH_CLASS}])[^\W\d_]){{4,}}(?![\w'’-])")
_ALONE = ("ideograph", "sign")  # kinds of characters that are words by themselves
_MOST_RUNS = 1 << 21  # counted at a time; with more, the rarest are dropped
# How much a unigram word scores above its pieces, per letter: any small number would do. So a word
# beats the pieces that begin with a shorter new word.
_ABOVE = 0.01


@dataclass(frozen=True)
class Extension(Part):
    """A `TokenizerSpec` that adds up to `words` words to a tokenizer, the best first."""

    specials: ClassVar[tuple[str, ...]] = ()  # the tokenizer has its own

    tokenizer: str  # the text of its file
    words: Annotated[int, at_least(1, "--extend takes at least 1, or leave it out")]

    def __post_init__(self) -> None:
        super().__post_init__()
        tokenizer = Tokenizer.from_str(self.tokenizer)  # refused before any text is read
        check_extendable(tokenizer)
        if names := behind(json.loads(self.tokenizer)):
            raise UserError(
                f"--extend: {names[0]} and other tokens after the tokenizer's pieces would"
                " get other ids; add words with clozelab vocabulary add"
            )

    @property
    def vocabulary(self) -> int:
        """How many ids there will be, if the text has enough words."""
        return describe(Tokenizer.from_str(self.tokenizer)).size + self.words

    def train(self, texts: Iterator[str]) -> Tokenizer:
        """Count the words of the texts and add those that the tokenizer splits."""
        tokenizer = Tokenizer.from_str(self.tokenizer)
        counts = WordCounts(tokenizer)
        counts.update(texts)
        words = [candidate.word for candidate in counts.ranked()]
        return extended(tokenizer, words, most=self.words)


@dataclass(frozen=True)
class NewWord:
    """A word of a text that a tokenizer splits into pieces, or does not know."""

    word: str  # as the tokenizer's model sees it
    text: str  # as people read it
    count: int
    pieces: int  # how many it has; its letters plus one where it is unknown
    known: bool = True  # whether all of its letters are

    @property
    def saves(self) -> int:
        """How many tokens the text has less with it."""
        return self.count * (self.pieces - 1)


@dataclass
class WordCounts:
    """How often each word of some texts occurs, in bounded memory."""

    tokenizer: Tokenizer
    runs: Counter[str] = field(default_factory=Counter)
    rarest: int = 1

    def update(self, texts: Iterable[str]) -> None:
        """Count the runs of text between white space."""
        for text in texts:
            self.runs.update(text.split())
            if len(self.runs) > _MOST_RUNS:
                kept = {run: count for run, count in self.runs.items() if count > self.rarest}
                self.runs = Counter(kept)
                self.rarest += 1

    def ranked(self, *, least: int = LEAST) -> list[NewWord]:
        """The words that occur at least `least` times and can be added, best savers first."""
        adder, candidates = _WordAdder.of(self.tokenizer), []
        counts, every = self._words()
        read = decoders.ByteLevel() if _last_pre_tokenizer(self.tokenizer) == "ByteLevel" else None
        for word, count in counts.items():
            pieces = adder.pieces(word) if count >= least else 1
            if pieces > 1 and not adder.breaks(word, every):
                text = read.decode([word]).strip() if read else word.removeprefix("▁")
                candidates.append(NewWord(word, text, count, pieces, adder.knows(word)))
        return sorted(candidates, key=lambda candidate: (-candidate.saves, candidate.word))

    def _words(self) -> tuple[Counter[str], list[str]]:
        """Counts of the words that consist of letters, as the model sees them; and all words,
        sorted."""
        splits, normalizer = _last_pre_tokenizer(self.tokenizer), self.tokenizer.normalizer
        by_bytes, by_spaces = (splits == kind for kind in ("ByteLevel", "Metaspace"))
        counts, every = Counter[str](), set[str]()
        for run, count in self.runs.items():
            text = f" {run}" if by_bytes else run
            if normalizer is not None:
                text = normalizer.normalize_str(text)
            assert self.tokenizer.pre_tokenizer is not None
            for word, (first, stop) in self.tokenizer.pre_tokenizer.pre_tokenize_str(text):
                every.add(word)
                if by_spaces:  # it splits at spaces only: take the letters before any sign
                    if match := _LETTERS.match(word.removeprefix("▁")):
                        counts[f"▁{match[0]}"] += count
                elif _LETTERS.fullmatch(text[first:stop].lstrip()) and (not by_bytes or not first):
                    counts[word] += count
            for letter in () if by_bytes or (text.isalpha() and text.isascii()) else text:
                if kind(letter) in _ALONE:
                    counts[letter] += count
        return counts, sorted(every)


def check_extendable(tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer of a kind that words cannot be added to."""
    _WordAdder.of(tokenizer)


def extended(tokenizer: Tokenizer, words: Iterable[str], *, most: int | None = None) -> Tokenizer:
    """The tokenizer with words added, as long as they take at most `most` new ids.

    Old ids do not change, except those of added tokens that are no pieces of the model.
    """
    adder, settings = _WordAdder.of(tokenizer), json.loads(tokenizer.to_str())
    old = numbers_of(settings)
    moved = bool(behind(settings))
    numbers = {name: at for at, name in enumerate(old)} if moved else old
    first = len(numbers) if moved else describe(tokenizer).size
    new: dict[str, None] = {}
    for word in words:
        entries = adder.entries(word)
        names = [name for name in entries if name not in numbers and name not in new]
        if most is not None and len(new) + len(names) > most:
            continue
        new |= dict.fromkeys(names)
        adder.put(settings["model"], word, names)
    numbers |= {name: first + at for at, name in enumerate(new)}
    return renumbered(settings, numbers)


def pieces(tokenizer: Tokenizer, entries: Sequence[str]) -> list[list[int]]:
    """For each entry of a larger vocabulary, the ids into which the tokenizer splits its text."""
    suffix = json.loads(tokenizer.to_str())["model"].get("end_of_word_suffix") or ""
    words = (tokenizer.model.tokenize(entry.removesuffix(suffix)) for entry in entries)
    return [[token.id for token in tokens] for tokens in words]


def _last_pre_tokenizer(tokenizer: Tokenizer) -> str | None:
    """The type of the pre-tokenizer's last step."""
    before = settings_of(tokenizer.pre_tokenizer)
    last: str | None = before.get("pretokenizers", [before])[-1].get("type")
    return last


class _WordAdder:
    """How words are added to one kind of tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.model = tokenizer.model
        self.unknown = describe(tokenizer).roles.get("unk")

    @staticmethod
    def of(tokenizer: Tokenizer) -> _WordAdder:
        """The subclass for this kind of tokenizer; an error if words cannot be added to it."""
        kind, before = type(tokenizer.model).__name__, _last_pre_tokenizer(tokenizer)
        adder = None if is_bytes(tokenizer) else _ADDERS.get((kind, before))
        if adder is None:
            raise UserError(
                f"a tokenizer of the kind {kind} with {before} cannot be extended; use it"
                " unchanged, or train one on the text (clozelab corpus build)"
            )
        return adder(tokenizer)

    def pieces(self, word: str) -> int:
        """How many pieces the word has; 1 if it has an id or cannot be added."""
        if self.model.token_to_id(word) is not None:
            return 1
        if self.knows(word):
            return len(self.model.tokenize(word))
        return len(word) + 1 if self.takes_unknown(word) else 1

    def knows(self, word: str) -> bool:
        """Whether no piece of the word is the unknown token."""
        return all(token.id != self.unknown for token in self.model.tokenize(word))

    def takes_unknown(self, word: str) -> bool:
        """Whether a word with unknown letters can be added."""
        return len(word) == 1 and kind(word) in _ALONE

    def breaks(self, word: str, every: Sequence[str]) -> bool:
        """Whether any of the text's words (`every`, sorted) would become unknown with the word."""
        return False

    def entries(self, word: str) -> list[str]:
        """The entries that the vocabulary needs for the word to be found."""
        return [word]

    def put(self, model: dict[str, Any], word: str, names: list[str]) -> None:
        """Add to the model's settings what the word needs besides ids."""


class _LongestMatch(_WordAdder):
    """WordPiece: a word in the vocabulary is found before any shorter piece."""

    def takes_unknown(self, word: str) -> bool:
        """Always: a longest match does not look at letters."""
        return True

    def breaks(self, word: str, every: Sequence[str]) -> bool:
        """Whether a longer word begins with it whose remaining letters are no pieces."""
        after = (every[at] for at in range(bisect_right(every, word), len(every)))
        longer = takewhile(lambda other: other.startswith(word), after)
        return any(not self._stays_known(other, word) for other in longer)

    def _stays_known(self, longer: str, word: str) -> bool:
        """Whether a longer word stays known if `word` is added, or was unknown before."""
        first, *_ = tokens = self.model.tokenize(longer)
        if len(first.value) > len(word) or self.unknown in [token.id for token in tokens]:
            return True
        at: int | None = len(word)
        while at is not None and at < len(longer):
            ends = range(len(longer), at, -1)
            at = next((end for end in ends if self._is_continuation(longer[at:end])), None)
        return at is not None

    def _is_continuation(self, letters: str) -> bool:
        """Whether these letters are a continuation piece (`##…`)."""
        prefix = self.model.continuing_subword_prefix
        return self.model.token_to_id(f"{prefix}{letters}") is not None


class _LookUp(_WordAdder):
    """Byte BPE: a word in the vocabulary is one token, without merging."""

    def put(self, model: dict[str, Any], word: str, names: list[str]) -> None:
        """Let the model look words up before it merges."""
        model["ignore_merges"] = True


class _Merges(_WordAdder):
    """BPE with marked ends: merges after the others, from the word's end to its beginning.

    The result of each merge needs an id too: a word of three pieces takes two ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.suffix = json.loads(tokenizer.to_str())["model"].get("end_of_word_suffix") or ""
        self.added: set[tuple[str, str]] = set()

    def entries(self, word: str) -> list[str]:
        """The results of the merges."""
        if self._is_letter(word):
            return [word + self.suffix]
        return [left + right for left, right in self._merges_of(word)]

    def put(self, model: dict[str, Any], word: str, names: list[str]) -> None:
        """Add the merges, each once."""
        steps = [] if self._is_letter(word) else self._merges_of(word)
        model["merges"] += [[*step] for step in steps if step not in self.added]
        self.added.update(steps)

    def _is_letter(self, word: str) -> bool:
        return len(word) == 1  # an unknown letter needs no merge

    def _merges_of(self, word: str) -> list[tuple[str, str]]:
        *others, last = self.model.tokenize(word)
        end, steps = last.value, []
        for token in reversed(others):
            steps.append((token.value, end))
            end = token.value + end
        return steps


class _Scores(_WordAdder):
    """Unigram: a piece that scores just above the best segmentation of the word."""

    def put(self, model: dict[str, Any], word: str, names: list[str]) -> None:
        """Add the piece with its score; an unknown letter gets the lowest score of all."""
        scores = model["vocab"]
        tokens = self.model.tokenize(word)
        score = sum(scores[token.id][1] for token in tokens) + _ABOVE * len(word)
        if self.unknown in [token.id for token in tokens]:
            score = min(score for _, score in scores)
        scores.append([word, score])


_ADDERS: dict[tuple[str, str | None], type[_WordAdder]] = {
    ("WordPiece", "BertPreTokenizer"): _LongestMatch,
    ("BPE", "ByteLevel"): _LookUp,
    ("BPE", "BertPreTokenizer"): _Merges,
    ("Unigram", "Metaspace"): _Scores,
}

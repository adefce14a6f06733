"""A tokenizer given words of a new text, so that pretraining can go on in another domain.

A word goes into the model's own vocabulary, after the old ids, in the way its kind finds words:
WordPiece by the longest match, byte BPE by looking a word up before merging, BPE with marked ends
by more merges, unigram by a score just above that of the word's pieces. So every word is still
encoded by itself, and words that hold none of the new tokens, not even as a part, are encoded as
before.

The words that save most tokens come first: how often a word occurs, times its pieces less one.
Ideographs and signs are words by themselves; those that a tokenizer does not know are added like
words. Byte BPE knows all, and looks up only what stands alone: it is given no ideographs.
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
from clozelab.text.vocabulary import describe
from clozelab.text.words import IDEOGRAPH_CLASS, kind

LEAST = 10  # occurrences of a word worth a row; not tuned: fewer would hardly train it
_LETTERS = re.compile(rf"(?:(?![{IDEOGRAPH_CLASS}])[^\W\d_]){{4,}}(?![\w'’-])")
_ALONE = ("ideograph", "sign")  # characters that are words by themselves
_MOST_RUNS = 1 << 21  # counted at a time; when there are more, the rarest are forgotten
_ABOVE = 0.01  # by which a unigram word's score beats that of its pieces: any little would do


@dataclass(frozen=True)
class Extension(Part):
    """A `TokenizerSpec` that adds up to `words` words to a tokenizer, the best first."""

    specials: ClassVar[tuple[str, ...]] = ()  # it has its own

    tokenizer: str  # as its file has it
    words: Annotated[int, at_least(1, "--extend takes at least 1, or leave it out")]

    def __post_init__(self) -> None:
        super().__post_init__()
        tokenizer = Tokenizer.from_str(self.tokenizer)  # refused before any text is read
        check_extendable(tokenizer)
        if names := behind(json.loads(self.tokenizer)):
            raise UserError(
                f"--extend: {names[0]} and what else stands behind the tokenizer's pieces would get"
                " other ids; give the model words with clozelab vocabulary add"
            )

    @property
    def vocabulary(self) -> int:
        """How many ids there will be, where the text has words enough."""
        return describe(Tokenizer.from_str(self.tokenizer)).size + self.words

    def train(self, texts: Iterator[str]) -> Tokenizer:
        """Count the words of the texts and add those that the tokenizer takes apart."""
        tokenizer = Tokenizer.from_str(self.tokenizer)
        counts = WordCounts(tokenizer)
        counts.update(texts)
        words = [each.word for each in counts.ranked()]
        return extended(tokenizer, words, most=self.words)


@dataclass(frozen=True)
class NewWord:
    """A word of a text that a tokenizer takes apart, or does not know."""

    word: str  # as the tokenizer's model is given it
    text: str  # as it is read
    count: int
    pieces: int  # that it has; one more than its letters where it is unknown
    known: bool = True  # all of its letters are

    @property
    def saves(self) -> int:
        """How many tokens fewer the text has with it."""
        return self.count * (self.pieces - 1)


@dataclass
class WordCounts:
    """How often each word of some texts occurs, in bounded memory."""

    tokenizer: Tokenizer
    runs: Counter[str] = field(default_factory=Counter)
    rarest: int = 1

    def update(self, texts: Iterable[str]) -> None:
        """Count what stands between spaces."""
        for text in texts:
            self.runs.update(text.split())
            if len(self.runs) > _MOST_RUNS:
                often = {run: count for run, count in self.runs.items() if count > self.rarest}
                self.runs = Counter(often)
                self.rarest += 1

    def ranked(self, *, least: int = LEAST) -> list[NewWord]:
        """The words that occur so often and can be added, what saves most tokens first."""
        way, candidates = _Way.of(self.tokenizer), []
        counts, every = self._words()
        read = decoders.ByteLevel() if _splits(self.tokenizer) == "ByteLevel" else None
        for word, count in counts.items():
            if count >= least and (pieces := way.pieces(word)) > 1 and not way.breaks(word, every):
                text = read.decode([word]).strip() if read else word.removeprefix("▁")
                candidates.append(NewWord(word, text, count, pieces, way.knows(word)))
        return sorted(candidates, key=lambda each: (-each.saves, each.word))

    def _words(self) -> tuple[Counter[str], list[str]]:
        """How often each word occurs that has letters alone, as the model is given it; and all
        words, sorted."""
        splits, normalizer = _splits(self.tokenizer), self.tokenizer.normalizer
        spaced, whole = (splits == way for way in ("ByteLevel", "Metaspace"))
        counts, every = Counter[str](), set[str]()
        for run, count in self.runs.items():
            text = f" {run}" if spaced else run
            if normalizer is not None:
                text = normalizer.normalize_str(text)
            assert self.tokenizer.pre_tokenizer is not None
            for word, (first, stop) in self.tokenizer.pre_tokenizer.pre_tokenize_str(text):
                every.add(word)
                if whole:  # cut at spaces only: the letters it begins with, signs apart
                    if match := _LETTERS.match(word.removeprefix("▁")):
                        counts[f"▁{match[0]}"] += count
                elif _LETTERS.fullmatch(text[first:stop].lstrip()) and (not spaced or not first):
                    counts[word] += count
            for letter in () if spaced or (text.isalpha() and text.isascii()) else text:
                if kind(letter) in _ALONE:
                    counts[letter] += count
        return counts, sorted(every)


def check_extendable(tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer of a kind that words cannot be added to."""
    _Way.of(tokenizer)


def extended(tokenizer: Tokenizer, words: Iterable[str], *, most: int | None = None) -> Tokenizer:
    """The tokenizer with words added, while they take at most so many ids.

    Ids stay as they are, but for those of tokens that are no pieces of the model: these follow.
    """
    way, settings = _Way.of(tokenizer), json.loads(tokenizer.to_str())
    old = numbers_of(settings)
    moved = bool(behind(settings))
    numbers = {name: at for at, name in enumerate(old)} if moved else old
    first = len(numbers) if moved else describe(tokenizer).size
    new: dict[str, None] = {}
    for word in words:
        entries = way.entries(word)
        names = [name for name in entries if name not in numbers and name not in new]
        if most is not None and len(new) + len(names) > most:
            continue
        new |= dict.fromkeys(names)
        way.put(settings["model"], word, names)
    numbers |= {name: first + at for at, name in enumerate(new)}
    return renumbered(settings, numbers)


def pieces(tokenizer: Tokenizer, entries: Sequence[str]) -> list[list[int]]:
    """The ids a tokenizer gives to what each entry of a larger vocabulary stands for."""
    suffix = json.loads(tokenizer.to_str())["model"].get("end_of_word_suffix") or ""
    words = (tokenizer.model.tokenize(entry.removesuffix(suffix)) for entry in entries)
    return [[token.id for token in tokens] for tokens in words]


def _splits(tokenizer: Tokenizer) -> str | None:
    """What cuts a text into words last."""
    before = json.loads(tokenizer.to_str())["pre_tokenizer"] or {}
    last: str | None = before.get("pretokenizers", [before])[-1].get("type")
    return last


class _Way:
    """How words are added to a kind of tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.model = tokenizer.model
        self.unknown = describe(tokenizer).roles.get("unk")

    @staticmethod
    def of(tokenizer: Tokenizer) -> _Way:
        """The way of this kind of tokenizer; refused where there is none."""
        kind = json.loads(tokenizer.to_str())["model"]["type"]
        before = _splits(tokenizer)
        way = None if is_bytes(tokenizer) else _WAYS.get((kind, before))
        if way is None:
            raise UserError(
                f"a tokenizer of the kind {kind} with {before} cannot be given words; use it as it"
                " is, or train one on the text (clozelab corpus build)"
            )
        return way(tokenizer)

    def pieces(self, word: str) -> int:
        """How many pieces the word has; 1 where it has an id, or cannot be given one."""
        if self.model.token_to_id(word) is not None:
            return 1
        if self.knows(word):
            return len(self.model.tokenize(word))
        return len(word) + 1 if self.takes_unknown(word) else 1

    def knows(self, word: str) -> bool:
        """Whether all of the word is known."""
        return all(token.id != self.unknown for token in self.model.tokenize(word))

    def takes_unknown(self, word: str) -> bool:
        """Whether a word can be added that has unknown letters."""
        return len(word) == 1 and kind(word) in _ALONE

    def breaks(self, word: str, every: Sequence[str]) -> bool:
        """Whether some of a text's words, sorted, would become unknown if the word were added."""
        return False

    def entries(self, word: str) -> list[str]:
        """What the vocabulary has to have for the word to be found."""
        return [word]

    def put(self, model: dict[str, Any], word: str, names: list[str]) -> None:
        """Put what the word needs, beside ids, into the settings of the model."""


class _LongestMatch(_Way):
    """WordPiece: a word of the vocabulary is found before any shorter piece."""

    def takes_unknown(self, word: str) -> bool:
        """Its letters do not matter."""
        return True

    def breaks(self, word: str, every: Sequence[str]) -> bool:
        """A longer word that begins with it has to be spelled on from there."""
        after = (every[at] for at in range(bisect_right(every, word), len(every)))
        longer = takewhile(lambda each: each.startswith(word), after)
        return any(not self._spelled_after(each, word) for each in longer)

    def _spelled_after(self, longer: str, word: str) -> bool:
        """Whether a longer word stays known, or is unknown as it is."""
        first, *_ = tokens = self.model.tokenize(longer)
        if len(first.value) > len(word) or self.unknown in [token.id for token in tokens]:
            return True
        at: int | None = len(word)
        while at is not None and at < len(longer):
            ends = range(len(longer), at, -1)
            at = next((end for end in ends if self._goes_on(longer[at:end])), None)
        return at is not None

    def _goes_on(self, letters: str) -> bool:
        """Whether a piece goes on with these letters."""
        prefix = self.model.continuing_subword_prefix
        return self.model.token_to_id(f"{prefix}{letters}") is not None


class _LookUp(_Way):
    """Byte BPE: a word of the vocabulary is taken whole before anything is merged."""

    def put(self, model: dict[str, Any], word: str, names: list[str]) -> None:
        """Let words be looked up."""
        model["ignore_merges"] = True


class _Merges(_Way):
    """BPE with marked ends: merges behind the others, from the word's end to its beginning.

    What a merge makes needs an id as well: a word of three pieces takes two.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.suffix = json.loads(tokenizer.to_str())["model"].get("end_of_word_suffix") or ""
        self.added: set[tuple[str, str]] = set()

    def entries(self, word: str) -> list[str]:
        """What each merge makes."""
        if self._is_letter(word):
            return [word + self.suffix]
        return [left + right for left, right in self._steps(word)]

    def put(self, model: dict[str, Any], word: str, names: list[str]) -> None:
        """The merges, each once."""
        steps = [] if self._is_letter(word) else self._steps(word)
        model["merges"] += [[*step] for step in steps if step not in self.added]
        self.added.update(steps)

    def _is_letter(self, word: str) -> bool:
        return len(word) == 1  # which is unknown: it needs no merge

    def _steps(self, word: str) -> list[tuple[str, str]]:
        *others, last = self.model.tokenize(word)
        end, steps = last.value, []
        for token in reversed(others):
            steps.append((token.value, end))
            end = token.value + end
        return steps


class _Scores(_Way):
    """Unigram: a piece that scores just above the best way to spell the word."""

    def put(self, model: dict[str, Any], word: str, names: list[str]) -> None:
        """The piece with its score; a letter that was unknown has the lowest there is."""
        scores = model["vocab"]
        tokens = self.model.tokenize(word)
        score = sum(scores[token.id][1] for token in tokens) + _ABOVE
        if self.unknown in [token.id for token in tokens]:
            score = min(score for _, score in scores)
        scores.append([word, score])


_WAYS: dict[tuple[str, str | None], type[_Way]] = {
    ("WordPiece", "BertPreTokenizer"): _LongestMatch,
    ("BPE", "ByteLevel"): _LookUp,
    ("BPE", "BertPreTokenizer"): _Merges,
    ("Unigram", "Metaspace"): _Scores,
}

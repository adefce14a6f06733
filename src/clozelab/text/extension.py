"""A tokenizer given words of a new text, so that pretraining can go on in another domain.

A word goes into the model's own vocabulary, after the old ids, in the way its kind finds words:
WordPiece by the longest match, byte BPE by looking a word up before merging, BPE with marked ends
by more merges, unigram by a score just above that of the word's pieces. So every word is still
encoded by itself, and words that hold none of the new tokens are encoded as before.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from tokenizers import Tokenizer

from clozelab.errors import UserError
from clozelab.ranges import Part, at_least
from clozelab.text.vocabulary import describe
from clozelab.text.words import IDEOGRAPH_CLASS

_LEAST = 10  # occurrences of a word worth a row
# Ideographs are words by themselves.
_LETTERS = re.compile(rf"(?:(?![{IDEOGRAPH_CLASS}])[^\W\d_]){{4,}}(?![\w'’-])")
_MOST_RUNS = 1 << 21  # counted at a time; when there are more, the rarest are forgotten
_ABOVE = 0.01  # by which a unigram word's score beats that of its pieces


@dataclass(frozen=True)
class Extension(Part):
    """A `TokenizerSpec` that adds up to `words` words to a tokenizer, the most frequent first."""

    specials: ClassVar[tuple[str, ...]] = ()  # it has its own

    tokenizer: str  # as its file has it
    words: Annotated[int, at_least(1, "--extend takes at least 1, or leave it out")]

    def __post_init__(self) -> None:
        super().__post_init__()
        _way(Tokenizer.from_str(self.tokenizer))  # refused before any text is read

    @property
    def vocabulary(self) -> int:
        """How many ids there will be, where the text has words enough."""
        return describe(Tokenizer.from_str(self.tokenizer)).size + self.words

    def train(self, texts: Iterator[str]) -> Tokenizer:
        """Count the words of the texts and add those that the tokenizer takes apart."""
        return extended(Tokenizer.from_str(self.tokenizer), texts, words=self.words)


def extended(tokenizer: Tokenizer, texts: Iterator[str], *, words: int) -> Tokenizer:
    """The tokenizer with words of at least four letters and ten occurrences added."""
    add, counts = _way(tokenizer), _counted(tokenizer, texts)
    settings, number = json.loads(tokenizer.to_str()), describe(tokenizer).size
    last = number + words
    for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if count < _LEAST or number == last:
            break
        number += add(settings, word, range(number, last))
    return Tokenizer.from_str(json.dumps(settings))


def pieces(tokenizer: Tokenizer, entries: Sequence[str]) -> list[list[int]]:
    """The ids a tokenizer gives to what each entry of a larger vocabulary stands for."""
    suffix = json.loads(tokenizer.to_str())["model"].get("end_of_word_suffix") or ""
    words = (tokenizer.model.tokenize(entry.removesuffix(suffix)) for entry in entries)
    return [[token.id for token in tokens] for tokens in words]


def _counted(tokenizer: Tokenizer, texts: Iterator[str]) -> Counter[str]:
    """How often each word occurs that has letters alone, as the model is given it."""
    runs: Counter[str] = Counter()
    rare = 1
    for text in texts:
        runs.update(text.split())
        if len(runs) > _MOST_RUNS:
            runs = Counter({run: count for run, count in runs.items() if count > rare})
            rare += 1
    spaced, whole = (_splits(tokenizer) == kind for kind in ("ByteLevel", "Metaspace"))
    counts: Counter[str] = Counter()
    for run, count in runs.items():
        text = f" {run}" if spaced else run
        if tokenizer.normalizer is not None:
            text = tokenizer.normalizer.normalize_str(text)
        assert tokenizer.pre_tokenizer is not None
        for word, (first, stop) in tokenizer.pre_tokenizer.pre_tokenize_str(text):
            if whole:  # cut at spaces only: the letters it begins with, signs apart
                if match := _LETTERS.match(word.removeprefix("▁")):
                    counts[f"▁{match[0]}"] += count
            elif _LETTERS.fullmatch(text[first:stop].lstrip()) and (not spaced or not first):
                counts[word] += count
    return counts


Add = Callable[[dict[str, Any], str, range], int]


def _way(tokenizer: Tokenizer) -> Add:
    """How a word is added to this kind of tokenizer; refused where there is none."""
    model = json.loads(tokenizer.to_str())["model"]
    ways = _Ways(tokenizer)
    known: dict[tuple[str, str | None], Add] = {
        ("WordPiece", "BertPreTokenizer"): ways.match,
        ("BPE", "ByteLevel"): ways.look_up,
        ("BPE", "BertPreTokenizer"): ways.merge,
        ("Unigram", "Metaspace"): ways.score,
    }
    kind, before = model["type"], _splits(tokenizer)
    # A unigram's ids are the places in its list: what follows it takes those of new words.
    behind = kind == "Unigram" and len(model["vocab"]) != describe(tokenizer).size
    if (kind, before) not in known or behind:
        raise UserError(
            f"--extend: a tokenizer of the kind {kind} with {before}"
            f"{' and specials behind its pieces' * behind} cannot be given words; leave --extend"
            " out"
        )
    return known[kind, before]


def _splits(tokenizer: Tokenizer) -> str | None:
    """What cuts a text into words last."""
    before = json.loads(tokenizer.to_str())["pre_tokenizer"] or {}
    last: str | None = before.get("pretokenizers", [before])[-1].get("type")
    return last


class _Ways:
    """Each puts a word that the tokenizer takes apart into the settings; how many ids it took."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.model = tokenizer.model
        self.unknown = describe(tokenizer).roles.get("unk")
        self.merges: set[tuple[str, str]] = set()  # that were added

    def match(self, settings: dict[str, Any], word: str, free: range) -> int:
        """WordPiece: the longest match, so a word of the vocabulary is found first."""
        tokens = self.model.tokenize(word)
        if len(tokens) == 1 and tokens[0].id != self.unknown:
            return 0
        settings["model"]["vocab"][word] = free[0]
        return 1

    def look_up(self, settings: dict[str, Any], word: str, free: range) -> int:
        """Byte BPE: a word of the vocabulary is taken whole before anything is merged."""
        if word in settings["model"]["vocab"]:
            return 0
        settings["model"]["vocab"][word] = free[0]
        settings["model"]["ignore_merges"] = True
        return 1

    def merge(self, settings: dict[str, Any], word: str, free: range) -> int:
        """BPE with marked ends: merges behind the others, from the word's end to its beginning.

        What a merge makes needs an id as well: a word of three pieces takes two.
        """
        tokens = self.model.tokenize(word)
        if any(token.id == self.unknown for token in tokens):
            return 0
        table, merges = settings["model"]["vocab"], settings["model"]["merges"]
        end, steps = tokens[-1].value, []
        for token in reversed(tokens[:-1]):
            steps.append((token.value, end))
            end = token.value + end
        names = [left + right for left, right in steps if left + right not in table]
        if len(names) > len(free):
            return 0
        table.update(zip(names, free, strict=False))
        merges.extend([left, right] for left, right in steps if (left, right) not in self.merges)
        self.merges.update(steps)
        return len(names)

    def score(self, settings: dict[str, Any], word: str, free: range) -> int:
        """Unigram: a piece that scores just above the best way to spell the word."""
        tokens = self.model.tokenize(word)
        if len(tokens) == 1 or any(token.id == self.unknown for token in tokens):
            return 0
        scores = settings["model"]["vocab"]
        scores.append([word, sum(scores[token.id][1] for token in tokens) + _ABOVE])
        return 1

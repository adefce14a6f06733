"""Learning pieces so that the same text always gives the same vocabulary.

The library's trainers number letters with an affix (`##a`, `a</w>`) in the order of a hash map that
is seeded anew in every process, and break ties between merges by those numbers. So before training
the first (or last) letters of words are replaced by characters of their own, numbered in the order
in which they occur; after training the pieces get their affixes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from clozelab.errors import UserError
from clozelab.text.words import kind

_FIRST_SIGN, _LAST_SIGN = 0xF0000, 0x10FFFD  # private-use planes, which text does not use
_MOST_WORDS = 1 << 20  # words in the cache, before it is cleared


@dataclass
class Letters:
    """Trains a BPE on texts in which the first or last letter of each word has a sign instead."""

    normalizer: normalizers.Normalizer
    end: Literal["first", "last"]
    signs: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def learn(
        self, texts: Iterator[str], *, size: int, affix: str
    ) -> tuple[list[str], list[tuple[str, str]]]:
        """At most `size` pieces, single letters first, then in the order of the merges; the merges.

        With marked first letters, pieces that begin no word get the prefix `affix` (`##`); with
        marked last letters, pieces that end a word get it as a suffix (`</w>`).
        """
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.BpeTrainer(vocab_size=max(size, 1), show_progress=False)
        tokenizer.train_from_iterator(self._marked(texts), trainer)
        model = json.loads(tokenizer.to_str())["model"]
        plain = {sign: letter for letter, sign in self.signs.items()}
        self.counts.pop(" ", None)
        alphabet = sorted(self.counts, key=lambda letter: (-self.counts[letter], letter))
        # Rare letters would fill a small vocabulary.
        frequent = set(alphabet[: min(max(size // 3, 256), max(size, 0))])

        def named(piece: str) -> str:
            spelled = "".join(plain.get(letter, letter) for letter in piece)
            if self.end == "first":
                return spelled if piece[:1] in plain else affix + spelled
            return spelled + affix if piece[-1:] in plain else spelled

        merges = [pair for pair in model["merges"] if frequent.issuperset("".join(pair))]
        merged = list(dict.fromkeys(map("".join, merges)))
        singles = sorted(alphabet[: max(size - len(merged), len(frequent))])  # fill the rest
        pieces = list(dict.fromkeys(named(piece) for piece in [*singles, *merged]))
        return pieces, [(named(left), named(right)) for left, right in merges]

    def _marked(self, texts: Iterator[str]) -> Iterator[str]:
        """The texts normalised, with spaces between words and a sign in each word."""
        split = pre_tokenizers.BertPreTokenizer()
        known: dict[str, str] = {}
        seen: Counter[str] = Counter()
        for text in texts:
            runs = self.normalizer.normalize_str(text).split()
            for run in runs:
                if run not in known:
                    words = [word for word, _ in split.pre_tokenize_str(run)]
                    known[run] = " ".join(self._signed(word) for word in words)
            seen.update(runs)
            yield " ".join([known[run] for run in runs])
            if len(known) > _MOST_WORDS:
                self._count(seen, known)
                known.clear()
        self._count(seen, known)

    def _signed(self, word: str) -> str:
        letter = word[0] if self.end == "first" else word[-1]
        if letter not in self.signs and _FIRST_SIGN + len(self.signs) <= _LAST_SIGN:
            self.signs[letter] = chr(_FIRST_SIGN + len(self.signs))
        sign = self.signs.get(letter, letter)
        return sign + word[1:] if self.end == "first" else word[:-1] + sign

    def _count(self, seen: Counter[str], known: dict[str, str]) -> None:
        for run, number in seen.items():
            for letter in known[run]:
                self.counts[letter] += number
        seen.clear()


def settled(tokenizer: Tokenizer, specials: int, *, size: int) -> Tokenizer:
    """A unigram tokenizer cut to `size`, with scores rounded and pieces sorted by score.

    Pieces that mix letters with signs ("however,") are dropped: the papers' vocabularies have none,
    and they hide where words end. The trainer needs them all the same: it counts a word once for
    each form it occurs in, and would miss "that" if it never met "that,". Its sums follow the order
    of a hash map, which changes scores in the eleventh digit; and letters that it had dropped come
    back in that order, with scores a ten-thousandth apart.
    """
    settings = json.loads(tokenizer.to_str())
    learned: list[tuple[str, float]] = [tuple(entry) for entry in settings["model"]["vocab"]]
    special_entries, rest = learned[:specials], dict(learned[specials:])
    singles = [piece for piece in rest if len(piece) == 1]
    lowest = min(rest.values(), default=0.0)
    dropped = sorted(p for p in singles if rest[p] <= lowest + 1e-4 * (len(singles) + 1))
    for number, piece in enumerate(dropped):
        rest[piece] = round(lowest, 3) + 1e-4 * number
    scores = {p: s if p in dropped else round(s, 3) for p, s in rest.items() if not _mixes_signs(p)}
    ordered = sorted(scores.items(), key=lambda entry: (-entry[1], entry[0]))
    room = size - specials - len(singles)
    if room < 0:
        raise too_small(size)
    longer = [piece for piece, _ in ordered if len(piece) > 1][:room]
    fitting = {*longer, *singles}
    ordered = [entry for entry in ordered if entry[0] in fitting]
    settings["model"]["vocab"] = [list(entry) for entry in [*special_entries, *ordered]]
    return Tokenizer.from_str(json.dumps(settings))


def too_small(size: int) -> UserError:
    """The error for a unigram vocabulary that is too small for the single characters."""
    return UserError(
        f"tokenizer.vocabulary = {size}: is too small, because unigram keeps every character"
        " and the text has more of them; raise it"
    )


def _mixes_signs(piece: str) -> bool:
    """Whether a piece has both signs and other characters."""
    kinds = {kind(letter) for letter in piece.replace("▁", "")}
    return "sign" in kinds and len(kinds) > 1

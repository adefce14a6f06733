"""Learning pieces so that the same text always gives the same vocabulary.

The library's trainers number affixed letters (`##a`, `a</w>`) in the order of a hash map that is
seeded anew in every process, and ties between merges follow those numbers. So the letters that
differ by their place in a word are made different characters before training, in the order the
text brings them, and are named after it.
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

_FIRST_SIGN, _LAST_SIGN = 0xF0000, 0x10FFFD  # the private planes: no text uses them for letters
_MOST_WORDS = 1 << 20  # remembered, before they are forgotten


@dataclass
class Letters:
    """Texts on their way to a trainer, the first or last letter of each word replaced by a sign."""

    normalizer: normalizers.Normalizer
    end: Literal["first", "last"]
    signs: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def learn(
        self, texts: Iterator[str], *, size: int, affix: str
    ) -> tuple[list[str], list[tuple[str, str]]]:
        """At most `size` pieces in the order they were learned, single letters first; the merges.

        With marked first letters every other piece takes the affix in front (`##`), with marked
        last letters a word's last piece takes it behind (`</w>`).
        """
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.BpeTrainer(vocab_size=max(size, 1), show_progress=False)
        tokenizer.train_from_iterator(self._marked(texts), trainer)
        model = json.loads(tokenizer.to_str())["model"]
        plain = {sign: letter for letter, sign in self.signs.items()}
        self.counts.pop(" ", None)
        alphabet = sorted(self.counts, key=lambda letter: (-self.counts[letter], letter))
        # Rare letters would crowd a small vocabulary out.
        frequent = set(alphabet[: min(max(size // 3, 256), max(size, 0))])

        def named(piece: str) -> str:
            spelled = "".join(plain.get(letter, letter) for letter in piece)
            if self.end == "first":
                return spelled if piece[:1] in plain else affix + spelled
            return spelled + affix if piece[-1:] in plain else spelled

        merges = [pair for pair in model["merges"] if frequent.issuperset("".join(pair))]
        merged = list(dict.fromkeys(map("".join, merges)))
        singles = sorted(alphabet[: max(size - len(merged), len(frequent))])  # fill what is left
        pieces = list(dict.fromkeys(named(piece) for piece in [*singles, *merged]))
        return pieces, [(named(left), named(right)) for left, right in merges]

    def _marked(self, texts: Iterator[str]) -> Iterator[str]:
        """The texts, normalised, words with a space between and their sign set."""
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
    """A unigram tokenizer cut to size, its scores rounded and its pieces in order.

    Pieces that mix letters with signs ("however,") go: the papers' vocabularies have none, and
    they hide where words end. The trainer needs them all the same: it counts a word once for each
    form it occurs in, and would miss "that" if it never met "that,". Its sums follow the order of
    a hash map too, which moves scores in the eleventh digit; and letters it had dropped come back
    in that order with penalties a ten-thousandth apart.
    """
    settings = json.loads(tokenizer.to_str())
    learned: list[tuple[str, float]] = [tuple(entry) for entry in settings["model"]["vocab"]]
    head, rest = learned[:specials], dict(learned[specials:])
    singles = [piece for piece in rest if len(piece) == 1]
    lowest = min(rest.values(), default=0.0)
    dropped = sorted(p for p in singles if rest[p] <= lowest + 1e-4 * (len(singles) + 1))
    for number, piece in enumerate(dropped):
        rest[piece] = round(lowest, 3) + 1e-4 * number
    scores = {p: s if p in dropped else round(s, 3) for p, s in rest.items() if not _mixed(p)}
    ordered = sorted(scores.items(), key=lambda entry: (-entry[1], entry[0]))
    room = size - specials - len(singles)
    if room < 0:
        raise too_small(size)
    longer = [piece for piece, _ in ordered if len(piece) > 1][:room]
    fitting = {*longer, *singles}
    ordered = [entry for entry in ordered if entry[0] in fitting]
    settings["model"]["vocab"] = [list(entry) for entry in [*head, *ordered]]
    return Tokenizer.from_str(json.dumps(settings))


def too_small(size: int) -> UserError:
    """What to say where not even the single characters fit a unigram vocabulary."""
    return UserError(
        f"tokenizer.vocabulary = {size}: unigram keeps every character, and the text has more than"
        " that; give it more room"
    )


def _mixed(piece: str) -> bool:
    """Whether a piece has both letters (or digits) and signs."""
    kinds = {kind(letter) for letter in piece.replace("▁", "")}
    return "sign" in kinds and len(kinds) > 1

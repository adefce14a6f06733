"""Words in messages: the nearest known word for a mistyped name, lists, and counts."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LEAST_PREFIX = 3  # letters: fewer begin too many words
_MEANT = {"gpu": "cuda"}  # words that users try, and those that they mean


def nearest(word: str, words: Iterable[str], *, alike: float = 0.6) -> str | None:
    """The most similar of `words`, if its similarity is at least `alike` (0 to 1).

    A word that differs only by two neighbouring letters in the wrong order comes first, then one
    that begins with these letters.
    """
    words = list(words)
    if _MEANT.get(word) in words:
        return _MEANT[word]
    letters = zip(range(len(word)), word, word[1:], strict=False)
    swapped = {f"{word[:at]}{second}{first}{word[at + 2 :]}" for at, first, second in letters}
    begun = len(word.lstrip("-")) >= _LEAST_PREFIX
    longer = sorted((each for each in words if begun and each.startswith(word)), key=len)
    close = get_close_matches(word, longer, 1, alike) or longer
    close = close or get_close_matches(word, words, 1, alike)
    return next(iter([*(each for each in words if each in swapped), *close]), None)


def remedy(word: str, allowed: Iterable[str]) -> str:
    """The end of an error: the nearest allowed word, or all of them."""
    words = list(allowed)
    meant = nearest(word, words)
    if meant is not None:
        return f"did you mean {meant}?"
    return f"use {listed(words)}" if words else "leave it out"


def listed(words: Iterable[str], *, conjunction: str = "or") -> str:
    """Words as a list in a sentence: a, b or c."""
    *others, last = words
    return f"{', '.join(others)} {conjunction} {last}" if others else last


def counted(number: int, noun: str) -> str:
    """A number of things: 1 step, 2 steps."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

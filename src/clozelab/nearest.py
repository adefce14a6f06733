"""The word that was meant: what every mistyped name is answered with."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, words: Iterable[str], *, alike: float = 0.6) -> str | None:
    """The word among some that is most like another, if any is (0: any is, 1: only itself)."""
    return next(iter(get_close_matches(word, list(words), 1, alike)), None)


def remedy(word: str, allowed: Iterable[str]) -> str:
    """The nearest allowed word, or all of them."""
    words = list(allowed)
    meant = nearest(word, words)
    if meant is not None:
        return f"did you mean {meant}?"
    return f"use {listed(words)}" if words else "leave it out"


def listed(words: Iterable[str], *, conjunction: str = "or") -> str:
    """Words in a row: a, b or c."""
    *most, last = words
    return f"{', '.join(most)} {conjunction} {last}" if most else last

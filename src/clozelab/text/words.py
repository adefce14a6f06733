"""Where words begin, from the text itself, so that they are the same under every tokenizer.

A word is a run of letters and digits; a punctuation mark and an ideograph are words by themselves
(BERT's basic tokenization). In scripts without spaces, words may be found by a segmenter.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from typing import Literal

import numpy as np

from clozelab.contracts import Bools

# The blocks that BERT's normaliser surrounds with spaces.
IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
IDEOGRAPH_CLASS = "".join(f"{chr(first)}-{chr(last)}" for first, last in IDEOGRAPHS)

Kind = Literal["space", "sign", "ideograph", "letter"]


@cache
def kind(character: str) -> Kind:
    """Whether a character separates words (space), is a word by itself, or part of one (letter)."""
    code = ord(character)
    if character.isspace() and not "\x1c" <= character <= "\x1f":  # as in the tokenizers library
        return "space"
    if any(first <= code <= last for first, last in IDEOGRAPHS):
        return "ideograph"
    ascii_sign = code < 128 and not character.isalnum() and code > 32 and code != 127
    if ascii_sign or unicodedata.category(character).startswith("P"):
        return "sign"
    return "letter"


def after_space(text: str, firsts: Sequence[int]) -> list[int]:
    """The first characters of tokens, moved behind the spaces that a token begins with."""
    positions = []
    for first in firsts:
        at = first
        while at < len(text) and kind(text[at]) == "space":
            at += 1
        positions.append(at)
    return positions


def begins(text: str, firsts: Sequence[int]) -> list[bool]:
    """Which tokens begin a word, from their first characters as `after_space` gives them.

    Of several tokens that begin at the same character (bytes of an emoji, a lone space and the
    word after it) only the first does.
    """
    kinds = ["space", *map(kind, text), "sign"]  # one more before and after the text
    return [
        at != before and (kinds[at + 1] in ("sign", "ideograph") or kinds[at] != "letter")
        for before, at in pairwise([-1, *firsts])
    ]


def words(text: str) -> list[tuple[int, int]]:
    """The words of a text as half-open spans of characters; a segmented word is one."""
    kinds = list(map(kind, text))
    places = [at for at, kind_here in enumerate(kinds) if kind_here != "space"]
    inside = np.zeros(len(text), dtype=bool)
    if "ideograph" in kinds and segmenter():
        inside, _ = inside_segments(text)
    spans: list[tuple[int, int]] = []
    for at, first in zip(places, begins(text, places), strict=True):
        if not spans or (first and not inside[at]):
            spans.append((at, at + 1))
        else:
            spans[-1] = (spans[-1][0], at + 1)
    return spans


def segmenter() -> str | None:
    """The name and version of the Chinese segmenter; None where it is not installed."""
    if find_spec("rjieba") is None:
        return None
    from importlib.metadata import version

    return f"rjieba {version('rjieba')}"


def inside_segments(sentence: str) -> tuple[Bools, bool]:
    """[characters] which continue a segmented word with ideographs, and whether segmenting failed.

    It fails where the segmenter's words do not spell the sentence; then none does.
    """
    import rjieba

    inside = np.zeros(len(sentence), dtype=bool)
    words = rjieba.cut(sentence)
    if "".join(words) != sentence:
        return inside, True
    at = 0
    for word in words:
        inside[at + 1 : at + len(word)] = any(kind(letter) == "ideograph" for letter in word)
        at += len(word)
    return inside, False

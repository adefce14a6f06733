"""Texts that a function is given: as they are, from a file, or from standard input for -."""

from __future__ import annotations

import sys
from pathlib import Path

from clozelab.errors import UserError

STDIN = "standard input"


def read_text(word: str, place: str) -> str:
    """The text that a command was given, which is that of standard input for -."""
    return read_file("-") if word == "-" else sound(word, place)


def read_file(file: str) -> str:
    """All of a file, or of standard input for -; a mark of byte order is not part of it."""
    try:
        if file == "-":
            return sound(sys.stdin.read(), STDIN)
        return Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        place = STDIN if file == "-" else file
        raise UserError(f"{place}: is not UTF-8 text; convert it to UTF-8") from None


def lines_of(file: str) -> list[str]:
    """The texts of a file or of standard input, one a line."""
    text = read_file(file)
    # Not splitlines: U+2028 and its like stand inside a text.
    return text.removesuffix("\n").split("\n") if text else []


def sound(text: str, place: str) -> str:
    """The text, where it is UTF-8: the system lets other bytes pass as characters that are none."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError:
        raise UserError(f"{place}: is not UTF-8 text; convert it to UTF-8") from None

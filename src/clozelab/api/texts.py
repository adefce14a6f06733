"""Texts that a function is given, from a file or from standard input, and files that it writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clozelab.api.watching import Watch
from clozelab.errors import UserError
from clozelab.files import check_output, write_text
from clozelab.runs.directory import machine_facts

STDIN = "standard input"


def read_text(word: str, place: str) -> str:
    """The text that a command was given, which is that of standard input for -."""
    return read_file("-") if word == "-" else sound(word, place)


def read_file(file: str) -> str:
    """All of a file, or of standard input for -; a mark of byte order is not part of it."""
    try:
        if file == "-":
            return sound(sys.stdin.read(), STDIN).removeprefix("\ufeff")
        return Path(file).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{file}: does not exist; name a file with text") from None
    except IsADirectoryError:
        raise UserError(f"{file}: is a folder; name a file with text") from None
    except UnicodeDecodeError:
        raise _not_utf8(shown_name(file)) from None


def lines_of(file: str) -> list[str]:
    """The texts of a file or of standard input, one a line; a file without any is refused.

    An empty line is an empty text, so that the number of a text is that of its line.
    """
    text = read_file(file)
    refuse_empty([text], shown_name(file), fix="write one text per line")
    # Not splitlines: U+2028 and its like stand inside a text.
    return text.removesuffix("\n").split("\n")


def shown_name(file: str) -> str:
    """The name of a file in messages."""
    return STDIN if file == "-" else file


def refuse_empty(texts: Sequence[str], place: str, *, fix: str = "give a text") -> None:
    """Refuse texts that are all empty; an empty one among others keeps its place."""
    if not any(text.strip() for text in texts):
        raise UserError(f"{place}: is empty; {fix}")


def count_empty(texts: Sequence[str], file: str, watch: Watch) -> None:
    """Say how many lines of a file are empty, if any."""
    if empty := sum(not text.strip() for text in texts):
        watch.warn(f"{shown_name(file)}: empty lines: {empty:,}")


def sound(text: str, place: str) -> str:
    """The text, where it is UTF-8: the system lets other bytes pass as characters that are none."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError:
        raise _not_utf8(place) from None


def _not_utf8(place: str) -> UserError:
    return UserError(f"{place}: is not UTF-8 text; convert it to UTF-8")


def refuse_existing(*places: str | None, overwrite: bool) -> None:
    """Refuse to write over files, unless they are to be replaced; None is no file."""
    for place in filter(None, places):
        check_output(Path(place), overwrite=overwrite)


def write_lines(place: str, lines: Iterable[str]) -> None:
    """Write a file, line by line."""
    write_text(Path(place), "".join(f"{line}\n" for line in lines))


def write_record(place: str, record: Mapping[str, Any]) -> None:
    """Write what came out as JSON, with the machine that it was computed on."""
    whole = {"machine": machine_facts(), **record}
    write_lines(place, [json.dumps(whole, indent=1, ensure_ascii=False)])

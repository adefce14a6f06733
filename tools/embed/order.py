"""Fixed orders that no Python version can change, and plain text tidied."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Document = dict[str, str]
Row = Sequence[str]


def shuffled(items: Iterable[Item], key: Callable[[Item], str], salt: str) -> list[Item]:
    """A fixed shuffle that no Python version can change: the order of the items' hashes."""
    return sorted(items, key=lambda item: (_digest(salt, key(item)), key(item)))


def chance(salt: str, text: str) -> float:
    """A number in [0, 1) that depends on ``text`` alone."""
    return int(_digest(salt, text)[:12], 16) / 16**12


def _digest(salt: str, text: str) -> str:
    return hashlib.sha256(f"{salt}\0{text}".encode()).hexdigest()


def tidy(text: str) -> str:
    """Plain quotes, long dashes, single spaces, no marks of emphasis."""
    text = unicodedata.normalize("NFC", text)
    text = re.sub("[\u201c\u201d]", '"', re.sub("[\u2018\u2019\u00b4]", "'", text))
    text = re.sub(r"(?<!\w)_([^_\n]+?)_(?!\w)", r"\1", text)
    text = re.sub(r"(?<!-)--+(?!\w*=)", "—", text)
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"(?<=\w) (?=[,;:](?: |$))", "", text)


def join_lines(lines: Iterable[str]) -> str:
    """Undo hard wrapping, also where it cut just inside a bracket, a quotation or an address."""
    text = ""
    for line in (line.strip() for line in lines):
        closes = re.match(r"[\u201d\u2019),;:?!}\]]+(?=[\s,.;:?!)\]]|$)|\.(?=\s|$)", line)
        opens = re.search(r"[\u201c\u2018({\[]$|https?://$|(?<=\w)[/-]$", text)
        glue = "" if not text or closes or opens else " "
        text += glue + line
    return text


def blocks(text: str) -> list[list[str]]:
    """The runs of lines between blank lines."""
    return [block.split("\n") for block in re.split(r"\n\s*\n", text.strip("\n")) if block.strip()]

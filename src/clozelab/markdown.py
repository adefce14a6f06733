"""Texts of a user's in Markdown: shown as they are, never taken for marks, tags or links."""

from __future__ import annotations

import re


def plain(text: str) -> str:
    """A text on one line, in which nothing is a mark of Markdown or HTML, nor ends a cell."""
    text = re.sub(r"([\\`*\[\]|~]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def fenced(text: str, language: str = "") -> str:
    """A block of code between fences that are longer than any in it."""
    text = text.strip("\n")
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"

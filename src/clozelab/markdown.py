"""Text of users in Markdown: escaped, so that it is never read as markup, tags or links."""

from __future__ import annotations

import re


def plain(text: str) -> str:
    """A text on a line of its own, with everything escaped that has a meaning there."""
    # What begins a heading, an item or a rule where it begins a line.
    return re.sub(r"^(\d*)([#+=.)-])(?=[#=-]*(\s|$))", r"\1\\\2", within(text))


def within(text: str) -> str:
    """A text within a line or a table, with what Markdown or HTML would read as markup escaped."""
    text = re.sub(r"([\\`*\[\]|~]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def fenced(text: str, language: str = "") -> str:
    """A code block, with fences longer than any inside it."""
    text = text.strip("\n")
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"

"""The parts of a page that a script writes: between `<!-- NAME -->` and `<!-- end of NAME -->`."""

from __future__ import annotations

import re


def replaced(page: str, name: str, body: str) -> str:
    """The page with a new body between the marks of a name; the first mark may name the script."""
    begin, end = rf"<!-- {re.escape(name)}(?:: \S+)? -->", f"<!-- end of {re.escape(name)} -->"
    pattern = re.compile(f"({begin}\n).*?({end})", flags=re.DOTALL)
    page, count = pattern.subn(lambda match: f"{match[1]}{body}\n{match[2]}", page)
    if count != 1:
        raise SystemExit(f"a page has no one place for <!-- {name} --> … <!-- end of {name} -->")
    return page

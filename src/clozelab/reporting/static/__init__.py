"""The files that pages carry in them: style sheets and scripts."""

from __future__ import annotations

import re
from importlib import resources

_CODE = re.compile(r"""("[^"\n]*"|`[^`]*`)|[ \t]*([=+\-*/<>?:,;{}()\[\]|&!])[ \t]*""")


def text_of(name: str) -> str:
    """The text of a file."""
    file = resources.files("clozelab") / "reporting" / "static" / name
    return file.read_text(encoding="utf-8")


def script(name: str) -> str:
    """A script without its comments and most of its spaces, to be carried in every page."""
    lines = (line.split(" // ")[0].strip() for line in text_of(name).splitlines())
    code = "\n".join(line for line in lines if line and not line.startswith("//"))
    return _CODE.sub(lambda match: match[1] or match[2], code) + "\n"

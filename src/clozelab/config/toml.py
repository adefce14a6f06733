"""TOML files: finding, reading and writing them.

Recipes, protocols and studies of the package are found by name, those of the user by path.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from clozelab.errors import UserError
from clozelab.nearest import remedy

Table = dict[str, Any]


class Source(NamedTuple):
    """The text of a TOML file, its name in errors, and its path."""

    text: str
    place: str
    path: Path | None  # None: it comes with the package

    def tables(self) -> Table:
        """The tables that the text holds."""
        return decode(self.text, self.place)

    def beside(self, word: str) -> str:
        """A name unchanged, or a path relative to this file's folder."""
        return str(Path(self.place).parent / word) if is_path(word) else word


@dataclass(frozen=True)
class Shelf:
    """All TOML files of one kind."""

    kind: str  # what errors call one, as in "recipe"
    folder: str  # the package's folder of them

    def names(self) -> list[str]:
        """The names of those that come with the package."""
        return [*_packaged(self.folder)]

    def find(self, name_or_path: str | Path) -> Source:
        """The file of that name, or at that path."""
        word = str(name_or_path)
        if not isinstance(name_or_path, str | Path):
            raise UserError(
                f"{self.kind} {word}: is not a name or a path; give a {self.kind}'s name or the"
                " path of a TOML file"
            )
        if isinstance(name_or_path, Path) or is_path(word):
            path = Path(name_or_path)
            if (path / f"{self.kind}.toml").is_file():
                raise UserError(f"{path} is a folder; name {path / self.kind}.toml in it")
            if not path.is_file():
                raise UserError(
                    f"{path} does not exist; give a {self.kind}'s name or the path of a TOML file"
                )
            return Source(path.read_text(encoding="utf-8-sig", errors="replace"), str(path), path)
        known = _packaged(self.folder)
        if word not in known:
            fix = remedy(word, known)
            more = f" (there are {', '.join(known)})" if fix.startswith("did") else ""
            raise UserError(f"{self.kind} {word} is unknown; {fix}{more}")
        return Source(known[word], word, None)


@cache
def _packaged(folder: str) -> dict[str, str]:
    """By name, the texts of the TOML files in a folder of the package."""
    files = resources.files("clozelab").joinpath(*folder.split("/")).iterdir()
    texts = {file.name[:-5]: file for file in files if file.name.endswith(".toml")}
    return {name: texts[name].read_text("utf-8") for name in sorted(texts)}


RECIPES = Shelf("recipe", "config/recipes")
PROTOCOLS = Shelf("protocol", "config/protocols")
STUDIES = Shelf("study", "studies/papers")


def is_path(word: str) -> bool:
    """Whether a word is a file's path and not a name."""
    return word.endswith(".toml") or "/" in word


def decode(text: str, place: str) -> Table:
    """The tables that a text holds; `place` is its name in errors."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{place} is not valid TOML: {error}; fix the file") from None


def to_toml(tables: Mapping[str, Any]) -> str:
    """Tables as TOML that reads back equal; values that are None are left out."""
    return "\n".join(_lines(tables, "")).strip("\n") + "\n"


def written(value: Any) -> str:
    """A value as TOML."""
    if type(value).__module__ == "numpy":  # a float32 as it is shown, without more digits
        numbers = value.tolist()
        return written(float(str(value)) if isinstance(numbers, float) else numbers)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, PurePath):
        value = str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(written(item) for item in value)}]"
    if isinstance(value, Mapping):
        pairs = (f"{written(name)} = {written(item)}" for name, item in value.items())
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    return repr(float(value)) if isinstance(value, float) else repr(value)


def _lines(tables: Mapping[str, Any], above: str) -> list[str]:
    """The lines of a table: plain values, then inner tables and lists of tables with headers."""
    inner = {name: value for name, value in tables.items() if _is_table(value)}
    lines = [
        f"{_key(name)} = {written(value)}"
        for name, value in tables.items()
        if name not in inner and value is not None
    ]
    for name, value in inner.items():
        head = f"{above}{_key(name)}"
        if isinstance(value, Mapping):
            lines += ["", f"[{head}]", *_lines(value, f"{head}.")]
        else:
            for table in value:
                lines += ["", f"[[{head}]]", *_lines(table, f"{head}.")]
    return lines


def _is_table(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(item, Mapping) for item in value)
    return isinstance(value, Mapping)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else written(name)

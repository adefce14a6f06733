"""A file's text, plain or packed: found by its name with or without .xz or .gz, and decoded."""

from __future__ import annotations

import gzip
import json
import lzma
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clozelab.errors import UserError
from clozelab.nearest import nearest

PACKINGS = (".xz", ".gz")
_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def found(path: Path) -> Path | None:
    """The file of that name, or the packed one; None where there is neither."""
    candidates = (path, *(path.parent / f"{path.name}{packing}" for packing in PACKINGS))
    return next((candidate for candidate in candidates if candidate.exists()), None)


def located(path: Path) -> Path:
    """The file of that name, or the packed one; refused where there is neither."""
    if (there := found(path)) is not None:
        return there
    folder = path.parent
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    meant = nearest(path.name, names, alike=0.5)
    hint = f"did you mean {folder / meant}?" if meant else "check the path"
    raise UserError(f"there is no file {path}, nor {path.name}.xz or {path.name}.gz: {hint}")


def suffix(path: Path) -> str:
    """How the name ends without its packing, in small letters: ".tsv" of a.TSV.xz."""
    name = path.with_suffix("") if path.suffix.lower() in PACKINGS else path
    return name.suffix.lower()


def content(path: Path) -> bytes:
    """The bytes of a file, unpacked."""
    packing = path.suffix.lower()
    try:
        packed = path.read_bytes()
        if packing == ".xz":
            return lzma.decompress(packed)
        return gzip.decompress(packed) if packing == ".gz" else packed
    except (PermissionError, IsADirectoryError) as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): name another file") from None
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise UserError(
            f"{path} is cut short or no {packing} file ({error}): fetch or pack it again"
        ) from None


def text(path: Path) -> str:
    """The text of a file, without its byte order mark; ends of lines are made "\\n"."""
    whole = content(path)
    try:
        decoded = whole.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = whole.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}:{number} is not UTF-8 (byte 0x{whole[error.start]:02X}):"
            " save the file as UTF-8"
        ) from None
    return decoded.replace("\r\n", "\n")


def lines(path: Path) -> list[str]:
    """The lines of a file, ended by "\\n" or "\\r\\n" alone; blank ones at the end are left out."""
    every = text(path).split("\n")
    while every and not every[-1].strip():
        every.pop()
    return every


def parsed(source: str, path: Path, *, line: int = 1) -> Any:
    """What JSON that begins on that line of a file says."""
    try:
        value = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise _broken(error, path, before=line - 1) from None
    return _whole(value) if _ESCAPED_HALF.search(source) else value


def elements(source: str, path: Path) -> Iterator[tuple[int, Any]]:
    """The values of a JSON array, each with the line it begins on."""
    decoder = json.JSONDecoder()
    counted, at, line = 0, source.index("[") + 1, 1
    while True:
        while source[at : at + 1].isspace() or source.startswith(",", at):
            at += 1
        line += source.count("\n", counted, at)
        counted = at
        if source.startswith("]", at):
            return
        try:
            value, at = decoder.raw_decode(source, at)
        except (ValueError, RecursionError) as error:
            raise _broken(error, path) from None
        yield line, _whole(value) if _ESCAPED_HALF.search(source, counted, at) else value


def _broken(error: Exception, path: Path, *, before: int = 0) -> UserError:
    line = before + (error.lineno if isinstance(error, json.JSONDecodeError) else 1)
    reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
    return UserError(f"{path}:{line} is not JSON ({reason}): fix it, or fetch the file again")


def _whole(value: Any) -> Any:
    """The value with every half of a surrogate pair, which JSON may hold alone, made U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole(entry) for entry in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(entry) for key, entry in value.items()}
    return value

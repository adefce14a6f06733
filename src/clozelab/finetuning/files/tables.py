"""Read a file of records, each with its line: TSV as in GLUE, CSV, JSON, Parquet.

A file may be compressed as .xz or .gz, and is found by its name with or without that suffix.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.nearest import nearest
from clozelab.separators import check_separators

JSON = (".jsonl", ".ndjson", ".json")
CUT_SHORT = "rows cut short skipped"
PACKINGS = (".xz", ".gz")
_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def existing(path: Path) -> Path | None:
    """The file of that name, or the compressed one; None if there is neither."""
    candidates = (path, *(path.parent / f"{path.name}{packing}" for packing in PACKINGS))
    return next((candidate for candidate in candidates if candidate.exists()), None)


def located(path: Path) -> Path:
    """The file of that name, or the compressed one; refused if there is neither."""
    if (file := existing(path)) is not None:
        return file
    folder = path.parent
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    meant = nearest(path.name, names, alike=0.5)
    hint = f"did you mean {folder / meant}?" if meant else "check the path"
    raise UserError(f"{path} does not exist, nor {path.name}.xz or {path.name}.gz; {hint}")


def suffix(path: Path) -> str:
    """The suffix without compression, in lower case: ".tsv" of a.TSV.xz."""
    name = path.with_suffix("") if path.suffix.lower() in PACKINGS else path
    return name.suffix.lower()


def content(path: Path) -> bytes:
    """The bytes of a file, decompressed."""
    packing = path.suffix.lower()
    try:
        packed = path.read_bytes()
        if packing == ".xz":
            return lzma.decompress(packed)
        return gzip.decompress(packed) if packing == ".gz" else packed
    except (PermissionError, IsADirectoryError) as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); name another file") from None
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise UserError(
            f"{path} is truncated or not a {packing} file ({error}); download or compress it again"
        ) from None


def text(path: Path) -> str:
    """The text of a file without byte order mark, with line ends "\\n"."""
    encoded = content(path)
    try:
        decoded = encoded.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = encoded.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}:{number} is not UTF-8 (byte 0x{encoded[error.start]:02X}); save the file"
            " as UTF-8"
        ) from None
    return decoded.replace("\r\n", "\n")


def lines(path: Path) -> list[str]:
    """The lines of a file, ended by "\\n" or "\\r\\n" alone; blank ones at the end are left out."""
    rows = text(path).split("\n")
    while rows and not rows[-1].strip():
        rows.pop()
    return rows


def parsed(source: str, path: Path, *, line: int = 1) -> Any:
    """The value of JSON text; `line` is its first line in the file, for errors."""
    try:
        value = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise _json_error(error, path, before=line - 1) from None
    return _repaired(value) if _ESCAPED_HALF.search(source) else value


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
            rest = source[at + 1 :].lstrip()
            if rest:  # such as a second array, which would be lost
                extra = json.JSONDecodeError("Extra data", source, len(source) - len(rest))
                raise _json_error(extra, path)
            return
        try:
            value, at = decoder.raw_decode(source, at)
        except (ValueError, RecursionError) as error:
            raise _json_error(error, path) from None
        yield line, _repaired(value) if _ESCAPED_HALF.search(source, counted, at) else value


def _json_error(error: Exception, path: Path, *, before: int = 0) -> UserError:
    line = before + (error.lineno if isinstance(error, json.JSONDecodeError) else 1)
    reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
    return UserError(f"{path}:{line} is not JSON ({reason}); fix it, or download the file again")


def _repaired(value: Any) -> Any:
    """The value with U+FFFD for each half of a surrogate pair that stands alone."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_repaired(entry) for entry in value]
    if isinstance(value, dict):
        return {_repaired(key): _repaired(entry) for key, entry in value.items()}
    return value


class Record(NamedTuple):
    """One record, and the file and line it begins on."""

    place: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """Records of a file; without a header line, columns are named "0", "1", …"""

    name: str
    columns: tuple[str, ...]
    rows: Sequence[Record]


def table(path: Path, *, header: bool = True, skips: Counts | None = None) -> Table:
    """The records of a file, whose format is told by its suffix, by default TSV.

    A row with too many or too few cells is refused, or, with `skips`, left out and counted.
    """
    kind = suffix(path)
    if kind == ".parquet":
        return _read_parquet(path)
    if kind in JSON:
        return _read_json(path)
    separated = _read_csv(path) if kind == ".csv" else _read_tsv(path)
    return _build_table(path, separated, header=header, skips=skips)


def _read_json(path: Path) -> Table:
    """The records of a file of JSON lines, or of one array."""
    source = text(path)
    if source.lstrip().startswith("["):
        values = elements(source, path)
    else:
        lines = enumerate(source.split("\n"), 1)
        values = ((n, parsed(line, path, line=n)) for n, line in lines if line.strip())
    rows = [Record(f"{path}:{number}", value) for number, value in values]
    if not rows:
        raise empty(path)
    names: dict[str, None] = {}  # in the order met
    for row in rows:
        if not isinstance(row.values, dict):
            raise UserError(
                f"{row.place} holds a JSON {type(row.values).__name__} instead of a record"
                " {...}; write one record per line"
            )
        names.update(dict.fromkeys(row.values))
    return Table(str(path), tuple(names), rows)


def empty(path: Path) -> UserError:
    """The error for an empty file."""
    return UserError(f"{path} is empty; add examples, or name another file")


def _read_tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    # No quoting: in GLUE's files a quotation mark is a character, and often stands alone.
    for number, line in enumerate(lines(path), 1):
        yield number, line.split("\t")


def _read_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(2**31 - 1)  # a field may hold an article
    source = text(path)
    reader = csv.reader(io.StringIO(source, newline=""), strict=True)
    number = 1
    try:
        for cells in reader:
            if cells:
                yield number, cells
            number = reader.line_num + 1
    except csv.Error as error:
        if number == 1:
            check_separators(str(path), next(csv.reader(source.splitlines()[:1])))
        raise UserError(
            f"{path}:{number} is not CSV ({error}): fix its quotation marks, or name a TSV .tsv"
        ) from None


def _build_table(
    path: Path, separated: Iterator[tuple[int, list[str]]], *, header: bool, skips: Counts | None
) -> Table:
    first = next(separated, None)
    if first is None:
        raise empty(path)
    if header:
        check_separators(str(path), first[1])
    names = tuple(cell.strip() if header else str(n) for n, cell in enumerate(first[1]))
    rows = []
    for number, values in chain([] if header else [first], separated):
        place = f"{path}:{number}"
        if len(values) == len(names):
            rows.append(Record(place, dict(zip(names, values, strict=True))))
        elif skips is None:
            raise UserError(
                f"{place} has {len(values)} columns where {len(names)} are expected: fix the line"
                " (no tab or line end may stand inside a cell of a TSV; a CSV quotes those)"
            )
        else:
            skips.add(CUT_SHORT, place)
    if not rows:
        raise UserError(f"{path} has a header line and no rows; add examples")
    return Table(str(path), names, rows)


def _read_parquet(path: Path) -> Table:
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    try:
        read = parquet.read_table(arrow.BufferReader(content(path)))
    except (OSError, arrow.ArrowException) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{path} is truncated or not a Parquet file ({reason}); download or write it again"
        ) from None
    rows = [Record(f"{path}:{number}", values) for number, values in enumerate(read.to_pylist(), 1)]
    if not rows:
        raise empty(path)
    return Table(str(path), tuple(read.column_names), rows)

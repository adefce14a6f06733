"""A file of records → its rows, each with its place: TSV as GLUE writes it, CSV, JSON, Parquet."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.finetuning.files.lines import content, elements, lines, parsed, suffix, text

JSON = (".jsonl", ".ndjson", ".json")
CUT_SHORT = "rows cut short skipped"


class Row(NamedTuple):
    """One record, and the file and line it begins on."""

    place: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """Records under one another; without a header line, columns go by number: "0", "1", …"""

    name: str
    columns: tuple[str, ...]
    rows: Sequence[Row]


def table(path: Path, *, header: bool = True, skips: Counts | None = None) -> Table:
    """The records of a file, by what its name says it holds; TSV where that says nothing.

    A row with too many or too few cells is refused, or, with `skips`, left out and counted.
    """
    kind = suffix(path)
    if kind == ".parquet":
        return _parquet(path)
    if kind in JSON:
        return _table(path, [Row(place, value) for place, value in _records(path)])
    separated = _csv(path) if kind == ".csv" else _tsv(path)
    return _separated(path, separated, header=header, skips=skips)


def _table(path: Path, rows: list[Row]) -> Table:
    if not rows:
        raise empty(path)
    names: dict[str, None] = {}  # in the order met
    for row in rows:
        if not isinstance(row.values, dict):
            raise UserError(
                f"{row.place} holds a JSON {type(row.values).__name__} where a record {{...}}"
                " should stand: write one record a line"
            )
        names.update(dict.fromkeys(row.values))
    return Table(str(path), tuple(names), rows)


def empty(path: Path) -> UserError:
    """What is said of a file with nothing in it."""
    return UserError(f"{path} is empty: write examples into it, or name another file")


def _tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    # No quoting: in GLUE's files a quotation mark is a character, and often stands alone.
    for number, line in enumerate(lines(path), 1):
        yield number, line.split("\t")


def _csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # a field may hold an article
    reader = csv.reader(io.StringIO(text(path), newline=""), strict=True)
    number = 1
    try:
        for cells in reader:
            if cells:
                yield number, cells
            number = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{path}:{number} is not CSV ({error}): fix its quotation marks, or name a TSV .tsv"
        ) from None


def _separated(
    path: Path,
    separated: Iterator[tuple[int, list[str]]],
    *,
    header: bool,
    skips: Counts | None,
) -> Table:
    cells = list(separated)
    if not cells:
        raise empty(path)
    first = cells[0][1]
    names = tuple(name.strip() for name in first) if header else _numbers(len(first))
    rows = []
    for number, values in cells[header:]:
        place = f"{path}:{number}"
        if len(values) == len(names):
            rows.append(Row(place, dict(zip(names, values, strict=True))))
        elif skips is None:
            raise UserError(
                f"{place} has {len(values)} columns where {len(names)} are expected: fix the line"
                " (no tab or line end may stand inside a cell of a TSV; a CSV quotes those)"
            )
        else:
            skips.add(CUT_SHORT, place)
    if not rows:
        raise UserError(f"{path} has a header line and nothing under it: write examples into it")
    return Table(str(path), names, rows)


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(count))


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """The values of a file of JSON lines, or of one array."""
    source = text(path)
    if source.lstrip().startswith("["):
        for number, value in elements(source, path):
            yield f"{path}:{number}", value
        return
    for number, line in enumerate(source.split("\n"), 1):
        if line and not line.isspace():
            yield f"{path}:{number}", parsed(line, path, line=number)


def _parquet(path: Path) -> Table:
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    try:
        read = parquet.read_table(arrow.BufferReader(content(path)))
    except (OSError, arrow.ArrowException) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{path} is cut short or no Parquet file ({reason}): fetch or write it again"
        ) from None
    rows = [Row(f"{path}:{number}", values) for number, values in enumerate(read.to_pylist(), 1)]
    if not rows:
        raise empty(path)
    return Table(str(path), tuple(read.column_names), rows)

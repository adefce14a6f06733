"""Tables: CSV and TSV, read line by line, and Parquet and Arrow, read by columns."""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Literal

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.text.reading.fields import LONGEST, no_field, read_record, short, whole_lines
from clozelab.text.reading.layouts import RawDocument, Reading
from clozelab.text.reading.lines import PACKINGS, Lines, shown

_ROWS = 256  # of a table, held at a time
_ARROW_FILE = b"ARROW1"  # how an Arrow file begins; an Arrow stream does not


def separated(
    lines: Lines, kind: Literal["csv", "tsv"], *, reading: Reading, counts: Counts
) -> Iterator[RawDocument]:
    """A document for each row of a table whose first line names its columns."""
    rows = (_csv if kind == "csv" else _tsv)(lines, counts=counts)
    number, header = next(rows, (1, []))
    names = [name.strip() for name in header]
    first: list[str] | None = None
    for number, cells in rows:
        if first is None:
            first = cells
            _check_header(lines.name, names, first, field=reading.field)
        place = f"{lines.name}:{number}"
        if len(cells) != len(names):
            counts.add("rows with more or fewer cells than the header skipped", place)
        else:
            yield from read_record(cells[names.index(reading.field)], place, counts=counts)
    if first is None and names:
        _check_header(lines.name, names, [], field=reading.field)


def _check_header(name: str, names: list[str], first: list[str], *, field: str) -> None:
    if len(names) == 1 and field in re.split(r"\W", names[0]) and field not in names:
        raise UserError(
            f"{name} has one column, {short(names[0])}: separate the cells of a .csv by commas,"
            " those of a .tsv by tabs"
        )
    if field not in names:
        cells = [*first, *[""] * len(names)]
        problem = no_field(name, field, dict(zip(names, cells, strict=False)))
        raise UserError(f"{problem} (the first line of a table names its columns)")
    if names.count(field) > 1:
        raise UserError(f"{name} has {names.count(field)} fields {field!r}: rename all but one")


def _tsv(lines: Lines, *, counts: Counts) -> Iterator[tuple[int, list[str]]]:
    # No quoting: in a TSV a quotation mark is a character, and often stands alone.
    for line in whole_lines(lines, counts=counts):
        if line and not line.isspace():
            yield lines.number, line.rstrip("\n").split("\t")


def _csv(lines: Lines, *, counts: Counts) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV and the lines they begin on; text in quotes may hold line ends."""
    csv.field_size_limit(LONGEST)
    reader = csv.reader(whole_lines(lines, counts=counts), strict=True)
    number = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "limit" in str(error) or "end of data" in str(error):
                raise UserError(
                    f"{lines.name}:{number} opens a quotation mark that is not closed within"
                    f" {LONGEST // 1_000_000} M characters: close it, or name a TSV .tsv"
                ) from None
            counts.add("broken CSV rows skipped", f"{lines.name}:{number}")
            cells = []
        if cells:
            yield number, cells
        number = lines.number + 1


def columnar(
    path: Path,
    stream: IO[bytes],
    kind: Literal["parquet", "arrow"],
    *,
    reading: Reading,
    counts: Counts,
) -> Iterator[tuple[float, RawDocument]]:
    """Each document of a table, and the share of the table read by then."""
    arrow = import_module("pyarrow")
    rows = _parquet if kind == "parquet" else _arrow
    row, name = 0, shown(path)
    try:
        with _seekable(path, stream) as file:
            for share, values in rows(file, name, field=reading.field):
                for value in values:
                    row += 1
                    for document in read_record(value, f"{name}:{row}", counts=counts):
                        yield share, document
    except (OSError, MemoryError, UnicodeDecodeError, arrow.ArrowException) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{name} is cut short, damaged or no {kind} file ({reason}): fetch or write it again"
        ) from None


@contextmanager
def _seekable(path: Path, stream: IO[bytes]) -> Iterator[IO[bytes]]:
    """The stream, unpacked on disk where it is packed: a table is not read from front to back."""
    if path.suffix.lower() not in PACKINGS:
        yield stream
        return
    with TemporaryFile() as file:
        shutil.copyfileobj(stream, file)
        file.seek(0)
        yield file


def _parquet(file: IO[bytes], name: str, *, field: str) -> Iterator[tuple[float, list[object]]]:
    # With a buffer size, column chunks are read as they are needed and not whole.
    table = import_module("pyarrow.parquet").ParquetFile(
        file, pre_buffer=False, buffer_size=1 << 20
    )
    _check_column(table.schema_arrow, name, field=field)
    done = 0
    for batch in table.iter_batches(_ROWS, columns=[field]):
        done += batch.num_rows
        yield done / max(table.metadata.num_rows, done), _valid(batch.column(0)).to_pylist()


def _arrow(file: IO[bytes], name: str, *, field: str) -> Iterator[tuple[float, list[object]]]:
    ipc = import_module("pyarrow.ipc")
    size = file.seek(0, 2)
    file.seek(0)
    whole = file.read(len(_ARROW_FILE)) == _ARROW_FILE
    file.seek(0)
    batches: Iterable[Any]
    if whole:
        table = ipc.open_file(file)
        batches = (table.get_batch(number) for number in range(table.num_record_batches))
    else:
        batches = table = ipc.open_stream(file)
    _check_column(table.schema, name, field=field)
    for batch in batches:
        column = _valid(batch.column(field))
        for start in range(0, len(column), _ROWS):
            yield file.tell() / size, column.slice(start, _ROWS).to_pylist()


def _valid(column: Any) -> Any:
    """A column that has been looked over: offsets of a damaged one lead anywhere in memory."""
    column.validate(full=True)
    return column


def _check_column(schema: Any, name: str, *, field: str) -> None:
    if field not in schema.names:
        raise no_field(name, field, dict.fromkeys(schema.names, ""))
    if schema.names.count(field) > 1:
        raise UserError(
            f"{name} has {schema.names.count(field)} fields {field!r}: rename all but one"
        )
    kind = str(schema.field(field).type)
    if "string" not in kind or kind.startswith(("list", "large_list", "struct", "map")):
        texts = [entry.name for entry in schema if "string" in str(entry.type)]
        raise UserError(
            f"{name} holds {kind}, not text, in its field {field!r}:"
            f" say --field {texts[0] if texts else 'NAME'}"
        )

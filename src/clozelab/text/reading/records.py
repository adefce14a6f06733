"""Documents from records, of which one field is the text, or several are texts that belong
together: JSON lines, CSV and TSV, read line by line; Parquet and Arrow, read by columns; datasets
of the Hugging Face hub, streamed."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import chain, takewhile
from tempfile import TemporaryFile
from typing import IO, Any

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.nearest import listed, nearest
from clozelab.remote.access import said
from clozelab.separators import check_separators, short
from clozelab.text.reading.layouts import CUT, LIMIT, RawDocument, Reading, cut
from clozelab.text.reading.lines import Lines, TextFile, is_disk_full

LONGEST = 4 * LIMIT  # characters of a record's line: its text, escapes and other fields
_NAMED = 20  # columns that an error lists
_ROWS = 256  # rows of a table in memory at a time
_NESTED = re.compile(r"\w*list|struct|map|\w*union")  # nested types of columns
_ARROW_FILE = b"ARROW1"  # the first bytes of an Arrow file, but not of an Arrow stream
Rows = Iterator[tuple[int, list[str]]]  # the line on which a row begins, and its cells
HUB = re.compile(r"hf:(?P<name>[\w.-]+(?:/[\w.-]+)?)(?:/(?P<subset>[\w.-]+))?(?::(?P<split>.+))?")


def json_lines(lines: Lines, reading: Reading) -> Iterator[RawDocument]:
    """Yield a document for each line that is a JSON record."""
    first, counts = True, lines.counts
    for line in _whole_lines(lines):
        if not line or line.isspace():
            continue
        place = lines.place
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if first:
                raise UserError(
                    f"{place} is not a JSON record ({error}); write one record per line, as"
                    " jq -c does"
                ) from None
            counts.add("broken JSON lines", place)
            continue
        if first and not isinstance(record, dict):
            raise UserError(
                f"{place} holds a JSON {type(record).__name__} instead of a record {{...}};"
                " write one record per line, as jq -c '.[]' does"
            )
        fields = record if isinstance(record, dict) else {}
        yield from _of_record(fields, place, first=first, reading=reading, counts=counts)
        first = False


def from_hub(name: str, reading: Reading, *, counts: Counts) -> Generator[RawDocument, None, None]:
    """Stream the documents of a dataset of the Hugging Face hub."""
    match = HUB.fullmatch(name)
    assert match is not None
    split = match["split"] or reading.split
    try:
        records = import_module("datasets").load_dataset(
            match["name"], match["subset"], split=split, streaming=True
        )
        for number, record in enumerate(records, 1):
            place = f"{name}:{number}"
            yield from _of_record(record, place, first=number == 1, reading=reading, counts=counts)
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{name} cannot be read from the hub ({said(error)}); check its name"
        ) from None


def separated(
    lines: Lines, reading: Reading, *, split: Callable[[Lines], Rows]
) -> Iterator[RawDocument]:
    """Yield a document for each row of a table whose first line names its columns."""
    rows = split(lines)
    if reading.field is None:
        for number, cells in rows:
            yield from _document("\n".join(cells), f"{lines.name}:{number}", counts=lines.counts)
        return
    header, first = next(rows, None), next(rows, None)
    if header is None:
        return
    names = [name.strip() for name in header[1]]
    for field in reading.fields:
        _check_header(lines.name, names, first[1] if first else [], field=field)
    columns = [names.index(field) for field in reading.fields]
    for number, cells in chain([first] if first else [], rows):
        place = f"{lines.name}:{number}"
        if len(cells) != len(names):
            lines.counts.add("rows with more or fewer cells than the header skipped", place)
        else:
            values = [cells[column] for column in columns]
            yield from _document(_value_or_row(values), place, counts=lines.counts)


def columnar(
    text: TextFile, stream: IO[bytes], kind: str, *, reading: Reading, counts: Counts
) -> Iterator[tuple[float, RawDocument]]:
    """Yield each document of a table, with the share of the table that is read by then."""
    arrow = import_module("pyarrow")
    rows = _parquet if kind == "parquet" else _arrow
    row, name = 0, text.name
    try:
        with _seekable(stream, packed=bool(text.packing)) as file:
            for share, values in rows(file, name, fields=reading.fields):
                for value in values:
                    row += 1
                    for document in _document(value, f"{name}:{row}", counts=counts):
                        yield share, document
    except (OSError, MemoryError, UnicodeDecodeError, arrow.ArrowException) as error:
        if is_disk_full(error):
            raise
        raise UserError(
            f"{name} is truncated, damaged or not a {kind} file ({said(error)}); download or"
            " write it again"
        ) from None


def _of_record(
    record: Mapping[str, Any], place: str, *, first: bool, reading: Reading, counts: Counts
) -> Iterator[RawDocument]:
    """The document of a record; without the field, the first record is refused, others counted."""
    if reading.field is None:
        yield from _document("\n".join(_strings(record)), place, counts=counts)
        return
    missing = [field for field in reading.fields if field not in record]
    if not missing:
        values = [record[field] for field in reading.fields]
        yield from _document(_value_or_row(values), place, counts=counts)
    elif first:
        texts = [name for name, value in record.items() if _may_be_text(value)]
        raise _no_field(place, missing[0], list(record), texts=texts)
    else:
        counts.add(f"records without the field {missing[0]!r}", place)


def _value_or_row(values: list[Any]) -> object:
    """The value of a single field, or a tuple of several values."""
    return values[0] if len(values) == 1 else tuple(values)


def _strings(value: object) -> Iterator[str]:
    """All strings in a record, including those of nested lists and records."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(inner)


def _document(value: object, place: str, *, counts: Counts) -> Iterator[RawDocument]:
    """The document of a record's text, cut into parts where it is over the limit.

    A tuple becomes a document with a sentence for each text, up to the first that is missing.
    """
    is_row = isinstance(value, tuple)
    if isinstance(value, tuple):
        texts = (" ".join(text.split()) if isinstance(text, str) else "" for text in value)
        present = list(takewhile(lambda text: text.strip("\0 "), texts))
        if len(present) < 2:
            counts.add("rows of less than two texts skipped", place)
            return
        value = "\n".join(present)
    if not isinstance(value, str):
        counts.add("records whose text is not a string", place)
        return
    counts.add("NUL bytes removed", place, value.count("\0"))
    text = value.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON may have half a surrogate pair, as of "\ud83d\ude00"
        counts.add("records with half a surrogate pair", place)
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if not text or text.isspace():
        counts.add("empty records", place)
        return
    if is_row and len(text) > LIMIT:
        counts.add("rows over 4 M characters skipped", place)
        return
    pieces = cut(text)
    if len(pieces) > 1:
        counts.add(CUT, place)
    for begins, piece in pieces:
        if piece and not piece.isspace():
            yield RawDocument(piece, place, is_split=is_row, begins=begins, is_row=is_row)


def _no_field(place: str, field: str, names: Sequence[str], *, texts: list[str]) -> UserError:
    """The error for a first record without the field, which lists the fields that it has."""
    if not names:
        return UserError(f"{place} has no field {field!r} or any other; check the file")
    return UserError(
        f"{place} has no field {field!r}, only {', '.join(_listed(names))};"
        f" {_another_field(field, texts)}"
    )


def _another_field(field: str, texts: list[str]) -> str:
    """The end of an error: the field that may hold the text; of several, the user must choose."""
    if not texts:
        return "no field holds text, name other files"
    best = texts[0] if len(texts) == 1 else nearest(field, texts)
    if best is not None:
        return f"give --field {short(best)}"
    return f"give --field with the one that holds the text: {listed(_listed(texts))}"


def _may_be_text(value: object) -> bool:
    """Whether a field of a record may hold text in others: it is missing here, or no number."""
    return value is None or (isinstance(value, str) and not value.strip().isdecimal())


def _listed(names: Sequence[str]) -> list[str]:
    """The names of fields for an error, of many only the first."""
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return [*map(short, names[:_NAMED]), *more]


def _check_once(name: str, names: list[str], field: str) -> None:
    if names.count(field) > 1:
        raise UserError(f"{name} has {names.count(field)} fields {field!r}; rename all but one")


def _whole_lines(lines: Lines) -> Iterator[str]:
    """The complete lines; those of more than LONGEST characters are skipped and counted."""
    pieces: list[str] = []
    size = 0
    for piece in chain(lines, [""]):  # the end of the text ends its last line
        size += len(piece)
        pieces.append(piece)
        if size > LONGEST:
            pieces.clear()  # skip the rest of the line
        if piece and piece[-1] != "\n":
            continue
        if size > LONGEST:
            lines.counts.add("lines over 16 M characters skipped", lines.place)
        elif size:
            yield "".join(pieces)
        pieces.clear()
        size = 0


def _check_header(name: str, names: list[str], first: list[str], *, field: str) -> None:
    check_separators(name, names, field=field)
    if field not in names:
        cells = [*first, *[""] * len(names)]
        texts = [each for each, cell in zip(names, cells, strict=False) if _may_be_text(cell)]
        problem = _no_field(name, field, names, texts=texts)
        raise UserError(f"{problem} (the first line of a table names its columns)")
    _check_once(name, names, field)


def tsv_rows(lines: Lines) -> Rows:
    """The rows of a TSV with their line numbers."""
    # No quoting: in a TSV a quotation mark is an ordinary character, often without a partner.
    for line in _whole_lines(lines):
        if line and not line.isspace():
            yield lines.number, line.rstrip("\n").split("\t")


def csv_rows(lines: Lines) -> Rows:
    """The rows of a CSV with the lines they begin on; quoted text may have line breaks."""
    csv.field_size_limit(LONGEST)
    reader = csv.reader(_whole_lines(lines), strict=True)
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
            lines.counts.add("broken CSV rows skipped", f"{lines.name}:{number}")
            cells = []
        if cells:
            yield number, cells
        number = lines.number + 1


@contextmanager
def _seekable(stream: IO[bytes], *, packed: bool) -> Iterator[IO[bytes]]:
    """The stream, decompressed to disk if need be: a table is not read from front to back."""
    if not packed:
        yield stream
        return
    with TemporaryFile() as file:
        shutil.copyfileobj(stream, file)
        file.seek(0)
        yield file


def _parquet(
    file: IO[bytes], name: str, *, fields: list[str]
) -> Iterator[tuple[float, list[object]]]:
    # With a buffer size, column chunks are read in parts as they are needed.
    table = import_module("pyarrow.parquet").ParquetFile(
        file, pre_buffer=False, buffer_size=1 << 20
    )
    columns = _columns(table.schema_arrow, name, fields=fields)
    done = 0
    for batch in table.iter_batches(_ROWS, columns=columns):
        done += batch.num_rows
        yield done / max(table.metadata.num_rows, done), _rows(batch, fields)


def _arrow(
    file: IO[bytes], name: str, *, fields: list[str]
) -> Iterator[tuple[float, list[object]]]:
    ipc = import_module("pyarrow.ipc")
    size = file.seek(0, 2)
    file.seek(0)
    is_file = file.read(len(_ARROW_FILE)) == _ARROW_FILE
    file.seek(0)
    batches: Iterable[Any]
    if is_file:
        table = ipc.open_file(file)
        batches = (table.get_batch(number) for number in range(table.num_record_batches))
    else:
        batches = table = ipc.open_stream(file)
    _columns(table.schema, name, fields=fields)
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS):
            yield file.tell() / size, _rows(batch.slice(start, _ROWS), fields)


def _rows(batch: Any, fields: list[str]) -> list[object]:
    """The value of each row, a tuple for several fields; without fields, all of its text.

    Columns are validated, since damaged offsets would read arbitrary memory.
    """
    if fields:
        columns = [batch.column(field) for field in fields]
    else:
        columns = [column for column in batch.columns if "string" in str(column.type)]
    for column in columns:
        column.validate(full=True)
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    if fields:
        return [_value_or_row(list(row)) for row in rows]
    return ["\n".join(_strings(row)) for row in rows]


def _columns(schema: Any, name: str, *, fields: list[str]) -> list[str]:
    """The columns to read: the fields, or all columns of text if there are none."""
    for field in fields:
        _check_column(schema, name, field=field)
    return fields or [column.name for column in schema if "string" in str(column.type)]


def _check_column(schema: Any, name: str, *, field: str) -> None:
    kinds = {entry.name: str(entry.type) for entry in schema}
    texts = [name for name, kind in kinds.items() if "string" in kind and not _NESTED.match(kind)]
    if field not in schema.names:
        raise _no_field(name, field, schema.names, texts=texts)
    _check_once(name, schema.names, field)
    if field not in texts:
        raise UserError(
            f"{name} holds {kinds[field]}, not text, in its field {field!r};"
            f" {_another_field(field, texts)}"
        )

"""One file → its documents, whatever its format: text, JSON lines, or a table of some kind."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.text.reading.fields import no_field, read_record, whole_lines
from clozelab.text.reading.layouts import RawDocument, Reading, read_text
from clozelab.text.reading.lines import PACKINGS, Lines, opened, shown
from clozelab.text.reading.tables import columnar, separated

Kind = Literal["text", "json", "csv", "tsv", "parquet", "arrow"]
_KINDS: dict[str, Kind] = {
    ".jsonl": "json",
    ".json": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}


@dataclass
class BytesRead:
    """How far a reading has come."""

    done: int = 0  # bytes of the files read, packed as they are


def kind_of(path: Path) -> Kind:
    """What a file holds, by its name without the packing; text where the name says nothing."""
    name = path.with_suffix("") if path.suffix.lower() in PACKINGS else path
    return _KINDS.get(name.suffix.lower(), "text")


def read_file(
    path: Path, reading: Reading, *, counts: Counts, progress: BytesRead
) -> Generator[RawDocument, None, None]:
    """The documents of one file, in order, in bounded memory."""
    start = progress.done
    kind = kind_of(path)
    with opened(path) as (file, stream):
        if kind in ("parquet", "arrow"):
            size = path.stat().st_size
            for share, document in columnar(path, stream, kind, reading=reading, counts=counts):
                progress.done = start + int(size * share)
                yield document
        else:
            texts = read_stream(stream, shown(path), kind, reading=reading, counts=counts)
            with closing(texts):
                for document in texts:
                    progress.done = start + file.tell()
                    yield document
    progress.done = start + path.stat().st_size


def read_stream(
    stream: IO[bytes], name: str, kind: Kind | None, *, reading: Reading, counts: Counts
) -> Generator[RawDocument, None, None]:
    """The documents of a stream that is read line by line, of text, JSON lines or a table.

    Without a kind, a brace in front tells JSON lines from text.
    """
    lines = Lines(stream, name, encoding=reading.encoding, counts=counts)
    try:
        head = lines.head().lstrip()
        if kind is None:
            kind = "json" if head.startswith("{") else "text"
        if not head:
            counts.add("empty files", name)
        if kind == "json":
            yield from _json(lines, reading, counts=counts)
        elif kind in ("csv", "tsv"):
            yield from separated(lines, kind, reading=reading, counts=counts)
        else:
            yield from read_text(lines, reading.layout, counts=counts)
    finally:
        lines.release()


def _json(lines: Lines, reading: Reading, *, counts: Counts) -> Iterator[RawDocument]:
    first = True
    for line in whole_lines(lines, counts=counts):
        if not line or line.isspace():
            continue
        place = f"{lines.name}:{lines.number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if first:
                raise UserError(
                    f"{place} is not a JSON record ({error}): write one record a line,"
                    " as jq -c does"
                ) from None
            counts.add("broken JSON lines", place)
            continue
        if not isinstance(record, dict) or reading.field not in record:
            if first and isinstance(record, dict):
                raise no_field(place, reading.field, record)
            if first:
                raise UserError(
                    f"{place} holds a JSON {type(record).__name__} where a record {{...}} should"
                    " stand: write one record a line, as jq -c '.[]' does"
                )
            counts.add(f"records without the field {reading.field!r}", place)
            continue
        first = False
        yield from read_record(record[reading.field], place, counts=counts)

"""What JSON lines and tables have in common: records, of which one field is text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.nearest import nearest
from clozelab.text.reading.layouts import LIMIT, RawDocument, count_cut, cut
from clozelab.text.reading.lines import Lines

LONGEST = 4 * LIMIT  # characters of a record's line: its text, escapes and other fields
_OVERLONG = "lines over 16 M characters skipped"
_NAMED = 20  # columns, in a message about them


def read_record(value: object, name: str, *, counts: Counts) -> Iterator[RawDocument]:
    """The document of a record's text, cut where it is over the limit."""
    if not isinstance(value, str):
        counts.add("records whose text is not a string", name)
        return
    text = value
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text:
        counts.add("NUL bytes removed", name, text.count("\0"))
        text = text.replace("\0", "")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # half a pair of "\ud83d\ude00": JSON may hold one alone
            counts.add("records with half a surrogate pair", name)
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if not text or text.isspace():
        counts.add("empty records", name)
        return
    pieces = cut(text)
    if len(pieces) > 1:
        count_cut(counts, name)
    for piece in pieces:
        if piece and not piece.isspace():
            yield RawDocument(piece, name)


def no_field(place: str, field: str, record: Mapping[str, Any]) -> UserError:
    """The error of a first record without the field, with the fields it has."""
    if not record:
        return UserError(f"{place} has no field {field!r}, nor any other: check the file")
    texts = {key: len(value) for key, value in record.items() if isinstance(value, str)}
    longest = max(texts or dict.fromkeys(record, 0), key=lambda key: texts.get(key, 0))
    best = nearest(field, record) or longest
    names = [short(name) for name in list(record)[:_NAMED]]
    names += [f"{len(record) - _NAMED} more"] if len(record) > _NAMED else []
    return UserError(
        f"{place} has no field {field!r}, only {', '.join(names)}: say --field {short(best)}"
    )


def short(name: str) -> str:
    """A column's name in a message: where there is no header line, it is somebody's text."""
    line = " ".join(name.split())
    return line if len(line) <= 40 else line[:39] + "…"


def whole_lines(lines: Lines, *, counts: Counts) -> Iterator[str]:
    """Lines that may each be a record, whole; one that is too long for that is skipped."""
    held: list[str] = []
    size = 0
    for piece in lines:
        size += len(piece)
        held.append(piece)
        if size > LONGEST:
            held.clear()  # and read on to the line's end
        if piece[-1] == "\n":
            if size > LONGEST:
                counts.add(_OVERLONG, f"{lines.name}:{lines.number}")
            else:
                yield "".join(held)
            held.clear()
            size = 0
    if size > LONGEST:
        counts.add(_OVERLONG, f"{lines.name}:{lines.number}")
    elif held:
        yield "".join(held)

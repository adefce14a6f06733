"""Lines of plain text → documents, by layout: wrapped prose, a paragraph per line, a sentence per
line with blank lines between documents (BERT's format), or a document per line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from typing import Literal

from clozelab.text.reading.lines import HEAD, Lines
from clozelab.text.reading.sentences import plain_ends, whole_character

LIMIT = 4_000_000  # characters of a document
CUT = "documents over 4 M characters cut"
_WIDEST = 200  # characters: longer lines are not wrapped prose
_ENDED = re.compile("[.!?…。！？][\"'”’»)\\]」』）】》]*$")
_GAP = re.compile(r"\s*")
_EASTERN = re.compile("[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff60]")

Layout = Literal["auto", "prose", "sentences", "lines"]


@dataclass(frozen=True)
class RawDocument:
    """A document, or a part of one, with "\\n" between paragraphs or sentences."""

    text: str
    name: str  # "file:line" or "file:record": where it begins
    is_split: bool = False  # whether each line is one sentence
    begins: int = 0  # the character of the document at which this part begins
    is_row: bool = False  # whether each line is one text, however long


@dataclass(frozen=True)
class Reading:
    """The options for reading inputs."""

    layout: Layout = "auto"
    # The field of a record that is its text; None: all strings, a line each. Several fields, with
    # commas between them, make a document with a sentence for each.
    field: str | None = "text"
    encoding: str = "utf-8"
    split: str = "train"  # of a dataset

    @property
    def fields(self) -> list[str]:
        """The fields of a record that are read; empty for all of its strings."""
        return [] if self.field is None else [name.strip() for name in self.field.split(",")]


def read_text(lines: Lines, reading: Reading) -> Iterator[RawDocument]:
    """The documents of a plain text; the layout that `auto` guesses is noted in the counts."""
    head, layout = lines.head(), reading.layout
    guessed, wrapped = guess(head)
    if layout == "auto":
        layout = guessed
        if head.strip():
            lines.counts.add(f"read as {layout}", lines.name)
    elif layout == "prose":
        wrapped = _width(_rows(head)) <= _WIDEST
    pieces = _prose_parts(lines, wrapped) if layout == "prose" else _line_parts(lines, layout)
    is_split = layout == "sentences"
    for text, number, begins in _join_parts(pieces, lines):
        yield RawDocument(text, f"{lines.name}:{number}", is_split=is_split, begins=begins)


def guess(head: str) -> tuple[Literal["prose", "sentences"], bool]:
    """The layout of a text from its first 64 K characters, and whether its lines are wrapped.

    Only lines that are directly followed by another line are looked at:

    1. If at least half of them end like a sentence, lines are sentences or paragraphs: sentences
       if the plain splitter finds a single one in at least four lines of five.
    2. Else, if three in five are full (the next line's first word would not fit into the width
       that 95 % of lines keep, which is at most 200), the text is wrapped prose.
    3. Else (verse, headings, logs), or if no line follows another: prose, a paragraph per line.
    """
    rows = _rows(head)
    followed = [(row, after) for row, after in pairwise(rows) if row and after]
    width = _width(rows)
    if not followed:
        return "prose", width <= _WIDEST
    if sum(bool(_ENDED.search(row)) for row, _ in followed) * 2 >= len(followed):
        filled = [row for row in rows if row]
        single = sum(not plain_ends(row) and not _eastern_stops(row) for row in filled)
        return ("sentences" if single * 5 >= len(filled) * 4 else "prose"), False
    full = sum(len(row) + 1 + _first_word(after) > width for row, after in followed)
    return "prose", width <= _WIDEST and full * 5 >= len(followed) * 3


def cut(text: str) -> list[tuple[int, str]]:
    """Cut a text into parts of at most LIMIT characters, at a newline, a space, or elsewhere.

    Each part comes with the position of its first character.
    """
    pieces, first = list[tuple[int, str]](), 0
    while len(text) - first > LIMIT:
        middle, last = first + LIMIT // 2, first + LIMIT
        gaps = (text.rfind(gap, middle, last) for gap in "\n ")
        at = next((at for at in gaps if at >= 0), None) or whole_character(text, last)
        pieces.append((first, text[first:at]))
        gap = _GAP.match(text, at)
        first = gap.end() if gap else at
    return [*pieces, (first, text[first:])]


def _rows(head: str) -> list[str]:
    rows = [row.strip() for row in head.split("\n")]
    # The last row of a full head may be only the beginning of a line.
    return rows[:-1] if len(head) >= HEAD and len(rows) > 1 else rows


def _width(rows: list[str]) -> int:
    lengths = sorted(len(row) for row in rows if row)
    return lengths[(len(lengths) * 19 - 1) // 20] if lengths else 0


def _first_word(row: str) -> int:
    # Eastern text is broken between any two characters, except for a few that stay together.
    return 3 if _EASTERN.match(row) else len(row.split(None, 1)[0])


def _eastern_stops(row: str) -> bool:
    """Whether a sentence of eastern text ends before the row does."""
    return bool(re.search("[。！？]", row.rstrip("”’」』）】》。！？…")))


def _prose_parts(lines: Lines, wrapped: bool) -> Iterator[str]:
    """Parts of one document: wrapped lines joined, "\\n" between paragraphs."""
    last, ended = "", False  # the last character yielded; whether a paragraph ended
    for text, begins, _ in _stripped(_split_pages(lines)):
        if not text:
            ended = ended or begins
            continue
        if not begins or not last:
            glue = ""
        elif ended or not wrapped:
            glue = "\n"
        else:
            glue = "" if _EASTERN.match(last) and _EASTERN.match(text) else " "
        yield glue + text
        last, ended = text[-1], False


def _split_pages(lines: Iterable[str]) -> Iterator[str]:
    for piece in lines:
        if "\f" not in piece:
            yield piece
            continue
        *rows, last = piece.replace("\f", "\n\n").split("\n")
        yield from (row + "\n" for row in rows)
        if last:
            yield last


def _line_parts(lines: Lines, layout: Layout) -> Iterator[str | None]:
    """Parts of documents, None after each document: a single line, or lines up to a blank one."""
    started = False
    for text, begins, ends in _stripped(lines):
        if text:
            yield "\n" + text if begins and started else text
            started = True
        if started and ends and (layout == "lines" or (begins and not text)):
            yield None
            started = False


def _stripped(pieces: Iterable[str]) -> Iterator[tuple[str, bool, bool]]:
    """Pieces of lines, stripped, and whether each begins and ends its line."""
    begins = True
    for piece in pieces:
        ends = piece[-1] == "\n"
        text = piece.rstrip() if ends else piece
        yield text.lstrip() if begins else text, begins, ends
        begins = ends


def _join_parts(parts: Iterable[str | None], lines: Lines) -> Iterator[tuple[str, int, int]]:
    """Join parts to documents: text, line, and position in the document of that line.

    None separates documents. The rest of one that is was_cut LIMIT is named by the line that was
    reached: a document of its own, unless that is still the same line.
    """
    buffer = StringIO()  # a list of short lines would take several times their size
    size = first = begins = 0
    was_cut = False
    for part in parts:
        if part is None:
            text, buffer = buffer.getvalue(), StringIO()
            if text := text.rstrip():  # empty if it was cut at its end
                yield text, first, begins
            size, was_cut, begins = 0, False, 0
            continue
        if not size:
            begins = begins if first == lines.number else 0
            first = lines.number
        size += buffer.write(part)
        if size > LIMIT:
            if not was_cut:
                lines.counts.add(CUT, f"{lines.name}:{first}")
                was_cut = True
            *pieces, (at, text) = cut(buffer.getvalue())
            for start, piece in pieces:
                if not piece.isspace():
                    yield piece, first, begins + start
            buffer = StringIO()
            begins = begins + at if first == lines.number else 0
            size, first = buffer.write(text), lines.number
    text = buffer.getvalue().rstrip()
    if left := text.lstrip():
        yield left, first, begins and begins + len(text) - len(left)

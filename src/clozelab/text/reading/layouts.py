"""Lines of plain text → documents, by the layout the text is in: wrapped prose, a paragraph a line,
a sentence a line with blank lines between documents (BERT's format), or a document a line."""

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
_WIDEST = 200  # characters: nobody wraps lines wider than this
_ENDED = re.compile("[.!?…。！？][\"'”’»)\\]」』）】》]*$")
_EASTERN = re.compile("[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff60]")

Layout = Literal["auto", "prose", "sentences", "lines"]


@dataclass(frozen=True)
class RawDocument:
    """A document as it was found, its paragraphs or sentences apart by "\\n"."""

    text: str
    name: str  # "file:line" or "file:record": where it begins
    is_split: bool = False  # whether each line is already one sentence


@dataclass(frozen=True)
class Reading:
    """How the user says the inputs are to be read."""

    layout: Layout = "auto"
    # Of a record, which holds its text; None: all that do, a line each. Several, with commas
    # between them, are texts that belong together: a document of as many sentences.
    field: str | None = "text"
    encoding: str = "utf-8"
    split: str = "train"  # of a dataset

    @property
    def fields(self) -> list[str]:
        """The fields of a record that are read; none: all of text."""
        return [] if self.field is None else [name.strip() for name in self.field.split(",")]


def read_text(lines: Lines, reading: Reading) -> Iterator[RawDocument]:
    """The documents of a plain text; what `auto` took it for is counted."""
    head, layout = lines.head(), reading.layout
    guessed, wrapped = guess(head)
    if layout == "auto":
        layout = guessed
        if head.strip():
            lines.counts.add(f"read as {layout}", lines.name)
    elif layout == "prose":
        wrapped = _width(_rows(head)) <= _WIDEST
    parts = _prose(lines, wrapped) if layout == "prose" else _listed(lines, layout)
    for text, number in _assembled(parts, lines):
        yield RawDocument(text, f"{lines.name}:{number}", is_split=layout == "sentences")


def guess(head: str) -> tuple[Literal["prose", "sentences"], bool]:
    """The layout of a text from its first 64 K characters, and whether its lines are wrapped.

    Only lines that another line follows directly tell anything:

    1. Where half of them or more end like a sentence, lines are sentences or paragraphs:
       sentences where the plain splitter finds one alone in at least four lines of five.
    2. Else, where three in five are full (the next line's first word did not fit into the width
       that 95 % of lines keep, itself at most 200), the text is wrapped prose.
    3. Else (verse, headings, logs), and where no line follows another: prose, a paragraph a line.
    """
    rows = _rows(head)
    followed = [(row, after) for row, after in pairwise(rows) if row and after]
    width = _width(rows)
    if not followed:
        return "prose", width <= _WIDEST
    if sum(bool(_ENDED.search(row)) for row, _ in followed) * 2 >= len(followed):
        whole = [row for row in rows if row]
        single = sum(not plain_ends(row) and not _eastern_stops(row) for row in whole)
        return ("sentences" if single * 5 >= len(whole) * 4 else "prose"), False
    full = sum(len(row) + 1 + _first_word(after) > width for row, after in followed)
    return "prose", width <= _WIDEST and full * 5 >= len(followed) * 3


def cut(text: str) -> list[str]:
    """Documents of at most LIMIT characters, cut at a newline, a space, or between characters."""
    pieces = []
    while len(text) > LIMIT:
        gaps = (text.rfind(gap, LIMIT // 2, LIMIT) for gap in "\n ")
        at = next((at for at in gaps if at >= 0), None) or whole_character(text, LIMIT)
        pieces.append(text[:at])
        text = text[at:].lstrip()
    return [*pieces, text]


def _rows(head: str) -> list[str]:
    rows = [row.strip() for row in head.split("\n")]
    # The last row of a full head may be the front of a longer line.
    return rows[:-1] if len(head) >= HEAD and len(rows) > 1 else rows


def _width(rows: list[str]) -> int:
    lengths = sorted(len(row) for row in rows if row)
    return lengths[(len(lengths) * 19 - 1) // 20] if lengths else 0


def _first_word(row: str) -> int:
    # Eastern text breaks between any two characters, but for the two or so that may not be parted.
    return 3 if _EASTERN.match(row) else len(row.split(None, 1)[0])


def _eastern_stops(row: str) -> bool:
    return bool(re.search("[。！？](?![”’」』）】》。！？…]*$)", row))


def _prose(lines: Lines, wrapped: bool) -> Iterator[str]:
    """Parts of one document: wrapped lines joined, "\\n" between paragraphs."""
    last, ended = "", False  # the last character yielded; at a paragraph's end
    for text, begins, _ in _stripped(_pages(lines)):
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


def _pages(lines: Iterable[str]) -> Iterator[str]:
    for piece in lines:
        if "\f" not in piece:
            yield piece
            continue
        *rows, last = piece.replace("\f", "\n\n").split("\n")
        yield from (row + "\n" for row in rows)
        if last:
            yield last


def _listed(lines: Lines, layout: Layout) -> Iterator[str | None]:
    """Parts of documents, None after each: a line each, or lines up to a blank one."""
    started = False
    for text, begins, ends in _stripped(lines):
        if text:
            yield "\n" + text if begins and started else text
            started = True
        if started and ends and (layout == "lines" or (begins and not text)):
            yield None
            started = False


def _stripped(pieces: Iterable[str]) -> Iterator[tuple[str, bool, bool]]:
    """Pieces without the white space around a line, and whether each begins and ends its line."""
    begins = True
    for piece in pieces:
        ends = piece[-1] == "\n"
        text = piece.rstrip() if ends else piece
        yield text.lstrip() if begins else text, begins, ends
        begins = ends


def _assembled(parts: Iterable[str | None], lines: Lines) -> Iterator[tuple[str, int]]:
    """Each document and the line it begins at, from its parts; None parts documents."""
    held = StringIO()  # a list of short lines would weigh several times their text
    size = first = 0
    over = False
    for part in parts:
        if part is None:
            text, held = held.getvalue(), StringIO()
            size, over = 0, False
            if text := text.rstrip():  # nothing is left where the cut fell at the end
                yield text, first
            continue
        if not size:
            first = lines.number
        size += held.write(part)
        if size > LIMIT:
            if not over:
                lines.counts.add(CUT, f"{lines.name}:{first}")
                over = True
            *pieces, text = cut(held.getvalue())
            yield from ((piece, first) for piece in pieces if not piece.isspace())
            held = StringIO()
            size, first = held.write(text), lines.number
    if text := held.getvalue().strip():
        yield text, first

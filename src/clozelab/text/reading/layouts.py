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
_GAP = re.compile(r"\s*")
_EASTERN = re.compile("[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff60]")

Layout = Literal["auto", "prose", "sentences", "lines"]


@dataclass(frozen=True)
class RawDocument:
    """A document, or a part of one, as it was found: paragraphs or sentences apart by "\\n"."""

    text: str
    name: str  # "file:line" or "file:record": where it begins
    is_split: bool = False  # whether each line is already one sentence
    begins: int = 0  # the character of the document of that name at which this part begins


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
    is_split = layout == "sentences"
    for text, number, begins in _assembled(parts, lines):
        yield RawDocument(text, f"{lines.name}:{number}", is_split=is_split, begins=begins)


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


def cut(text: str) -> list[tuple[int, str]]:
    """Parts of at most LIMIT characters, cut at a newline, a space, or between characters.

    Each comes with the character that it begins at.
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
    # The last row of a full head may be the front of a longer line.
    return rows[:-1] if len(head) >= HEAD and len(rows) > 1 else rows


def _width(rows: list[str]) -> int:
    lengths = sorted(len(row) for row in rows if row)
    return lengths[(len(lengths) * 19 - 1) // 20] if lengths else 0


def _first_word(row: str) -> int:
    # Eastern text breaks between any two characters, but for the two or so that may not be parted.
    return 3 if _EASTERN.match(row) else len(row.split(None, 1)[0])


def _eastern_stops(row: str) -> bool:
    """Whether a sentence of eastern text ends before the row does."""
    return bool(re.search("[。！？]", row.rstrip("”’」』）】》。！？…")))


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


def _assembled(parts: Iterable[str | None], lines: Lines) -> Iterator[tuple[str, int, int]]:
    """Each document, the line it begins at, and the character of that document; from its parts.

    None parts documents. One that is cut goes on at the line that was reached: a document of its
    own, unless it is still the same line.
    """
    held = StringIO()  # a list of short lines would weigh several times their text
    size = first = begins = 0
    over = False
    for part in parts:
        if part is None:
            text, held = held.getvalue(), StringIO()
            if text := text.rstrip():  # nothing is left where the cut fell at the end
                yield text, first, begins
            size, over, begins = 0, False, 0
            continue
        if not size:
            begins = begins if first == lines.number else 0
            first = lines.number
        size += held.write(part)
        if size > LIMIT:
            if not over:
                lines.counts.add(CUT, f"{lines.name}:{first}")
                over = True
            *pieces, (at, text) = cut(held.getvalue())
            for start, piece in pieces:
                if not piece.isspace():
                    yield piece, first, begins + start
            held = StringIO()
            begins = begins + at if first == lines.number else 0
            size, first = held.write(text), lines.number
    text = held.getvalue().rstrip()
    if left := text.lstrip():
        yield left, first, begins and begins + len(text) - len(left)

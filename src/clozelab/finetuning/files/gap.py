"""GAP (Webster et al. 2018): a pronoun and two names; the text is cut into words and sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from clozelab.errors import UserError
from clozelab.finetuning.examples import Document, Mention, Pronoun
from clozelab.finetuning.files.lines import located
from clozelab.finetuning.files.tables import Row, table

_COLUMNS = ("ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "B", "B-offset")
_WORD = re.compile(
    r"n't\b|'(?:s|re|ve|ll|d|m)\b|\w+(?=n't\b)|\w+(?:\*\w+)*|-{2,}|[^\w\s]", re.IGNORECASE
)  # in GAP's files a letter that is not ASCII is a star
_STOP = re.compile(r"[.!?]+['\"”’)\]]*\s+(?=[\"'“‘(]*[A-Z0-9])")
_SHORT = re.compile(r"\b(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Jr|Sr|Prof|Rev|Gen|Col|Capt|Lt|vs|No)\.\s+$")


def gap(path: Path) -> list[Document]:
    """The documents of a file, with what is asked of each.

    A document has one cluster, the pronoun and the name it stands for, or none.
    """
    read = table(located(path))
    if absent := [name for name in _COLUMNS if name not in read.columns]:
        raise UserError(f"{path} has no column {absent[0]}: GAP's files have {', '.join(_COLUMNS)}")
    return [_example(row) for row in read.rows]


def _example(row: Row) -> Document:
    text = str(row.values["Text"])
    spans = [_span(row, text, name) for name in ("Pronoun", "A", "B")]
    starts = _words(text, cuts={end for span in spans for end in span})
    pronoun, a, b = (_mention(starts, span) for span in spans)
    is_a, is_b = (_truth(row, name) for name in ("A-coref", "B-coref"))
    clusters: tuple[tuple[Mention, ...], ...] | None = None
    if is_a is not None and is_b is not None:
        names = [name for name, true in ((a, is_a), (b, is_b)) if true]
        clusters = (tuple(sorted({pronoun, *names})),) if names else ()
    asked = Pronoun(str(row.values["Pronoun"]), pronoun, a, b, is_a, is_b)
    return Document(str(row.values["ID"]), _sentences(text, starts, spans), clusters, asked)


def _span(row: Row, text: str, name: str) -> tuple[int, int]:
    words, offset = str(row.values[name]), str(row.values[f"{name}-offset"])
    start = int(offset) if offset.isdecimal() else len(text)
    if not words or not text.startswith(words, start):
        raise UserError(f"{row.place} has no {words!r} at character {offset}: fetch the file again")
    return start, start + len(words)


def _truth(row: Row, name: str) -> bool | None:
    value = str(row.values.get(name, "")).strip().lower()
    if value not in ("true", "false", ""):
        raise UserError(f"{row.place} has {value!r} as {name}: write TRUE or FALSE")
    return None if not value else value == "true"


def _words(text: str, *, cuts: Iterable[int]) -> list[tuple[int, int]]:
    """The characters of each word; none reaches over a cut."""
    words: list[tuple[int, int]] = []
    for match in _WORD.finditer(text):
        inside = sorted(cut for cut in cuts if match.start() < cut < match.end())
        words += pairwise([match.start(), *inside, match.end()])
    return words


def _mention(words: list[tuple[int, int]], span: tuple[int, int]) -> Mention:
    inside = [at for at, (start, end) in enumerate(words) if span[0] <= start and end <= span[1]]
    return Mention(inside[0], inside[-1])


def _sentences(
    text: str, words: list[tuple[int, int]], spans: list[tuple[int, int]]
) -> tuple[tuple[str, ...], ...]:
    """The words, parted where a stop and a capital meet; no mention is parted."""
    ends = [
        match.end()
        for match in _STOP.finditer(text)
        if not _SHORT.search(text, 0, match.end())
        and not any(start < match.end() < end for start, end in spans)
    ]
    sentences: list[list[str]] = [[]]
    for start, end in words:
        if ends and start >= ends[0]:
            ends.pop(0)
            sentences.append([])
        sentences[-1].append(text[start:end])
    return tuple(tuple(sentence) for sentence in sentences if sentence)

"""Sentences in words with a tag for each: CoNLL columns, or rows that hold lists."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.finetuning.examples import Id, Tagged
from clozelab.finetuning.files.columns import (
    DEFAULTS,
    Columns,
    ReadOptions,
    Source,
    check_roles,
    checked_label,
)
from clozelab.finetuning.files.sentences import LABELS, TEXTS
from clozelab.finetuning.files.tables import JSON, Record, empty, lines, located, suffix

_ROLES = ("words", "tags", "id")
_WORDS = ("tokens", "words", "token", "text", "characters")
_TAGS = ("tags", "ner_tags", "labels", "label", "ner", "pos_tags", "chunk_tags")
# Only CoNLL's own comments: another line that begins with "#" is mostly a hashtag.
_COMMENT = re.compile(r"-DOCSTART-|#(begin|end) document\b|# (id|text|sent_id|newdoc|newpar)\b")


def tagged(source: Source, options: ReadOptions = DEFAULTS, **_: object) -> list[Tagged]:
    """The examples of a file."""
    if isinstance(source, Path):
        source = located(source)
        if suffix(source) not in (*JSON, ".parquet"):
            check_roles(options, _ROLES)
            return _read_columns(source, options)
    return _read_rows(Columns(source, options, Counts(), roles=_ROLES))


def cells(line: str) -> list[str]:
    """The columns of a line, separated by tabs if it has any, otherwise by spaces.

    Only plain spaces separate: Chinese text has words that are a wide space.
    """
    return line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]


def _read_columns(path: Path, options: ReadOptions) -> list[Tagged]:
    runs = _sentence_lines(path)
    if not runs:
        raise empty(path)
    first, opening = runs[0]
    width = len(cells(opening[0]))
    word, tag = _column(options, "words", 0, width=width), _column(options, "tags", -1, width=width)
    has_tags = options.labelled or width > 1
    if has_tags and width == 1:
        raise UserError(
            f"{path}:{first} has a word without a tag; write one, with a tab between them"
        )
    if has_tags and "\t" in opening[0]:
        _refuse_texts(path, [line for _, run in runs for line in run], word=word)
    checked: dict[str, str] = {}  # interned, so that millions of tags share a few strings
    examples: list[Tagged] = []
    for first, run in runs:
        words, tags = [], []
        for number, line in enumerate(run, first):
            row = cells(line)
            if len(row) != width:
                raise UserError(
                    f"{path}:{number} has {len(row)} columns where {width} are expected;"
                    " give each word a tag, and separate sentences by blank lines"
                )
            label = row[tag].strip()
            if label not in checked:
                labels = options.labels if has_tags else ()
                checked[label] = checked_label(label, f"{path}:{number}", labels, what="tag")
            words.append(row[word])
            tags.append(checked[label])
        name = Id(str(len(examples)), f"{path}:{first}")
        examples.append(Tagged(name, tuple(words), tuple(tags) if has_tags else None))
    return examples


def _refuse_texts(path: Path, rows: list[str], *, word: int) -> None:
    """Refuse a table of labelled texts, by its header or by several words in most of its cells."""
    first = rows[0].split("\t")
    header = {cell.strip().lower() for cell in first}
    cells_of = (row.split("\t") for row in rows)
    several = sum(len(each) == len(first) and " " in each[word].strip() for each in cells_of)
    if 2 * several > len(rows) or (header & {*TEXTS} and header & {*LABELS}):
        raise UserError(
            f"{path} is a table of labelled texts; tag needs a word and its tag on each line, and"
            " blank lines between sentences: rewrite it, or use classify for one class per text"
        )


def _column(options: ReadOptions, role: str, usual: int, *, width: int) -> int:
    column = options.columns.get(role, str(usual))
    if not re.fullmatch(r"-?\d+", column) or not -width <= int(column) < width:
        raise UserError(
            f"--columns {role}={column} is none of the {width} columns of the file; columns"
            " are numbered from 0, or from -1 backwards"
        )
    return int(column)


def _sentence_lines(path: Path) -> list[tuple[int, list[str]]]:
    """The lines of each sentence, between blank lines, and the number of the first."""
    rows = lines(path)
    breaks = [at for at, line in enumerate(rows) if not line.strip() or _COMMENT.match(line)]
    ends = pairwise([-1, *breaks, len(rows)])
    return [(begin + 2, rows[begin + 1 : end]) for begin, end in ends if begin + 1 < end]


def _read_rows(columns: Columns) -> list[Tagged]:
    word, tag = columns.find("words", _WORDS), columns.labels("tags", _TAGS)
    options = columns.options
    examples = []
    for number, row in enumerate(columns.rows):
        words, tags = _read_list(row, word), None
        if tag is not None and (options.labelled or row.values.get(tag) is not None):
            tags = _read_list(row, tag)
            for label in tags:
                checked_label(label, row.place, options.labels, what="tag")
            if len(tags) != len(words):
                raise UserError(
                    f"{row.place} has {len(words)} words and {len(tags)} tags; give each"
                    " word one tag"
                )
        examples.append(Tagged(columns.id(row, number), words, tags))
    return examples


def _read_list(row: Record, column: str) -> tuple[str, ...]:
    value = row.values.get(column)
    if isinstance(value, str):  # words separated by spaces
        value = value.split()
    if not (isinstance(value, list) and value and all(map(_is_cell, value))):
        raise UserError(
            f"{row.place} has no list of texts in the column {column!r}; write one there"
        )
    return tuple(str(entry) for entry in value)


def _is_cell(value: object) -> bool:
    """Whether a value is a text or a number, and no list, record or nothing."""
    return value is not None and not isinstance(value, list | dict)

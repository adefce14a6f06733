"""Sentences in words with a tag for each: CoNLL columns, or rows that hold lists."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.finetuning.examples import Tagged
from clozelab.finetuning.files import columns
from clozelab.finetuning.files.columns import Asked
from clozelab.finetuning.files.lines import lines, located, suffix
from clozelab.finetuning.files.tables import JSON, Row, Table, empty

WORDS = ("tokens", "words", "token", "text", "characters")
TAGS = ("tags", "ner_tags", "labels", "label", "ner", "pos_tags", "chunk_tags")
_ROLES = ("words", "tags", "id")
# Only CoNLL's own marks: a line that begins with "#" is mostly a hashtag.
_COMMENT = re.compile(r"-DOCSTART-|#(begin|end) document\b|# (id|text|sent_id|newdoc|newpar)\b")


def tagged(source: Path | Table, asked: Asked = Asked()) -> list[Tagged]:  # noqa: B008  (frozen)
    """The examples of a file."""
    if isinstance(source, Path):
        source = located(source)
        if suffix(source) not in (*JSON, ".parquet"):
            return _columns(source, asked)
    return _rows(columns.opened(source, asked, Counts(), roles=_ROLES), asked)


def cells(line: str) -> list[str]:
    """The columns of a line, parted by tabs where it has any, otherwise by spaces.

    Only plain spaces part them: Chinese text has words that are a wide space.
    """
    return line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]


def _columns(path: Path, asked: Asked) -> list[Tagged]:
    runs = _runs(path)
    if not runs:
        raise empty(path)
    first, opening = runs[0]
    width = len(cells(opening[0]))
    word, tag = _number(asked, "words", 0, width=width), _number(asked, "tags", -1, width=width)
    has_tags = asked.labelled or width > 1
    if has_tags and width == 1:
        raise UserError(f"{path}:{first} has a word and no tag: write one, a tab between them")
    checked: dict[str, str] = {}  # each tag once, so that millions share a few
    examples: list[Tagged] = []
    for first, run in runs:
        words, tags = [], []
        for number, line in enumerate(run, first):
            found = cells(line)
            if len(found) != width:
                raise UserError(
                    f"{path}:{number} has {len(found)} columns where {width} are expected:"
                    " give each word a tag, and part sentences by blank lines"
                )
            spelled = found[tag].strip()
            if spelled not in checked:
                labels = asked.labels if has_tags else ()
                checked[spelled] = columns.known(spelled, f"{path}:{number}", labels, what="tag")
            words.append(found[word])
            tags.append(checked[spelled])
        examples.append(Tagged(str(len(examples)), tuple(words), tuple(tags) if has_tags else None))
    return examples


def _number(asked: Asked, role: str, usual: int, *, width: int) -> int:
    given = asked.columns.get(role, str(usual))
    if not re.fullmatch(r"-?\d+", given) or not -width <= int(given) < width:
        raise UserError(
            f"--columns {role}={given} is none of the {width} columns of the file: they go by"
            " number, from 0, or from -1 backwards"
        )
    return int(given)


def _runs(path: Path) -> list[tuple[int, list[str]]]:
    """The lines of each sentence, and the number of the first: what lies between blank lines."""
    every = lines(path)
    breaks = [at for at, line in enumerate(every) if not line.strip() or _COMMENT.match(line)]
    ends = pairwise([-1, *breaks, len(every)])
    return [(begin + 2, every[begin + 1 : end]) for begin, end in ends if begin + 1 < end]


def _rows(table: Table, asked: Asked) -> list[Tagged]:
    word = columns.find(table, "words", WORDS, asked=asked)
    seek = columns.find if asked.labelled else columns.sought
    tag = seek(table, "tags", TAGS, asked=asked)
    ids = columns.sought(table, "id", columns.ID, asked=asked)
    examples = []
    for number, row in enumerate(table.rows):
        words = _list(row, word)
        tags = None
        if tag is not None and (asked.labelled or row.values.get(tag) is not None):
            tags = tuple(
                columns.known(spelled, row.place, asked.labels, what="tag")
                for spelled in _list(row, tag)
            )
            if len(tags) != len(words):
                raise UserError(
                    f"{row.place} has {len(words)} words and {len(tags)} tags:"
                    " give each word one tag"
                )
        examples.append(Tagged(columns.name(row, ids, number=number), words, tags))
    return examples


def _list(row: Row, column: str) -> tuple[str, ...]:
    value = row.values.get(column)
    if isinstance(value, str):  # words apart by spaces
        value = value.split()
    if not isinstance(value, list) or not value:
        raise UserError(f"{row.place} has no list in the column {column!r}: write words there")
    return tuple(str(entry) for entry in value)

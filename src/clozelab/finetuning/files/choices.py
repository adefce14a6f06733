"""A text and its possible continuations: SWAG, HellaSwag, RACE, or a question and its choices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.finetuning.examples import Choice
from clozelab.finetuning.files import columns
from clozelab.finetuning.files.columns import Asked
from clozelab.finetuning.files.lines import parsed, text
from clozelab.finetuning.files.tables import Row, Table

_ROLES = ("first", "question", "choices", "label", "id")
_FIRST = ("sent1", "ctx_a", "ctx", "context", "passage", "article", "premise", "first")
_QUESTION = ("sent2", "ctx_b", "question", "query", "stem")
_CHOICES = ("endings", "choices", "options", "candidates", "seconds")
_LABEL = ("label", "answer", "answerKey", "answer_key", "gold")
_NUMBERED = re.compile(r"(ending|choice|option|answer|candidate)[ _]?(\d+|[A-Ha-h])")


def choices(
    source: Path | Table,
    asked: Asked = Asked(),  # noqa: B008  (frozen)
    *,
    counts: Counts | None = None,
) -> list[Choice]:
    """The examples of a file, or of a folder in RACE's layout."""
    counts = Counts() if counts is None else counts
    if isinstance(source, Path) and source.is_dir():
        found = _race(_articles(source, asked.level), asked)
    else:
        table = columns.opened(source, asked, counts, roles=_ROLES)
        is_race = {"article", "questions", "options"} <= set(table.columns)
        found = _race(iter(table.rows), asked) if is_race else _rows(table, asked)
    examples = list(found)
    if not examples:
        name = source.name if isinstance(source, Table) else source
        raise UserError(f"{name} has no question: write examples into it, or name another")
    return examples


def joined(question: str, option: str) -> str:
    """A question with an option in the place of its blank, or behind it (ALBERT, XLNet: RACE)."""
    # Differs from ALBERT's code: a run of underscores is one blank, not one for each.
    if "_" in question:
        return re.sub("_+", lambda _: option, question)
    return f"{question} {option}".strip()


def _articles(folder: Path, level: str) -> Iterator[Row]:
    """RACE as it is given out: a file an article, in folders middle and high."""
    files = [file for file in folder.rglob("*.txt") if level in ("", file.parent.name)]
    if not files:
        raise UserError(f"{folder} has no article: RACE keeps them as middle/*.txt and high/*.txt")
    for file in sorted(files, key=lambda file: (file.parent, len(file.stem), file.stem)):
        record = parsed(text(file), file)
        if not isinstance(record, dict):
            raise UserError(f"{file}:1 is no article of RACE: fetch the file again")
        level = file.parent.name
        yield Row(f"{file}:1", {"id": f"{level}{file.name}", **record, "level": level})


def _race(articles: Iterator[Row], asked: Asked) -> Iterator[Choice]:
    for place, record in articles:
        name = str(record.get("id", place))
        if not str(record.get("level") or name).startswith(asked.level):
            continue
        asks, options = record.get("questions"), record.get("options")
        answers = record.get("answers")
        if not isinstance(asks, list) or not isinstance(options, list) or len(asks) != len(options):
            raise UserError(f"{place} needs as many options as questions: fix the article")
        if answers is None and not asked.labelled:
            answers = [None] * len(asks)
        if not isinstance(answers, list) or len(answers) != len(asks):
            raise UserError(f"{place} needs as many answers as questions: fix the article")
        for number, (ask, option, answer) in enumerate(zip(asks, options, answers, strict=True)):
            label = _right(answer, option, place, asked=asked)
            seconds = tuple(joined(ask.strip(), one.strip()) for one in option)
            yield Choice(f"{name}-{number}", str(record.get("article")), seconds, label)


def _rows(table: Table, asked: Asked) -> Iterator[Choice]:
    first = columns.sought(table, "first", _FIRST, asked=asked)
    question = columns.sought(table, "question", _QUESTION, asked=asked)
    if first is None and question is None:
        raise columns.missing(table, "first", (*_FIRST, *_QUESTION))
    numbered = tuple(name for name in table.columns if _NUMBERED.fullmatch(name))
    listed = columns.sought(table, "choices", _CHOICES, asked=asked)
    if listed is None and len(numbered) < 2:
        raise columns.missing(table, "choices", (*_CHOICES, "ending0", "ending1"))
    seek = columns.find if asked.labelled else columns.sought
    label = seek(table, "label", _LABEL, asked=asked)
    ids = columns.sought(table, "id", columns.ID, asked=asked)
    for number, row in enumerate(table.rows):
        options = _options(row, listed) if listed else [columns.words(row, one) for one in numbered]
        right = row.values.get(label) if label else None
        index = _right(right, options, row.place, asked=asked, counted=label == "label")
        before = columns.words(row, question) if question else ""
        if first is None:
            text, seconds = before, options
        else:
            text, seconds = columns.words(row, first), [joined(before, one) for one in options]
        yield Choice(columns.name(row, ids, number=number), text, tuple(seconds), index)


def _options(row: Row, column: str) -> list[str]:
    """The choices of a row: a list of texts or of records, or a list of texts by name."""
    value = row.values.get(column)
    if isinstance(value, Mapping):
        value = value.get("text")
    if isinstance(value, list) and len(value) > 1:
        texts = [one.get("text") if isinstance(one, Mapping) else one for one in value]
        if all(isinstance(one, str) for one in texts):
            return [str(one).strip() for one in texts]
    raise UserError(f"{row.place} has no two choices in {column!r}: write a list of texts there")


def _right(
    value: Any, options: list[str], place: str, *, asked: Asked, counted: bool = False
) -> int | None:
    """Which option is right; `counted`: a text of digits is its number before it is its text."""
    if value is None or value == "" or value == -1:
        if asked.labelled:
            raise UserError(f"{place} does not say which choice is right: write its number from 0")
        return None
    spelled = str(value).strip()
    number = int(spelled) if spelled.isdecimal() else None
    if number is not None and number < len(options) and (counted or not isinstance(value, str)):
        return number
    if spelled in options:
        return options.index(spelled)
    if len(spelled) == 1 and "A" <= spelled.upper() < chr(ord("A") + len(options)):
        return ord(spelled.upper()) - ord("A")
    if number is not None and number < len(options):
        return number
    raise UserError(
        f"{place} says {value!r} is right, which is none of its {len(options)} choices: write a"
        " number from 0, a letter from A, or the text"
    )

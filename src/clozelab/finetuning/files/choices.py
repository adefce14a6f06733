"""A text and its possible continuations: SWAG, HellaSwag, RACE, or a question and its choices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.finetuning.examples import Choice, Id
from clozelab.finetuning.files.columns import (
    DEFAULTS,
    Columns,
    ReadOptions,
    Source,
    cell_text,
    text_of,
)
from clozelab.finetuning.files.tables import Record, Table, parsed, text

_ROLES = ("first", "question", "choices", "label", "id")
_FIRST = ("sent1", "ctx_a", "ctx", "context", "passage", "article", "premise", "first")
_QUESTION = ("sent2", "ctx_b", "question", "query", "stem")
_CHOICES = ("endings", "choices", "options", "candidates", "seconds")
_LABEL = ("label", "answer", "answerKey", "answer_key", "gold")
_LETTERS = tuple("ABCDEFGH")  # the names of RACE's options
_NUMBERED = re.compile(r"(ending|choice|option|answer|candidate)[ _]?(\d+|[A-Ha-h])")


def choices(
    source: Source, options: ReadOptions = DEFAULTS, *, counts: Counts | None = None, **_: object
) -> list[Choice]:
    """The examples of a file, or of a folder in RACE's layout."""
    if isinstance(source, Path) and source.is_dir():
        examples = list(_read_race(_articles(source, options.level), options))
    else:
        columns = Columns(source, options, Counts() if counts is None else counts, roles=_ROLES)
        is_race = {"article", "questions", "options"} <= set(columns.names)
        examples = list(_read_race(columns.rows, options) if is_race else _read_rows(columns))
    if not examples:
        name = source.name if isinstance(source, Table) else source
        raise UserError(f"{name} has no question; add examples, or name another file")
    return examples


def joined(question: str, choice: str) -> str:
    """A question with a choice in its blank, or after it (ALBERT, XLNet: RACE)."""
    # Differs from ALBERT's code: a run of underscores is one blank, not one for each.
    if "_" in question:
        return re.sub("_+", lambda _: choice, question)
    return f"{question} {choice}".strip()


def _articles(folder: Path, level: str) -> Iterator[Record]:
    """Yield the articles of RACE as published: a file each, in folders middle and high."""
    files = [file for file in folder.rglob("*.txt") if level in ("", file.parent.name)]
    if not files:
        raise UserError(f"{folder} has no article; RACE keeps them as middle/*.txt and high/*.txt")
    for file in sorted(files, key=lambda file: (file.parent, len(file.stem), file.stem)):
        article = parsed(text(file), file)
        if not isinstance(article, dict):
            raise UserError(f"{file}:1 is not an article of RACE; download the file again")
        level = file.parent.name
        yield Record(f"{file}:1", {"id": f"{level}{file.name}", **article, "level": level})


def _read_race(articles: Iterable[Record], options: ReadOptions) -> Iterator[Choice]:
    for place, article in articles:
        name = str(article.get("id", place))
        if not str(article.get("level") or name).startswith(options.level):
            continue
        questions: Any = article.get("questions")
        lists: Any = article.get("options")
        answers: Any = article.get("answers")
        if not _same_length(questions, lists):
            raise UserError(f"{place} needs as many options as questions: fix the article")
        if answers is None and not options.labelled:
            answers = [None] * len(questions)
        if not _same_length(questions, answers):
            raise UserError(f"{place} needs as many answers as questions: fix the article")
        rows = zip(questions, lists, answers, strict=True)
        for number, (question, texts, answer) in enumerate(rows):
            if not isinstance(question, str) or not _are_texts(texts):
                raise UserError(
                    f"{place} has a question that is no text, or no two texts as its options: fix"
                    " the article"
                )
            label = _right_choice(answer, texts, place, labelled=options.labelled, names=_LETTERS)
            seconds = tuple(joined(question.strip(), text.strip()) for text in texts)
            example_id = Id(f"{name}-{number}", place)
            yield Choice(example_id, str(article.get("article")), seconds, label)


def _same_length(first: Any, second: Any) -> bool:
    """Whether both are lists of one length."""
    return isinstance(first, list) and isinstance(second, list) and len(first) == len(second)


def _are_texts(value: Any) -> bool:
    """Whether a value is a list of two or more texts."""
    return (
        isinstance(value, list) and len(value) > 1 and all(isinstance(text, str) for text in value)
    )


def _read_rows(columns: Columns) -> Iterator[Choice]:
    first, question = columns.sought("first", _FIRST), columns.sought("question", _QUESTION)
    if first is None and question is None:
        raise columns.missing("first", (*_FIRST, *_QUESTION))
    numbered = sorted((name for name in columns.names if _NUMBERED.fullmatch(name)), key=_number)
    listed = columns.sought("choices", _CHOICES)
    if listed is None and len(numbered) < 2:
        raise columns.missing("choices", (*_CHOICES, "ending0", "ending1"))
    label = columns.labels("label", _LABEL)
    labelled = columns.options.labelled
    texts_of = [
        _choice_texts(row, listed) if listed else [text_of(row, name) for name in numbered]
        for row in columns.rows
    ]
    answers = [row.values.get(label) if label else None for row in columns.rows]
    usual = _LETTERS if _are_letters(answers, texts_of) else ()
    rows = zip(columns.rows, texts_of, answers, strict=True)
    for number, (row, texts, answer) in enumerate(rows):
        names = _choice_names(row.values.get(listed)) if listed else []
        right = _right_choice(
            answer,
            texts,
            row.place,
            labelled=labelled,
            counted=label == "label",
            names=names or usual,
        )
        before = text_of(row, question) if question else ""
        if first is not None:
            before, texts = text_of(row, first), [joined(before, text) for text in texts]
        yield Choice(columns.id(row, number), before, tuple(texts), right)


def _are_letters(answers: Sequence[Any], texts_of: Sequence[list[str]]) -> bool:
    """Whether all answers are letters, and not all are texts of their choices."""
    pairs = [(answer, texts) for answer, texts in zip(answers, texts_of, strict=True) if answer]
    letters = all(answer in _LETTERS for answer, _ in pairs)
    return letters and any(answer not in texts for answer, texts in pairs)


def _number(name: str) -> int:
    """The number of a numbered column, such as ending2 or choice B."""
    match = _NUMBERED.fullmatch(name)
    assert match is not None
    word = match[2]
    return int(word) if word.isdecimal() else ord(word.upper()) - ord("A")


def _choice_names(value: Any) -> list[str]:
    """The names of the choices in a row, as in ARC: A to D, or 1 to 4."""
    if isinstance(value, Mapping):
        names = value.get("label")
    else:
        items = value if isinstance(value, list) else []
        names = [item.get("label") for item in items if isinstance(item, Mapping)]
    names = names if isinstance(names, list) else []
    return [] if None in names else [str(name).strip() for name in names]


def _choice_texts(row: Record, column: str) -> list[str]:
    """The choices of a row: a list of texts or of records, or a list of texts by name."""
    value = row.values.get(column)
    if isinstance(value, Mapping):
        value = value.get("text")
    if isinstance(value, list):
        texts = [item.get("text") if isinstance(item, Mapping) else item for item in value]
        if _are_texts(texts):
            return [str(text).strip() for text in texts]
    raise UserError(
        f"{row.place} has fewer than two choices in {column!r}; write a list of texts there"
    )


def _right_choice(
    value: Any,
    texts: list[str],
    place: str,
    *,
    labelled: bool,
    counted: bool = False,
    names: Sequence[str] = (),
) -> int | None:
    """The index of the right choice: by its name in the file, number, text or letter.

    With `counted`, a text of digits is read as a number first.
    """
    if value is None or value == "" or value == -1:
        if labelled:
            raise UserError(f"{place} does not say which choice is right; write its number, from 0")
        return None
    word = cell_text(value)
    if word in names[: len(texts)]:
        return names.index(word)
    number = int(word) if word.isdecimal() and int(word) < len(texts) else None
    if number is not None and (counted or not isinstance(value, str)):
        return number
    if word in texts:
        return texts.index(word)
    if len(word) == 1 and "A" <= word.upper() < chr(ord("A") + len(texts)):
        return ord(word.upper()) - ord("A")
    if number is not None:
        return number
    raise UserError(
        f"{place} gives {value!r} as the right answer, which is none of its {len(texts)}"
        " choices; write a number from 0, a letter from A, or the text"
    )

"""One text or two, with a class or a number: rows of a table → examples."""

from __future__ import annotations

from pathlib import Path

from clozelab.contracts import Counts
from clozelab.finetuning.examples import Sentences
from clozelab.finetuning.files import columns
from clozelab.finetuning.files.columns import Asked
from clozelab.finetuning.files.tables import Table

UNDECIDED = "examples skipped whose label the annotators did not agree on"
ROLES = ("first", "second", "label", "id")
SINGLE = ("sentence", "text", "text_a", "content", "review", "comment", "title")
PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text_a", "text_b"),
    ("#1 String", "#2 String"),
    ("first", "second"),
    ("sentence_a", "sentence_b"),
    ("text1", "text2"),
    ("s1", "s2"),
)


def sentences(
    source: Path | Table,
    asked: Asked = Asked(),  # noqa: B008  (frozen)
    *,
    pair: bool = False,
    numeric: bool = False,
    counts: Counts | None = None,
) -> list[Sentences]:
    """The examples of a file; `numeric` labels are numbers, others are classes."""
    counts = Counts() if counts is None else counts
    table = columns.opened(source, asked, counts, roles=ROLES)
    first, second = _texts(table, asked, pair=pair)
    usual = columns.NUMBER if numeric else columns.LABEL
    seek = columns.find if asked.labelled else columns.sought
    labels = seek(table, "label", usual, asked=asked)
    ids = columns.sought(table, "id", columns.ID, asked=asked)
    examples = []
    for number, row in enumerate(table.rows):
        read = columns.number if numeric else columns.label
        label = read(row, labels, asked=asked)
        if label in asked.undecided:
            counts.add(UNDECIDED, row.place)
            continue
        one = columns.words(row, first)
        two = columns.words(row, second) if second else None
        if not one or two == "":
            counts.add("empty texts", row.place)
        examples.append(Sentences(columns.name(row, ids, number=number), one, two, label))
    return examples


def _texts(table: Table, asked: Asked, *, pair: bool) -> tuple[str, str | None]:
    """The columns of the texts; of the usual pairs the first that is there whole."""
    if not pair:
        return columns.find(table, "first", SINGLE, asked=asked), None
    for usual in PAIRS:
        first = columns.sought(table, "first", usual[:1], asked=asked)
        second = columns.sought(table, "second", usual[1:], asked=asked)
        if first and second and first != second:
            return first, second
    role = "second" if "first" in asked.columns else "first"
    raise columns.missing(table, role, [pair[role == "second"] for pair in PAIRS])


def has_pair(source: Path | Table, asked: Asked) -> bool:
    """Whether a file has two texts a row: by what the user says, or by its columns."""
    table = columns.opened(source, asked, Counts(), roles=ROLES)
    small = {name.lower() for name in table.columns}
    usual = any({first.lower(), second.lower()} <= small for first, second in PAIRS)
    return "second" in asked.columns or ("first" not in asked.columns and usual)

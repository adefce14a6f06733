"""One text or two, with a class or a number: rows of a table → examples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.finetuning.examples import Id, Sentences
from clozelab.finetuning.files.columns import DEFAULTS, Columns, ReadOptions, Source, text_of
from clozelab.finetuning.files.tables import lines, located, table

_DATA, _GOLD = ".data.txt", ".gold.txt"  # suffixes of WiC's files
UNDECIDED = "examples skipped whose label the annotators did not agree on"
_ROLES = ("first", "second", "label", "id")
LABELS = (
    *("label", "gold_label", "labels", "class", "is_duplicate", "quality", "category"),
    *("sentiment", "target", "score", "similarity", "stars"),
)
_NUMBER = ("score", "label", "similarity", "relatedness_score", "rating", "value", "labels")
TEXTS = ("sentence", "text", "text_a", "content", "review", "comment", "title")
_PAIRS = (
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
    source: Source,
    options: ReadOptions = DEFAULTS,
    *,
    pair: bool = False,
    numeric: bool = False,
    counts: Counts | None = None,
) -> list[Sentences]:
    """The examples of a file; `numeric` labels are numbers, others are classes."""
    counts = Counts() if counts is None else counts
    columns = Columns(source, options, counts, roles=_ROLES)
    first, second = _pair_columns(columns) if pair else (columns.find("first", TEXTS), None)
    labels = columns.labels("label", _NUMBER if numeric else LABELS)
    read = columns.number if numeric else columns.label
    examples = []
    for number, row in enumerate(columns.rows):
        label = read(row, labels)
        if label in options.undecided:
            counts.add(UNDECIDED, row.place)
            continue
        texts = text_of(row, first), text_of(row, second) if second else None
        if "" in texts:
            counts.add("empty texts", row.place)
        examples.append(Sentences(columns.id(row, number), *texts, label))
    return examples


def senteval(path: Path, split: str) -> list[Sentences]:
    """SentEval's files, sorted by class, without a split of their own: every tenth line is dev."""
    return [s for n, s in enumerate(sentences(path)) if (n % 10 == 9) == (split == "dev")]


class ContrastedWord(NamedTuple):
    """A line of WiC: a word, its places in two sentences, whether it means the same in both."""

    word: str
    places: tuple[int, int]
    first: str
    second: str
    label: str


def gold_beside(path: Path) -> list[Path]:
    """The file with the labels of another, if they are separate."""
    split, sign, _ = path.name.partition(_DATA)
    return [located(path.with_name(split + _GOLD))] if sign else []


def contrasted_words(path: Path) -> list[ContrastedWord]:
    """Lines of a .data.txt: word, part of speech, its places in both sentences, the sentences."""
    (gold,) = gold_beside(path)
    data, labels = lines(path), lines(gold)
    if len(data) != len(labels):
        raise UserError(
            f"{gold} has {len(labels)} lines and {path} has {len(data)}; download both again"
        )
    words = []
    for number, (line, label) in enumerate(zip(data, labels, strict=True)):
        try:
            word, _, places, first, second = line.split("\t")
            at, other = (int(place) for place in places.split("-"))
            if max(at - len(first.split(" ")), other - len(second.split(" "))) >= 0:
                raise IndexError
        except (ValueError, IndexError):
            raise UserError(
                f"{path}:{number + 1} is not a line of WiC: word, part of speech, places as 2-1,"
                " two sentences, with tabs between them"
            ) from None
        words.append(ContrastedWord(word, (at, other), first, second, label.strip()))
    return words


def wic(path: Path, split: str) -> list[Sentences]:
    """WiC as pairs of sentences, the word in question before the first."""
    return [
        Sentences(
            Id(str(number), f"{path}:{number + 1}"),
            f"{pair.word}: {pair.first}",
            pair.second,
            pair.label,
        )
        for number, pair in enumerate(contrasted_words(path))
    ]


def sts(path: Path, split: str, *, year: int) -> list[Sentences]:
    """The examples of one year of SemEval's text similarity."""
    whole = table(path)
    rows = [row for row in whole.rows if row.values.get("year") == str(year)]
    examples = sentences(replace(whole, rows=rows), pair=True, numeric=True)
    return [
        example._replace(id=Id(f"{row.values.get('file')} {n}", row.place))
        for n, (row, example) in enumerate(zip(rows, examples, strict=True))
    ]


def _pair_columns(columns: Columns) -> tuple[str, str]:
    """The columns of two texts; by default the first complete usual pair."""
    for usual in _PAIRS:
        first, second = columns.sought("first", usual[:1]), columns.sought("second", usual[1:])
        if first and second and first != second:
            return first, second
    role = "second" if "first" in columns.options.columns else "first"
    raise columns.missing(role, [pair[role == "second"] for pair in _PAIRS])


def has_pair(source: Source, options: ReadOptions) -> bool:
    """Whether a file has two texts per row: by the user's columns, or by its own."""
    names = Columns(source, options, Counts(), roles=_ROLES).names
    lower = {name.lower() for name in names}
    usual = any({first.lower(), second.lower()} <= lower for first, second in _PAIRS)
    return "second" in options.columns or ("first" not in options.columns and usual)

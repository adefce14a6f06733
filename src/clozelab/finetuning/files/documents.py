"""Documents with the mentions of each entity: CoNLL-2012's columns, JSON lines, LitBank, GAP.

GAP (Webster et al. 2018) has a pronoun and two names in a text, which is split into words and
sentences here.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.finetuning.examples import Document, Id, Mention, Pronoun
from clozelab.finetuning.files.columns import DEFAULTS, Columns, ReadOptions, Source, check_roles
from clozelab.finetuning.files.tables import JSON, Record, empty, lines, located, suffix, table
from clozelab.finetuning.files.tagged import cells

_BEGIN = re.compile(r"#begin document \(?(.*?)\)?(?:; part (\d+))?\s*")
_BRACKET = re.compile(r"(\()?(\d+)(\))?")
_ROLES = ("sentences", "clusters", "id")
_WORD = 3  # document, part, number of the word, word, …
_GAP_COLUMNS = ("ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "B", "B-offset")
_GAP_WORD = re.compile(
    r"n't\b|'(?:s|re|ve|ll|d|m)\b|\w+(?=n't\b)|\w+(?:\*\w+)*|-{2,}|[^\w\s]", re.IGNORECASE
)  # in GAP's files a letter that is not ASCII is a star
_STOP = re.compile(r"[.!?]+['\"”’)\]]*\s+(?=[\"'“‘(]*[A-Z0-9])")
_ABBREV = re.compile(r"\b(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Jr|Sr|Prof|Rev|Gen|Col|Capt|Lt|vs|No)\.\s+$")


def documents(source: Source, options: ReadOptions = DEFAULTS, **_: object) -> list[Document]:
    """The examples of a file."""
    if isinstance(source, Path):
        source = located(source)
        if suffix(source) not in (*JSON, ".parquet"):
            check_roles(options, _ROLES)
            return list(_read_columns(source, options))
    return list(_rows(Columns(source, options, Counts(), roles=_ROLES)))


def litbank(path: Path, split: str) -> list[Document]:
    """A file of all documents, or a folder with a file for each; every tenth is dev."""
    files = sorted(path.glob("*.conll*")) if path.is_dir() else [path]
    parts = [document for file in files for document in documents(file)]
    return [part for n, part in enumerate(parts) if (n % 10 == 9) == (split == "dev")]


@dataclass
class _Reading:
    """A document that is being read."""

    id: str
    sentences: list[list[str]] = field(default_factory=lambda: [[]])
    words: int = 0
    clusters: dict[int, set[Mention]] = field(default_factory=dict)  # in the order met
    unclosed: list[tuple[int, int, str]] = field(default_factory=list)  # entity, first word, place

    def add(self, word: str, brackets: str, *, place: str) -> None:
        """Add a word, and open and close mentions at it."""
        for piece in brackets.split("|") if brackets not in ("-", "_", "") else ():
            match = _BRACKET.fullmatch(piece)
            if match is None or not (match[1] or match[3]):
                raise UserError(f"{place} has {piece!r} in its last column: write (0), (0 or 0)")
            entity = int(match[2])
            if match[1]:
                self.clusters.setdefault(entity, set())
                self.unclosed.append((entity, self.words, place))
            if match[3]:
                self.close(entity, place)
        self.sentences[-1].append(word)
        self.words += 1

    def close(self, entity: int, place: str) -> None:
        """Close the last opened mention of an entity."""
        for at in reversed(range(len(self.unclosed))):
            if self.unclosed[at][0] == entity:
                first = self.unclosed.pop(at)[1]
                self.clusters[entity].add(Mention(first, self.words))
                return
        raise UserError(f"{place} closes {entity}), which is not open: write ({entity} before it")

    def finish(self) -> Iterator[Document]:
        """Yield the document, unless nothing was read."""
        if self.unclosed:
            entity, _, place = self.unclosed[0]
            raise UserError(f"{place} opens ({entity}, which nothing closes: write {entity}) after")
        if self.words:
            sentences = tuple(tuple(sentence) for sentence in self.sentences if sentence)
            clusters = tuple(tuple(sorted(mentions)) for mentions in self.clusters.values())
            yield Document(self.id, sentences, clusters)


def _read_columns(path: Path, options: ReadOptions) -> Iterator[Document]:
    column = options.columns.get("sentences", str(_WORD))
    if not re.fullmatch(r"\d+", column):
        raise UserError(
            f"--columns sentences={column} is not a column of {path}; columns are numbered from 0"
        )
    word, rows = int(column), lines(path)
    if not rows:
        raise empty(path)
    reading = _Reading(Id(path.name, f"{path}:1"))
    for number, line in enumerate(rows, 1):
        place, begin = f"{path}:{number}", _BEGIN.fullmatch(line)
        if begin or line.startswith("#end document"):
            yield from reading.finish()
            name = f"{begin[1]}_{int(begin[2] or 0)}" if begin else path.name
            reading = _Reading(Id(name, place))
        elif line.strip():
            row = cells(line)
            if len(row) < word + 2:
                raise UserError(
                    f"{place} has {len(row)} columns where at least {word + 2} are expected:"
                    " the word is the fourth, the mentions are the last"
                )
            reading.add(row[word], row[-1].strip(), place=place)
        elif reading.sentences[-1]:
            reading.sentences.append([])
    yield from reading.finish()


def _rows(columns: Columns) -> Iterator[Document]:
    texts = columns.find("sentences", ("sentences", "words"))
    labels = columns.labels("clusters", ("clusters", "coref_clusters"))
    for number, row in enumerate(columns.rows):
        sentences = _listed_sentences(row, texts)
        value = row.values.get(labels) if labels else None
        if value is None and columns.options.labelled:
            raise UserError(f"{row.place} has no clusters; add them, or remove the document")
        size = sum(map(len, sentences))
        clusters = None if value is None else _clusters(row, value, size)
        yield Document(columns.id(row, number), sentences, clusters)


def _listed_sentences(row: Record, column: str) -> tuple[tuple[str, ...], ...]:
    value = row.values.get(column)
    valid = isinstance(value, list) and all(isinstance(words, list) and words for words in value)
    if not value or not valid:
        raise UserError(f"{row.place} needs a list of lists of words in {column!r}: write [[…], …]")
    return tuple(tuple(str(word) for word in words) for words in value)


def _clusters(row: Record, value: object, size: int) -> tuple[tuple[Mention, ...], ...]:
    clusters = []
    for cluster in value if isinstance(value, list) else [value]:
        mentions = set()
        for span in cluster if isinstance(cluster, list) else [cluster]:
            ends = span if isinstance(span, list) and len(span) == 2 else (-1, -1)
            if not all(isinstance(end, int) for end in ends) or not 0 <= ends[0] <= ends[1] < size:
                raise UserError(
                    f"{row.place} has the mention {span!r} in a document of {size} words: write"
                    " its first and its last word, counted from 0 over the document"
                )
            mentions.add(Mention(*ends))
        clusters.append(tuple(sorted(mentions)))
    return tuple(clusters)


def gap(path: Path, split: str = "") -> list[Document]:
    """The documents of a file of GAP, with their pronouns.

    A document has one cluster, the pronoun and the name it stands for, or none.
    """
    records = table(located(path))
    if absent := [name for name in _GAP_COLUMNS if name not in records.columns]:
        raise UserError(
            f"{path} has no column {absent[0]}: GAP's files have {', '.join(_GAP_COLUMNS)}"
        )
    return [_gap_document(row) for row in records.rows]


def _gap_document(row: Record) -> Document:
    text = str(row.values["Text"])
    spans = [_character_span(row, text, name) for name in ("Pronoun", "A", "B")]
    starts = _split_words(text, cuts={end for span in spans for end in span})
    pronoun, a, b = (_word_span(starts, span) for span in spans)
    is_a, is_b = (_read_flag(row, name) for name in ("A-coref", "B-coref"))
    clusters: tuple[tuple[Mention, ...], ...] | None = None
    if is_a is not None and is_b is not None:
        names = [name for name, true in ((a, is_a), (b, is_b)) if true]
        clusters = (tuple(sorted({pronoun, *names})),) if names else ()
    question = Pronoun(str(row.values["Pronoun"]), pronoun, a, b, is_a, is_b)
    return Document(
        Id(str(row.values["ID"]), row.place), _sentences(text, starts, spans), clusters, question
    )


def _character_span(row: Record, text: str, name: str) -> tuple[int, int]:
    words, offset = str(row.values[name]), str(row.values[f"{name}-offset"])
    start = int(offset) if offset.isdecimal() else len(text)
    if not words or not text.startswith(words, start):
        raise UserError(
            f"{row.place} has no {words!r} at character {offset}; download the file again"
        )
    return start, start + len(words)


def _read_flag(row: Record, name: str) -> bool | None:
    value = str(row.values.get(name, "")).strip().lower()
    if value not in ("true", "false", ""):
        raise UserError(f"{row.place} has {value!r} as {name}: write TRUE or FALSE")
    return None if not value else value == "true"


def _split_words(text: str, *, cuts: Iterable[int]) -> list[tuple[int, int]]:
    """The characters of each word; words are split at `cuts`."""
    words: list[tuple[int, int]] = []
    for match in _GAP_WORD.finditer(text):
        inside = sorted(cut for cut in cuts if match.start() < cut < match.end())
        words += pairwise([match.start(), *inside, match.end()])
    return words


def _word_span(words: list[tuple[int, int]], span: tuple[int, int]) -> Mention:
    inside = [at for at, (start, end) in enumerate(words) if span[0] <= start and end <= span[1]]
    return Mention(inside[0], inside[-1])


def _sentences(
    text: str, words: list[tuple[int, int]], spans: list[tuple[int, int]]
) -> tuple[tuple[str, ...], ...]:
    """The words by sentence, split at a stop before a capital, but not inside a mention."""
    ends = [
        match.end()
        for match in _STOP.finditer(text)
        if not _ABBREV.search(text, 0, match.end())
        and not any(start < match.end() < end for start, end in spans)
    ]
    by_sentence = groupby(words, key=lambda word: bisect_right(ends, word[0]))
    return tuple(tuple(text[start:end] for start, end in sentence) for _, sentence in by_sentence)

"""Documents with the mentions of each entity: CoNLL-2012's columns, or JSON lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.finetuning.examples import Document, Mention
from clozelab.finetuning.files import columns
from clozelab.finetuning.files.columns import Asked
from clozelab.finetuning.files.lines import lines, located, suffix
from clozelab.finetuning.files.tables import JSON, Row, Table, empty
from clozelab.finetuning.files.tagged import cells

_BEGIN = re.compile(r"#begin document \(?(.*?)\)?(?:; part (\d+))?\s*")
_BRACKET = re.compile(r"(\()?(\d+)(\))?")
_WORD = 3  # document, part, number of the word, word, …


def documents(source: Path | Table, asked: Asked = Asked()) -> list[Document]:  # noqa: B008
    """The examples of a file."""
    if isinstance(source, Path):
        source = located(source)
        if suffix(source) not in (*JSON, ".parquet"):
            return list(_columns(source, asked))
    roles = ("sentences", "clusters", "id")
    return list(_rows(columns.opened(source, asked, Counts(), roles=roles), asked))


@dataclass
class _Reading:
    """A document as far as it has been read."""

    id: str
    sentences: list[list[str]] = field(default_factory=lambda: [[]])
    words: int = 0
    clusters: dict[int, set[Mention]] = field(default_factory=dict)  # in the order met
    unclosed: list[tuple[int, int, str]] = field(default_factory=list)  # entity, first word, place

    def add(self, word: str, brackets: str, *, place: str) -> None:
        """Take in a word, and what opens and closes at it."""
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
        """End the mention of an entity that was opened last."""
        for at in reversed(range(len(self.unclosed))):
            if self.unclosed[at][0] == entity:
                first = self.unclosed.pop(at)[1]
                self.clusters[entity].add(Mention(first, self.words))
                return
        raise UserError(f"{place} closes {entity}), which is not open: write ({entity} before it")

    def finish(self) -> Document:
        """The document, read whole."""
        if self.unclosed:
            entity, _, place = self.unclosed[0]
            raise UserError(f"{place} opens ({entity}, which nothing closes: write {entity}) after")
        return Document(
            self.id,
            tuple(tuple(sentence) for sentence in self.sentences if sentence),
            tuple(tuple(sorted(mentions)) for mentions in self.clusters.values()),
        )


def _columns(path: Path, asked: Asked) -> Iterator[Document]:
    given = asked.columns.get("sentences", str(_WORD))
    if not re.fullmatch(r"\d+", given):
        raise UserError(
            f"--columns sentences={given} is no column of {path}: they go by number, from 0"
        )
    word = int(given)
    reading: _Reading | None = None
    number = 0
    for number, line in enumerate(lines(path), 1):
        place = f"{path}:{number}"
        if match := _BEGIN.fullmatch(line):
            if reading is not None and reading.words:
                yield reading.finish()
            reading = _Reading(f"{match[1]}_{int(match[2] or 0)}")
        elif line.startswith("#end document"):
            if reading is not None and reading.words:
                yield reading.finish()
            reading = None
        elif not line.strip():
            if reading is not None and reading.sentences[-1]:
                reading.sentences.append([])
        else:
            reading = reading or _Reading(path.name)
            found = cells(line)
            if len(found) < word + 2:
                raise UserError(
                    f"{place} has {len(found)} columns where at least {word + 2} are expected:"
                    " the word is the fourth, the mentions are the last"
                )
            reading.add(found[word], found[-1].strip(), place=place)
    if not number:
        raise empty(path)
    if reading is not None and reading.words:
        yield reading.finish()


def _rows(table: Table, asked: Asked) -> Iterator[Document]:
    texts = columns.find(table, "sentences", ("sentences", "words"), asked=asked)
    seek = columns.find if asked.labelled else columns.sought
    clusters = seek(table, "clusters", ("clusters", "coref_clusters"), asked=asked)
    ids = columns.sought(table, "id", columns.ID, asked=asked)
    for number, row in enumerate(table.rows):
        sentences = _sentences(row, texts)
        size = sum(map(len, sentences))
        found = row.values.get(clusters) if clusters else None
        made = None if found is None else _clusters(row, found, size)
        if made is None and asked.labelled:
            raise UserError(f"{row.place} has no clusters: write them, or leave the document out")
        yield Document(columns.name(row, ids, number=number), sentences, made)


def _sentences(row: Row, column: str) -> tuple[tuple[str, ...], ...]:
    value = row.values.get(column)
    whole = isinstance(value, list) and all(isinstance(words, list) and words for words in value)
    if not value or not whole:
        raise UserError(f"{row.place} needs a list of lists of words in {column!r}: write [[…], …]")
    return tuple(tuple(str(word) for word in words) for words in value)


def _clusters(row: Row, value: object, size: int) -> tuple[tuple[Mention, ...], ...]:
    made = []
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
        made.append(tuple(sorted(mentions)))
    return tuple(made)

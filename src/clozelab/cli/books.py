"""The demonstration's task: which book a sentence is from, of documents no encoder has read."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path

from clozelab import data
from clozelab.files import write_text

# Documents go by the book and the chapter or entry; three of the books are novels of one author.
_BOOKS = {"pride": "austen", "northanger": "austen", "persuasion": "austen"}
_ASIDE = 8  # one document in so many
_SPLITS = {"train": slice(0, 20), "dev": slice(20, 120)}  # sentences of each book
_WORDS = range(6, 15)


def set_aside(place: Path) -> tuple[Path, dict[str, Path]]:
    """Text to train from, and labelled sentences of the rest; written unless they are there."""
    text = place / "text.jsonl"
    splits = {name: place / f"books-{name}.tsv" for name in _SPLITS}
    if not text.exists():
        place.mkdir(parents=True, exist_ok=True)
        with gzip.open(data.corpus(), "rt", encoding="utf-8") as file:
            lines = list(file)
        sentences = _sentences(lines[::_ASIDE])
        for name, part in _SPLITS.items():
            write_text(splits[name], _table(sentences, part))
        del lines[::_ASIDE]
        write_text(text, "".join(lines))
    return text, splits


def _sentences(lines: list[str]) -> dict[str, list[str]]:
    """Sentences of a middling length by their book, in an order of their own."""
    found: dict[str, list[str]] = {}
    for line in lines:
        document = json.loads(line)
        book = document["id"].partition("-")[0]
        for sentence in re.split(r"(?<=[.!?;])\s+", document["text"]):
            words = sentence.split()
            if len(words) in _WORDS:
                found.setdefault(_BOOKS.get(book, book), []).append(" ".join(words))
    for book, sentences in sorted(found.items()):
        random.Random(book).shuffle(sentences)
    return found


def _table(sentences: dict[str, list[str]], part: slice) -> str:
    rows = [f"{one}\t{book}\n" for book in sorted(sentences) for one in sentences[book][part]]
    return "".join(["sentence\tlabel\n", *rows])

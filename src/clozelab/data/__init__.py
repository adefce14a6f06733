"""Text and tasks that come with clozelab; README.md beside this file says where they come from."""

from __future__ import annotations

from pathlib import Path

from clozelab.nearest import nearest

__all__ = [
    "TASKS",
    "TOKENIZERS",
    "chinese",
    "chinese_entities",
    "corpus",
    "recorded",
    "task",
    "tokenizer",
]

_FOLDER = Path(__file__).resolve().parent
_ENDINGS = {
    "choices": "jsonl",
    "definitions": "tsv",
    "pairs": "tsv",
    "spans": "json",
    "tags": "conll",
}
_SPLITS = ("train", "dev")

TASKS = tuple(_ENDINGS)
TOKENIZERS = ("byte_bpe", "char_bpe", "chars", "unigram", "wordpiece")


def corpus() -> Path:
    """The English corpus: gzipped JSON lines with ``id`` and ``text``."""
    return _FOLDER / "corpus.jsonl.gz"


def chinese() -> Path:
    """The Chinese sample, in the same layout as the corpus."""
    return _FOLDER / "chinese.jsonl.gz"


def chinese_entities() -> Path:
    """The names that occur in the Chinese sample, one on a line."""
    return _FOLDER / "chinese_entities.txt"


def recorded() -> Path:
    """What recorded runs reached: size, tokens, losses, and the loss of the unigram plateau."""
    return _FOLDER / "recorded.json"


def task(name: str, split: str) -> Path:
    """The file of one split of a task."""
    _check("task", name, TASKS)
    _check("split", split, _SPLITS)
    return _FOLDER / "tasks" / name / f"{split}.{_ENDINGS[name]}"


def tokenizer(name: str) -> Path:
    """A small tokenizer of that kind, trained on the embedded text."""
    _check("tokenizer", name, TOKENIZERS)
    return _FOLDER / "tokenizers" / f"{name}.json"


def _check(kind: str, value: str, known: tuple[str, ...]) -> None:
    if value in known:
        return
    meant = nearest(value, known)
    hint = f"; did you mean {meant!r}?" if meant else ""
    raise ValueError(f"unknown {kind} {value!r}: there are {', '.join(known)}{hint}")

"""How a corpus is to be built, and how far its building is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from clozelab.text.reading.sources import Reading


@dataclass(frozen=True)
class BuildOptions:
    """How a corpus is to be built."""

    reading: Reading = field(default_factory=Reading)
    sentences: Literal["auto", "nupunkt", "plain"] = "auto"
    segment: bool = True
    entities: str | None = None  # a file with a name on each line
    spans: str | None = None  # a TSV of document, start, end, kind
    phrases: bool = False
    held_out: float = 0.01  # share of the tokens
    unique: bool = False  # leave out documents that repeat another
    words: int = 30_000  # size of the vocabulary of whole words
    workers: int = 1


@dataclass(frozen=True)
class BuildProgress:
    """How far a stage of the build is; `total` is unknown for standard input."""

    stage: str
    done: int
    total: int | None
    unit: Literal["bytes", "steps"] = "bytes"

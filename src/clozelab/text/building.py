"""The options of a corpus build, the choice of its tokenizer, and defaults of the machine."""

from __future__ import annotations

import math
import os
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from tokenizers import Tokenizer

from clozelab.errors import UserError
from clozelab.nearest import nearest
from clozelab.ranges import BelowOne, CheckedOptions, PositiveInt, Range
from clozelab.text.extension import Extension
from clozelab.text.loading import load
from clozelab.text.reading.layouts import Reading
from clozelab.text.reading.sentences import Splitting, splitter
from clozelab.text.tokenizers import TOKENIZERS, TokenizerSpec
from clozelab.text.words import segmenter

VOCABULARY = 30_000  # ids, unless asked otherwise

_SIMILARITY = Range(lambda value: 0 < value <= 1, "must be a similarity above 0, at most 1")

_LINE = Range(lambda value: value.strip() and value.isprintable(), "must be one line of text")

_GROUPS = Path("/sys/fs/cgroup")

Level = Literal["lines", "paragraphs", "documents"]  # of text that may repeat


@dataclass(frozen=True)
class BuildOptions(CheckedOptions):
    """The options of a corpus build."""

    reading: Reading = field(default_factory=Reading)
    sentences: Splitting = "auto"
    segment: bool = True
    entities: str | None = None  # a file with a name on each line
    spans: str | None = None  # a TSV of document, start, end, kind
    phrases: bool = False
    held_out: BelowOne = 0.01  # share of the tokens
    unique: Level | None = None  # leave out those that repeat an earlier one
    near_duplicates: Annotated[float, _SIMILARITY] | None = None  # leave out documents so similar
    exclude: tuple[str, ...] = ()  # evaluation files, whose text is left out
    exclude_ngram: PositiveInt = 13  # a line that shares so many words in a row is left out
    words: int = 30_000  # size of the vocabulary of whole words
    license: Annotated[str, _LINE] | None = None  # of the text, as whoever builds it states it
    workers: PositiveInt | None = 1  # None: one per core of all nodes
    on: str | None = None  # a Ray cluster to build on


@dataclass(frozen=True)
class BuildProgress:
    """The progress of a stage of the build; `total` is None where it is unknown."""

    stage: str
    done: int
    total: int | None
    unit: Literal["bytes", "steps"] = "bytes"


T = TypeVar("T")
Stage = Generator[BuildProgress, None, T]  # a stage of the build, and its result


def choose_tokenizer(
    *,
    kind: str | None = None,
    vocabulary: int | None = None,
    cased: bool | None = None,
    source: str | None = None,
    recipe: TokenizerSpec | None = None,
    extend: int | None = None,
    **own: Any,
) -> TokenizerSpec | Tokenizer:
    """The tokenizer to build a corpus with: loaded (and given `extend` words), or to be trained.

    `own` are settings of particular kinds, such as the k of k-mers; None is the default.
    """
    choices = {"vocabulary": vocabulary, "cased": cased, **own}
    choices = {name: value for name, value in choices.items() if value is not None}
    if source is not None:
        if kind or recipe or choices:
            raise UserError(
                "--tokenizer-from has its own settings; leave the other tokenizer options out"
            )
        trained = load(source)
        return trained if extend is None else Extension(trained.to_str(), extend)
    if extend is not None:
        raise UserError("--extend adds words to a trained tokenizer; name it with --tokenizer-from")
    name = kind or "wordpiece"
    if recipe is None and name not in TOKENIZERS:
        meant = nearest(name, TOKENIZERS)
        hint = f"did you mean {meant}? " if meant else ""
        raise UserError(
            f"--tokenizer {name}: is unknown; {hint}choose from {', '.join(TOKENIZERS)}"
        )
    spec: Any = recipe or TOKENIZERS[name](vocabulary=VOCABULARY)
    # Parts from outside the package need not have `spells`.
    if vocabulary is not None and vocabulary < 300 and getattr(spec, "spells", True):
        raise UserError(f"--vocabulary {vocabulary}: is too small; give at least 300")
    for setting in choices.keys() - _field_names(type(spec)):
        owners = [other for other, part in TOKENIZERS.items() if setting in _field_names(part)]
        raise UserError(
            f"--{setting}: is not a setting of this tokenizer; it belongs to --tokenizer"
            f" {' or '.join(owners)}"
        )
    chosen: TokenizerSpec = replace(spec, **choices)
    return chosen


def _field_names(part: Any) -> set[str]:
    return {field.name for field in fields(part)}


def missing(options: BuildOptions) -> list[str]:
    """Sentences about packages that are not installed and would make a better corpus."""
    lines = []
    if options.sentences == "auto" and splitter("auto").name.startswith("plain"):
        lines.append("nupunkt is not installed: sentences are split by a plain rule")
    if options.segment and segmenter() is None:
        lines.append("rjieba is not installed: Chinese words are not segmented")
    return lines


def cores() -> int:
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> float:
    """Bytes of memory: of the machine, or less where a control group limits this process."""
    sizes = [math.inf]
    with suppress(AttributeError, ValueError, OSError):  # not every system has these
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, group = line.split(":", 2)
            is_v1 = "memory" in kinds.split(",")  # the first version of control groups
            root, name = (
                (_GROUPS / "memory", "memory.limit_in_bytes") if is_v1 else (_GROUPS, "memory.max")
            )
            for place in (Path(group), *Path(group).parents):
                with suppress(OSError, ValueError):  # no such group here, or no limit
                    sizes.append(int((root / place.relative_to("/") / name).read_text()))
    return min(sizes)

"""A corpus on one screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from clozelab.api.corpora import show_corpus
from clozelab.cli.views import Values, facts, table

if TYPE_CHECKING:
    from clozelab.api.corpora import CorpusSummary
    from clozelab.text.store import Corpus


def summary(result: CorpusSummary, values: Values) -> Iterator[RenderableType]:
    """Sizes and facts."""
    sizes = table("", right=("documents", "sentences", "tokens"))
    for split, numbers in result.splits.items():
        sizes.add_row(split.replace("_", "-"), *(f"{number:,}" for number in numbers.values()))
    head = Text.assemble((str(result.path), "bold"), f"  {result.bytes / 1e6:,.1f} MB")
    yield Group(head, Text(), sizes, Text(), facts(result.facts.items()))


def built(result: Corpus, values: Values) -> Iterator[RenderableType]:
    """What was built."""
    return summary(show_corpus(result), values)


def checked(result: Corpus, values: Values) -> Iterator[str]:
    """How much was compared."""
    yield f"{result.path}: all {len(result.manifest['files'])} files are whole"

"""Vocabularies as something to look at: sizes, what a text makes of them, before and after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from clozelab.cli.views import Values, facts, table
from clozelab.nearest import counted

if TYPE_CHECKING:
    from clozelab.api.vocabularies import VocabularyChange, VocabularySummary
    from clozelab.models.vocabulary import VocabularyFigures
    from clozelab.text.extension import NewWord

_TOP = 20  # words that are shown


def summary(result: VocabularySummary, values: Values) -> Iterator[RenderableType]:
    """What a vocabulary is, and what it makes of a text."""
    size, tokens = result.figures, result.figures.tokens
    rows = {
        "vocabulary": f"{tokens:,} tokens, {result.kind}",
        "special tokens": " ".join(result.specials),
        "parameters": f"{size.parameters:,}, of which {size.in_tables / size.parameters:.1%} have a"
        f" row per token ({size.bytes / 1e6:,.1f} MB in all)",
    }
    if result.used is not None:
        rows["used by the text"] = f"{counted(result.used, 'token')}, {result.used / tokens:.1%}"
    rows |= dict(_text(size))
    if result.used is not None:
        rows["words worth adding"] = _worth(result.candidates)
    yield Group(Text(result.place, style="bold"), Text(), facts(rows.items()))
    if result.candidates:
        lines = [
            (each.text, f"{each.count:,}", f"{each.pieces}" if each.known else "unknown",
             f"{each.saves:,}") for each in result.candidates[:_TOP]
        ]  # fmt: skip
        yield Text()
        yield table("word", right=("occurs", "pieces", "saves"), rows=lines)


def _worth(candidates: Sequence[NewWord]) -> str:
    saved = sum(each.saves for each in candidates if each.known)
    unknown = sum(each.count for each in candidates if not each.known)
    parts = [f"save {counted(saved, 'token')}"] * bool(saved)
    parts += [f"make {unknown:,} known"] * bool(unknown)
    return f"{len(candidates):,}" + (f", which would {' and '.join(parts)}" if parts else "")


def changed(result: VocabularyChange, values: Values) -> Iterator[RenderableType]:
    """Before and after."""
    columns = [dict(_all(each)) for each in (result.before, result.after)]
    rows = [(name, before, columns[1][name]) for name, before in columns[0].items()]
    if result.added:
        more = f" and {len(result.added) - _TOP:,} more" if len(result.added) > _TOP else ""
        yield Text(f"added: {', '.join(result.added[:_TOP])}{more}")
        yield Text()
    yield table("", right=("before", "after"), rows=rows)


def _all(size: VocabularyFigures) -> Iterator[tuple[str, str]]:
    yield "tokens", f"{size.tokens:,}"
    yield "parameters", f"{size.parameters:,}"
    yield "in tables with a row per token", f"{size.in_tables / size.parameters:.1%}"
    yield "size", f"{size.bytes / 1e6:,.1f} MB"
    yield from _text(size)


def _text(size: VocabularyFigures) -> Iterator[tuple[str, str]]:
    if size.text is not None:
        yield "tokens per word", f"{size.text.tokens_per_word:.3f}"
        yield "unknown tokens", f"{size.text.unknown / max(size.text.tokens, 1):.2%}"
    if size.words_per_second is not None:
        yield "words per second", f"{size.words_per_second:,.0f}"

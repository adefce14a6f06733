"""Corpora and their blocks as something to look at: text, segments, labels, what is hidden."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text
from tokenizers import Tokenizer

from clozelab.api.corpora import show_corpus
from clozelab.cli.views import Values, facts, table
from clozelab.config.recipe import Recipe
from clozelab.contracts import Blocks, Mark, Plan
from clozelab.nearest import counted
from clozelab.pretraining.shown_masks import lines, piece

if TYPE_CHECKING:
    from clozelab.api.corpora import CorpusSummary
    from clozelab.api.recipes import BlockSample, MaskedText
    from clozelab.text.store import Corpus
    from clozelab.text.store.plans import KeptPlan

_STYLES = {
    **{"": "", "head": "bold", "faint": "dim"},
    **{"mask": "white on blue", "random": "bold red", "same": "bold green"},
}
_SEGMENTS = ("cyan", "yellow", "magenta")
_SAMPLE = 1000  # blocks, of which the mean length is computed


def summary(result: CorpusSummary, values: Values) -> Iterator[RenderableType]:
    """Sizes and facts."""
    sizes = table("", right=("documents", "sentences", "tokens"))
    for split, numbers in result.splits.items():
        sizes.add_row(split.replace("_", "-"), *(f"{number:,}" for number in numbers.values()))
    head = Text.assemble((result.name, "bold"), f"  {result.bytes / 1e6:,.1f} MB")
    yield Group(head, Text(), sizes, Text(), facts(result.facts.items()))


def built(result: Corpus, values: Values) -> Iterator[RenderableType]:
    """What was built."""
    return summary(show_corpus(result), values)


def checked(result: Corpus, values: Values) -> Iterator[str]:
    """How much was compared."""
    yield f"{result.name}: all {len(result.manifest['files'])} files are intact"


def plans(result: list[KeptPlan], values: Values) -> Iterator[RenderableType]:
    """What each plan is for, when it was last used, and its size."""
    place, what = values["corpus"], "removed" if values.get("remove") else "in all"
    if result:
        rows = [
            (_purpose(plan.purpose), f"{plan.used:%d %B %Y %H:%M}", f"{plan.bytes / 1e6:,.1f} MB")
            for plan in result
        ]
        yield table("plan", right=("last used", "size"), rows=rows)
    size = sum(plan.bytes for plan in result) / 1e6
    yield f"{place}: {counted(len(result), 'plan')}, {size:,.1f} MB {what}"


def _purpose(purpose: Mapping[str, Any]) -> str:
    if not purpose:
        return "unfinished"
    draws = f"seed {purpose['seed']}, {{}} {purpose['copy']}"
    if "order" in purpose:
        return f"the order of {purpose['order']:,} blocks, {draws.format('epoch')}"
    settings = dict(purpose["blocks"])
    said = [settings.pop("use"), *(f"{name} {value}" for name, value in settings.items())]
    return ", ".join([*said, purpose["split"].replace("_", "-"), draws.format("copy")])


def masks(result: MaskedText, values: Values) -> Iterator[RenderableType]:
    """What is hidden in each epoch, in colour."""
    shown = (result.laid, result.recipe)
    for line in lines(*shown, tokenizer=result.tokenizer, epochs=result.epochs):
        yield Text.assemble(*((text, _STYLES[style]) for text, style in line))


def blocks(result: BlockSample, values: Values) -> Iterator[RenderableType]:
    """Blocks, with their pair labels, and what the whole pass has."""
    yield from _pass(result.plan, result.recipe)
    yield Text()
    drawn = result.blocks
    for row in range(len(drawn)):
        head = f"block {drawn.numbers[row]:,}: {drawn.lengths[row]} tokens"
        if drawn.labels is not None:
            ordered = "order" in type(result.recipe.blocks).provides
            names = ("in order", "swapped") if ordered else ("the next segment", "a random segment")
            head += f", {names[int(drawn.labels[row])]}"
        if drawn.reverse is not None and drawn.reverse[row]:
            head += ", read backwards"
        yield Group(Text(head, style="bold"), _text(drawn, row, result.tokenizer), Text())


def _pass(plan: Plan, recipe: Recipe) -> Iterator[Text]:
    """How many blocks a pass has, how full they are, and what was skipped or forced."""
    count = len(plan)
    step = max(count // _SAMPLE, 1)
    sample = plan.blocks(np.arange(0, count, step))
    kind = recipe.tables()["blocks"]["use"]
    head = f"{recipe.name}: {kind}", "bold"
    yield Text.assemble(head, f", {counted(count, 'block')} in a pass")
    of = f" (in a sample of {len(sample):,})" if step > 1 else ""
    yield Text(f"mean {sample.lengths.mean():.1f} tokens, longest {sample.lengths.max()}{of}")
    for what, number in plan.notes.items():
        if what != "blocks" and number:
            yield Text(f"{what}: {number:,}" if number >= 1 else f"{what}: {number:.1%}")


def _text(blocks: Blocks, row: int, tokenizer: Tokenizer) -> Text:
    line = Text()
    for at in range(int(blocks.starts[row]), int(blocks.starts[row + 1])):
        if line and (blocks.marks[at] & Mark.WORD or blocks.fixed[at]):
            line.append(" ")
        style = "dim" if blocks.fixed[at] else _SEGMENTS[int(blocks.segments[at])]
        line.append(piece(tokenizer, int(blocks.ids[at])), style=style)
    return line

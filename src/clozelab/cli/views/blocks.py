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
from clozelab.contracts import Blocks, Corrupted, Mark, Plan
from clozelab.pretraining.shown_masks import UNITS, ShownToken, known_units, piece, shown_blocks

if TYPE_CHECKING:
    from clozelab.api.corpora import CorpusSummary
    from clozelab.api.recipes import BlockSample, MaskedText
    from clozelab.pretraining.masks import Masked
    from clozelab.text.store import Corpus
    from clozelab.text.store.plans import KeptPlan

_STYLES = {
    Corrupted.MASK: "white on blue",
    Corrupted.RANDOM: "bold red",
    Corrupted.SAME: "bold green",
}
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
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
    yield f"{place}: {len(result)} plan{'s' * (len(result) != 1)}, {size:,.1f} MB {what}"


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
    yield _legend(result.recipe)
    yield from _known(result)
    for masked in result.epochs:
        name, copies = f"epoch {masked.epoch}", result.recipe.corruption.copies
        if copies:
            name += f", copy {result.recipe.corruption.copy(masked.epoch)} of {copies}"
        yield Text()
        yield _epoch(result, masked, name=name)


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


def _epoch(result: MaskedText, masked: Masked, *, name: str) -> Group:
    """One epoch of masks over some blocks."""
    drawn, hidden = result.laid.blocks, masked.hidden
    free = int((~drawn.fixed).sum())
    spans = f"{len(hidden.spans)} span{'s' * (len(hidden.spans) != 1)}"
    head = f"{name}: {len(hidden.positions)} of {free} tokens in {spans}"
    lines = [
        _line(tokens)
        for tokens in shown_blocks(result.laid, masked, result.recipe, result.tokenizer)
    ]
    if masked.levels:
        levels = zip(masked.levels, lines, strict=True)
        lines = [Text(f"{level}: ") + line for level, line in levels]
    return Group(Text(head, style="bold"), *lines)


def _known(result: MaskedText) -> Iterator[Text]:
    """The phrases and names of a text that a recipe would hide whole, a line for each kind."""
    for kind, texts in known_units(result.laid, result.recipe, result.tokenizer):
        name, remedy = UNITS[kind]
        nothing = f"none: needs {remedy}" if texts is None else "none"
        yield Text(f"{name} known in this text: {',  '.join(texts or ()) or nothing}")


def _legend(recipe: Recipe) -> Text:
    """What the signs mean."""
    if recipe.masking.provides >= {"order_of_prediction"}:
        return Text("⟦predicted₁⟧ in the order of the small numbers; the input does not change")
    if not recipe.masking.provides:
        return Text("nothing is masked: the objective predicts every token")
    return Text.assemble(
        ("⟦masked⟧", _STYLES[Corrupted.MASK]),
        "  ",
        ("⟦word→random⟧", _STYLES[Corrupted.RANDOM]),
        "  ",
        ("⟦=kept⟧", _STYLES[Corrupted.SAME]),
        "  ⟦ ⟧ span   · joins the pieces of a word",
        "   ‿ joins the words of a unit" if hasattr(recipe.masking, "levels") else "",
    )


def _line(tokens: list[ShownToken]) -> Text:
    """A block under its mask."""
    line = Text()
    for number, token in enumerate(tokens):
        if number:
            inside = token.decision is not None and not token.opens
            line.append(token.gap, style=line.spans[-1].style if inside else "dim")
        if token.decision is None:
            line.append(token.text, style="dim" if token.special else "")
            continue
        text = token.text
        if token.decision == Corrupted.RANDOM:
            text = f"{text}→{token.replacement}"
        elif token.decision == Corrupted.SAME:
            text = f"={text}"
        text += "" if token.rank is None else str(token.rank).translate(_SUBSCRIPTS)
        text = ("⟦" if token.opens else "") + text + ("⟧" if token.closes else "")
        line.append(text, style=_STYLES[token.decision])
    return line


def _pass(plan: Plan, recipe: Recipe) -> Iterator[Text]:
    """How many blocks a pass has, how full they are, and what was skipped or forced."""
    count = len(plan)
    step = max(count // _SAMPLE, 1)
    sample = plan.blocks(np.arange(0, count, step))
    kind = recipe.tables()["blocks"]["use"]
    size = f", {count:,} block{'s' * (count != 1)} in a pass"
    yield Text.assemble((f"{recipe.name}: {kind}", "bold"), size)
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

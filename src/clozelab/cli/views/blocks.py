"""Blocks as something to look at: their text, segments and pair labels."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text
from tokenizers import Tokenizer

from clozelab.cli.views.masks import show_piece
from clozelab.config.recipe import Recipe
from clozelab.contracts import Blocks, Mark, Plan

_SEGMENTS = ("cyan", "yellow", "magenta")
_SAMPLE = 1000


def summary(plan: Plan, recipe: Recipe) -> RenderableType:
    """How many blocks a pass has, how full they are, and what was skipped or forced."""
    count = len(plan)
    step = max(count // _SAMPLE, 1)
    sample = plan.blocks(np.arange(0, count, step))
    mean = float(sample.lengths.mean())
    name = recipe.tables()["blocks"]["use"]
    lines = [
        Text.assemble(
            (f"{recipe.name}: {name}", "bold"), f", {count:,} block{'s' * (count != 1)} in a pass"
        ),
        Text(
            f"mean {mean:.1f} tokens, longest {int(sample.lengths.max())}"
            + (f" (of {len(sample):,} sampled)" if step > 1 else "")
        ),
    ]
    for what, number in plan.notes.items():
        if what != "blocks" and number:
            lines.append(Text(f"{what}: {number:,}" if number >= 1 else f"{what}: {number:.1%}"))
    return Group(*lines)


def listed(blocks: Blocks, recipe: Recipe, tokenizer: Tokenizer) -> RenderableType:
    """Some blocks, one after another."""
    parts: list[RenderableType] = []
    for row in range(len(blocks)):
        head = f"block {blocks.numbers[row]:,}: {blocks.lengths[row]} tokens"
        if blocks.labels is not None:
            head += f", {_label(recipe, int(blocks.labels[row]))}"
        if blocks.reverse is not None and blocks.reverse[row]:
            head += ", read from its end"
        parts += [Text(head, style="bold"), _text(blocks, row, tokenizer), Text()]
    return Group(*parts)


def _label(recipe: Recipe, label: int) -> str:
    if "order" in type(recipe.blocks).provides:
        return ("in order", "swapped")[label]
    return ("the next segment", "a random segment")[label]


def _text(blocks: Blocks, row: int, tokenizer: Tokenizer) -> Text:
    line = Text()
    for at in range(int(blocks.starts[row]), int(blocks.starts[row + 1])):
        if line and (blocks.marks[at] & Mark.WORD or blocks.fixed[at]):
            line.append(" ")
        style = "dim" if blocks.fixed[at] else _SEGMENTS[int(blocks.segments[at])]
        line.append(show_piece(tokenizer, int(blocks.ids[at])), style=style)
    return line

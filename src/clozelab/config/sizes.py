"""Sizes: the rules that scale any recipe down to a model and schedule that fit a machine.

A size is a name in DIAL, one of the recipe's own released sizes, or layers x hidden size, as in
2x128, which makes BERT's miniatures (Turc et al. 2019) and the like of every recipe.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from clozelab.errors import UserError
from clozelab.nearest import remedy

if TYPE_CHECKING:
    from clozelab.config.recipe import Recipe


@dataclass(frozen=True)
class Dial:
    """One size: layers × hidden size as in BERT's miniatures, and a schedule that suits them."""

    layers: int
    hidden_size: int
    length: int
    batch_size: int
    learning_rate: float


DIAL = {
    "tiny": Dial(layers=2, hidden_size=128, length=64, batch_size=32, learning_rate=1e-3),
    "mini": Dial(layers=4, hidden_size=256, length=128, batch_size=128, learning_rate=1e-3),
    "small": Dial(layers=6, hidden_size=512, length=128, batch_size=256, learning_rate=7e-4),
}


def shape_name(size: str | None) -> str:
    """A size as layers x hidden size, 4x256 for mini; other names as they are."""
    dial = DIAL.get(size or "")
    return f"{dial.layers}x{dial.hidden_size}" if dial else size or ""


def derived(recipe: Recipe, size: str, *, released: list[str]) -> Recipe:
    """The recipe at a size of the dial or layers x hidden size; `released` is for the error."""
    if size in DIAL:
        return _at_dial(recipe, DIAL[size])
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", size)
    if match is None:
        words, also = [*DIAL, *released], "layers x hidden size, as in 4x256"
        fix = remedy(size, words)
        more = f" ({', '.join(words)} or {also})" if fix.startswith("did") else f", or {also}"
        raise UserError(f"{recipe.name}: size {size} is unknown; {fix}{more}")
    layers, width = int(match[1]), int(match[2])
    if width % 64:
        near = max(64, round(width / 64) * 64)
        raise UserError(
            f"{recipe.name}: size {size} has a hidden size that heads of 64 do not divide;"
            f" did you mean {layers}x{near}?"
        )
    return replace(recipe, encoder=recipe.encoder.resized(layers, width))


def _at_dial(recipe: Recipe, dial: Dial) -> Recipe:
    """The recipe with the dial's five settings, and what depends on them scaled along."""
    length = min(dial.length, recipe.blocks.length)
    encoder = recipe.encoder.resized(dial.layers, dial.hidden_size)
    # Other counts of tokens shrink with the length; a stream has as many rows as its batch.
    tokens = {name: _scaled(recipe, name, length) for name in ("reuse", "memory")}
    # Windows are even, and at most an eighth of the block, as ModernBERT's are at 1,024 tokens.
    window = min(getattr(encoder, "window", 0), max(2, length // 16 * 2))
    blocks = {"length": length, "reuse": tokens["reuse"], "rows": dial.batch_size}
    return replace(
        recipe,
        encoder=_with(encoder, {"memory": tokens["memory"], "window": window}),
        blocks=_with(recipe.blocks, blocks),
        # A softmax over whole words would dwarf a small encoder.
        objectives=tuple(part.with_words(256 * dial.hidden_size) for part in recipe.objectives),
        optimiser=replace(recipe.optimiser, learning_rate=dial.learning_rate),
        schedule=replace(recipe.schedule, batch_size=dial.batch_size, phases=(), ramp=()),
    )


def _scaled(recipe: Recipe, name: str, length: int) -> int:
    tokens = getattr(recipe.blocks, name, getattr(recipe.encoder, name, 0))
    return int(tokens * length // recipe.blocks.length)


def _with(part: Any, values: dict[str, Any]) -> Any:
    """The part with those values replaced that it has fields for."""
    known = {field.name for field in fields(part)}
    return replace(part, **{name: value for name, value in values.items() if name in known})

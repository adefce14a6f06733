"""Held-out losses of several models under the masks of all: a matrix, trained × tested.

A loss under one recipe's masks favours whoever was trained on them. Here every model is asked under
every strategy, in the same blocks, so that a reader sees the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from clozelab.blocks.sentences import FullSentences
from clozelab.config import recipe as recipes
from clozelab.config import slots
from clozelab.config.recipe import Recipe
from clozelab.errors import UserError
from clozelab.masking import PARTS, Corruption
from clozelab.models.build import PretrainingModel
from clozelab.nearest import remedy
from clozelab.objectives import PAIRS
from clozelab.pretraining.held_out import FORMATS, TOKENS, HeldOut, masked, measurable
from clozelab.text.store import Corpus
from clozelab.training.loop import Measured
from clozelab.training.world import World, join

_OBJECTIVE = "masked_lm"
_PARTS = 20  # of the blocks: how much they differ shows how far a loss is by chance


@dataclass(frozen=True)
class MatrixCell:
    """One model under one strategy, or on one kind of pairs."""

    loss: float  # nats for each target
    accuracy: float  # share of the targets that were right
    error: float  # standard error of the loss over the blocks
    accuracy_error: float
    targets: int
    parts: tuple[float, ...]  # losses of parts of the blocks, the same for every model


@dataclass(frozen=True)
class MaskMatrix:
    """Models by name; a cell that cannot be measured is None."""

    models: tuple[str, ...]
    masks: tuple[str, ...]
    blocks: int  # as many for each cell
    length: int
    format: str
    cells: tuple[tuple[MatrixCell | None, ...], ...]  # [models][masks]
    pairs: dict[str, tuple[MatrixCell | None, ...]]  # next and order → [models]

    def as_json(self) -> dict[str, Any]:
        """For a record."""
        return asdict(self)


def follow(
    places: Sequence[str],
    corpus: Corpus,
    *,
    masks: Sequence[str] = (),
    blocks: int = 8192,
    pairs: int = 16_384,
    device: str | None = None,
) -> Generator[tuple[int, int], None, MaskMatrix]:
    """The matrix, yielding how many cells are done.

    Strategies are named by a recipe, or by themselves with their usual settings; none named: those
    of the models. Blocks are the models' own where all have the same, else full sentences of the
    shortest length that any was trained on. Models with a pair objective are also asked about
    `pairs` pairs of next sentences, and of sentences in order; 0 asks none.
    """
    if blocks < 2:
        raise UserError(f"--blocks {blocks}: at least 2")
    if pairs < 0 or pairs == 1:
        raise UserError(f"--pairs {pairs}: 0, or at least 2")
    others = {word: strategy(word) for word in masks}
    opened = [measurable(place, corpus) for place in places]
    if not others:
        for recipe, _ in opened:
            alike = [(other.masking, other.corruption) for other in others.values()]
            if _speaks(recipe) and (recipe.masking, recipe.corruption) not in alike:
                name = (
                    recipe.name if recipe.name not in others else f"{recipe.name} ({len(others)})"
                )
                others[name] = recipe
    form = _common([recipe for recipe, _ in opened])
    total = len(opened) * (len(others) + (len(FORMATS) if pairs else 0))
    cells: list[list[MatrixCell | None]] = [[] for _ in opened]
    pair_cells: dict[str, list[MatrixCell | None]] = {}
    size = done = 0
    with join(device) as world:
        for row, (recipe, whole) in zip(cells, opened, strict=True):
            whole.to(world.device).eval()
            for other in others.values():
                cell, size = _masks(recipe, whole, corpus, other, form, blocks, world, size)
                row.append(cell)
                done += 1
                yield done, total
            for name in FORMATS if pairs else ():
                cell = _pairs(recipe, whole, corpus, name, pairs, world)
                pair_cells.setdefault(name, []).append(cell)
                done += 1
                yield done, total
            whole.cpu()
    return MaskMatrix(
        models=_names(places),
        masks=tuple(others),
        blocks=size,
        length=form.length,
        format=slots.use("blocks", form),
        cells=tuple(tuple(row) for row in cells),
        pairs={name: tuple(row) for name, row in pair_cells.items() if any(row)},
    )


def strategy(word: str) -> Recipe:
    """A recipe that hides by a strategy of that name, or the recipe of that name or file."""
    if word not in PARTS:
        if word not in recipes.names() and not Path(word).exists():
            raise UserError(
                f"--masks {word}: is neither a strategy nor a recipe;"
                f" {remedy(word, [*PARTS, *recipes.names()])}"
            )
        return recipes.read(word)
    usual = recipes.read("roberta")
    try:
        masking: Any = PARTS[word]()
    except TypeError:
        raise UserError(f"--masks {word}: has no usual settings; name a recipe with it") from None
    unit: Any = "span" if "spans" in masking.provides else "token"
    if "targets" not in masking.provides:
        raise UserError(f"--masks {word}: hides nothing to predict; name another strategy")
    return replace(usual, name=word, masking=masking, corruption=Corruption(unit=unit))


def _speaks(recipe: Recipe) -> bool:
    """Whether it predicts hidden tokens, all of them at once."""
    return any(slots.use("objectives", part) == _OBJECTIVE for part in recipe.objectives)


def _common(shapes: Sequence[Recipe]) -> Any:
    """Blocks that every model can be asked about."""
    first: Any = shapes[0].blocks
    if all(recipe.blocks == first for recipe in shapes):
        return first
    lengths: list[Any] = [recipe.blocks for recipe in shapes]
    return FullSentences(length=min(form.length for form in lengths))


def _masks(
    recipe: Recipe,
    whole: PretrainingModel,
    corpus: Corpus,
    other: Recipe,
    form: Any,
    blocks: int,
    world: World,
    size: int,
) -> tuple[MatrixCell | None, int]:
    """A model under a strategy; None where it does not predict so."""
    if _OBJECTIVE not in whole.heads or not _speaks(recipe):
        return None, size
    part = next(one for one in recipe.objectives if slots.use("objectives", one) == _OBJECTIVE)
    try:
        alone = replace(recipe, objectives=(part,), schedule=replace(recipe.schedule, causal=()))
        masked_recipe = masked(alone, other)
    except UserError:
        return None, size
    held_out = HeldOut(masked_recipe, corpus, blocks=form, count=blocks)
    heads = {_OBJECTIVE: whole.heads[_OBJECTIVE]}
    model = PretrainingModel(whole.encoder, heads, whole.reads)
    return _measured(held_out, lambda sample: sample.measure(model, world, tokens=TOKENS)), (
        held_out.size
    )


def _pairs(
    recipe: Recipe, whole: PretrainingModel, corpus: Corpus, name: str, count: int, world: World
) -> MatrixCell | None:
    """A pair objective's answers to one kind of pairs."""
    heads = {head: whole.heads[head] for head in PAIRS if head in whole.heads}
    if not heads:
        return None
    shape: Any = recipe.blocks
    held_out = HeldOut(recipe, corpus, blocks=FORMATS[name](length=shape.length), count=count)
    model = PretrainingModel(whole.encoder, heads, whole.reads)
    return _measured(held_out, lambda sample: sample.measure(model, world, tokens=TOKENS))


def _measured(held_out: HeldOut, measure: Callable[[HeldOut], Measured]) -> MatrixCell:
    """The sums over parts of the blocks, put together."""
    order = np.concatenate(held_out.groups)
    if len(order) < 2:
        raise UserError(
            f"{held_out.name}: its held-out text is one block, and the errors of a matrix need two:"
            " give it more text, or build it with a larger --held-out"
        )
    parts = max(2, min(_PARTS, len(order) // 2))
    losses, rights, counts = [], [], []
    for number in range(parts):
        sample = copy(held_out)
        sample.groups = [order[number::parts]]
        ((_, sums),) = measure(sample).items()
        losses.append(sums["loss"])
        rights.append(sums["correct"])
        counts.append(sums["count"])
    loss, error = _ratio(losses, counts)
    accuracy, accuracy_error = _ratio(rights, counts)
    each = [one / max(count, 1) for one, count in zip(losses, counts, strict=True)]
    return MatrixCell(loss, accuracy, error, accuracy_error, int(sum(counts)), tuple(each))


def _ratio(sums: Sequence[float], counts: Sequence[float]) -> tuple[float, float]:
    """A mean over targets, and its standard error by the jackknife over parts."""
    top, bottom = np.array(sums), np.array(counts)
    without = (top.sum() - top) / np.maximum(bottom.sum() - bottom, 1)
    parts = len(top)
    spread = (parts - 1) / parts * ((without - without.mean()) ** 2).sum()
    return float(top.sum() / max(bottom.sum(), 1)), float(np.sqrt(spread))


def _names(places: Sequence[str]) -> tuple[str, ...]:
    """The folders' names, in full where two are alike."""
    short = [Path(place).name for place in places]
    return tuple(
        name if short.count(name) == 1 else place for name, place in zip(short, places, strict=True)
    )

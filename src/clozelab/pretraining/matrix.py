"""Held-out losses of several models under the masks of each: a matrix, trained × tested.

A loss under one recipe's masks favours models that were trained on them. Here every model is tested
under every masking strategy, on the same blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
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
from clozelab.pretraining.held_out import FORMATS, HeldOut, masked, measurable
from clozelab.text.store import Corpus
from clozelab.training.memory import FORWARD_TOKENS
from clozelab.training.world import World, join

_OBJECTIVE = "masked_lm"
_PARTS = 20  # of the blocks, for the standard error of a loss


@dataclass(frozen=True)
class MatrixCell:
    """One model under one strategy, or on one kind of pairs."""

    loss: float  # nats for each target
    accuracy: float  # share of the targets that were right
    error: float  # standard error of the loss over the blocks
    accuracy_error: float
    targets: int
    parts: tuple[float, ...]  # losses of parts of the blocks, the same for every model


@dataclass(frozen=True, repr=False)
class MaskMatrix:
    """Models by name; a cell that cannot be measured is None."""

    models: tuple[str, ...]
    masks: tuple[str, ...]
    blocks: int  # as many for each cell
    length: int
    format: str
    cells: tuple[tuple[MatrixCell | None, ...], ...]  # [models][masks]
    pairs: dict[str, tuple[MatrixCell | None, ...]]  # next and order → [models]

    def __repr__(self) -> str:
        lines = []
        for model, row in zip(self.models, self.cells, strict=True):
            cells = zip(self.masks, row, strict=True)
            losses = (f"{name} {cell.loss:.3f}" for name, cell in cells if cell is not None)
            lines.append(f"{model}: {', '.join(losses)}")
        return "\n".join(lines)

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
    """Compute the matrix, yielding how many cells are done.

    `masks` are names of recipes, or of strategies, which then have their default settings; by
    default the models' own. Blocks are the models' own if all have the same, else full sentences
    of the shortest length that any was trained on. Models with a pair objective are also tested on
    `pairs` next-sentence and sentence-order pairs; 0: on none.
    """
    if blocks < 2:
        raise UserError(f"--blocks {blocks}: must be at least 2")
    if pairs < 0 or pairs == 1:
        raise UserError(f"--pairs {pairs}: must be 0, or at least 2")
    others = {word: strategy(word) for word in masks}
    opened = [measurable(place, corpus) for place in places]
    if not others:
        for recipe, _ in opened:
            known = [(other.masking, other.corruption) for other in others.values()]
            if _masked_lm(recipe) and (recipe.masking, recipe.corruption) not in known:
                name = (
                    recipe.name if recipe.name not in others else f"{recipe.name} ({len(others)})"
                )
                others[name] = recipe
    form = _common_format([recipe for recipe, _ in opened])
    total = len(opened) * (len(others) + (len(FORMATS) if pairs else 0))
    cells: list[list[MatrixCell | None]] = [[] for _ in opened]
    pair_cells: dict[str, list[MatrixCell | None]] = {}
    size = done = 0
    with join(device) as world:
        for row, (recipe, model) in zip(cells, opened, strict=True):
            model.to(world.device).eval()
            for other in others.values():
                sample = _under_masks(recipe, model, corpus, other, blocks=form, count=blocks)
                size = size if sample is None else sample.size
                row.append(_cell(sample, model, [_OBJECTIVE], world))
                done += 1
                yield done, total
            for name in FORMATS if pairs else ():
                sample = _of_pairs(recipe, model, corpus, name, count=pairs)
                pair_cells.setdefault(name, []).append(_cell(sample, model, PAIRS, world))
                done += 1
                yield done, total
            model.cpu()
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
    """A recipe with the masking strategy of that name, or the recipe of that name or file."""
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
        raise UserError(
            f"--masks {word}: has no default settings; name a recipe that uses it"
        ) from None
    unit: Any = "span" if "spans" in masking.provides else "token"
    if "targets" not in masking.provides:
        raise UserError(f"--masks {word}: masks nothing to predict; name another strategy")
    return replace(usual, name=word, masking=masking, corruption=Corruption(unit=unit))


def _masked_lm(recipe: Recipe) -> Any:
    """Its masked_lm objective, or None."""
    parts = (part for part in recipe.objectives if slots.use("objectives", part) == _OBJECTIVE)
    return next(parts, None)


def _common_format(recipes_: Sequence[Recipe]) -> Any:
    """A format of blocks that every model can read."""
    first: Any = recipes_[0].blocks
    if all(recipe.blocks == first for recipe in recipes_):
        return first
    lengths: list[Any] = [recipe.blocks for recipe in recipes_]
    return FullSentences(length=min(form.length for form in lengths))


def _under_masks(
    recipe: Recipe,
    model: PretrainingModel,
    corpus: Corpus,
    other: Recipe,
    *,
    blocks: Any,
    count: int,
) -> HeldOut | None:
    """Held-out blocks under a strategy; None if the model does not predict what it masks."""
    part = _masked_lm(recipe)
    if _OBJECTIVE not in model.heads or part is None:
        return None
    try:
        alone = replace(recipe, objectives=(part,), schedule=replace(recipe.schedule, causal=()))
        masked_recipe = masked(alone, other)
    except UserError:
        return None
    return HeldOut(masked_recipe, corpus, blocks=blocks, count=count)


def _of_pairs(
    recipe: Recipe, model: PretrainingModel, corpus: Corpus, name: str, *, count: int
) -> HeldOut | None:
    """Held-out pairs of one kind; None if the model has no pair objective."""
    if not {*PAIRS} & {*model.heads}:
        return None
    form: Any = recipe.blocks
    return HeldOut(recipe, corpus, blocks=FORMATS[name](length=form.length), count=count)


def _cell(
    held_out: HeldOut | None, whole: PretrainingModel, heads: Collection[str], world: World
) -> MatrixCell | None:
    """The cell of a model on these blocks, by one of its heads that are named."""
    if held_out is None:
        return None
    own = {name: whole.heads[name] for name in heads if name in whole.heads}
    model = PretrainingModel(whole.encoder, own, whole.reads)
    order = np.concatenate(held_out.groups)
    if len(order) < 2:
        raise UserError(
            f"{held_out.name}: its held-out text is one block, but standard errors need two;"
            " give it more text, or build it with a larger --held-out"
        )
    parts = max(2, min(_PARTS, len(order) // 2))
    losses, corrects, counts = [], [], []
    for number in range(parts):
        part = held_out.part(order[number::parts])
        ((_, sums),) = part.measure(model, world, tokens=FORWARD_TOKENS).items()
        losses.append(sums["loss"])
        corrects.append(sums["correct"])
        counts.append(sums["count"])
    loss, error = _ratio(losses, counts)
    accuracy, accuracy_error = _ratio(corrects, counts)
    part_losses = [loss_sum / max(count, 1) for loss_sum, count in zip(losses, counts, strict=True)]
    return MatrixCell(loss, accuracy, error, accuracy_error, int(sum(counts)), tuple(part_losses))


def _ratio(sums: Sequence[float], counts: Sequence[float]) -> tuple[float, float]:
    """The mean over targets, and its standard error by the jackknife over parts."""
    top, bottom = np.array(sums), np.array(counts)
    leave_one_out = (top.sum() - top) / np.maximum(bottom.sum() - bottom, 1)
    parts = len(top)
    spread = (parts - 1) / parts * ((leave_one_out - leave_one_out.mean()) ** 2).sum()
    return float(top.sum() / max(bottom.sum(), 1)), float(np.sqrt(spread))


def _names(places: Sequence[str]) -> tuple[str, ...]:
    """The names of the folders; the whole path where two are the same."""
    short = [Path(place).name for place in places]
    return tuple(
        name if short.count(name) == 1 else place for name, place in zip(short, places, strict=True)
    )

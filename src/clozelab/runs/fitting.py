"""A recipe made to fit: its tokenizer the stores', its schedule the budget's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clozelab import recipe as recipes
from clozelab.contracts import UserError
from clozelab.objectives import BidirectionalLm
from clozelab.recipe import Recipe
from clozelab.recipe.tables import written
from clozelab.text.store import Corpus

Store = tuple[Corpus, float]


def open_stores(places: Sequence[str]) -> list[Store]:
    """The stores behind `DIR` or `DIR:WEIGHT`, all with one tokenizer."""
    stores = []
    for place in places:
        path, sign, number = place.rpartition(":")
        weight = 1.0
        if sign and not Path(place).exists():
            try:
                weight = float(number)
            except ValueError:
                raise UserError(
                    f"--data {place}: {number} is no weight; write DIR or DIR:0.5"
                ) from None
            if not 0 < weight < float("inf"):
                raise UserError(f"--data {place}: a weight must be above 0")
            place = path
        stores.append((Corpus.open(place), weight))
    if not stores:
        raise UserError("no corpus to train on: give one by --data DIR")
    first = stores[0][0]
    for corpus, _ in stores[1:]:
        if corpus.tokenizer.to_str() != first.tokenizer.to_str():
            raise UserError(
                f"{corpus.path}: its tokenizer is not that of {first.path}; build it again with"
                f" --tokenizer-from {first.path}"
            )
    return stores


def fitted(recipe: Recipe, corpus: Corpus) -> Recipe:
    """The recipe with the store's tokenizer, refused where the store lacks what it needs."""
    if recipe.corruption.mask and "targets" in recipe.masking.provides:
        _role(corpus, "mask", recipe)
    words = 3 + len(corpus.spelling.words)
    objectives = tuple(
        replace(part, words=min(part.words, words), samples=min(part.samples, part.words, words))
        if isinstance(part, BidirectionalLm)
        else part
        for part in recipe.objectives
    )
    recorded = recipe.reading(corpus.tokenizer, vocabulary=corpus.vocabulary.size)
    return replace(recorded, objectives=objectives)


def notes(recipe: Recipe, corpus: Corpus) -> tuple[str, ...]:
    """A line where the recipe asks for another tokenizer than the store has; of any size."""
    keys = [
        f"{key.removeprefix('tokenizer.')} {written(asked)} → {written(read)}"
        for key, asked, read in recipes.difference(recipe, recipe.reading(corpus.tokenizer))
        if key != "tokenizer.vocabulary"
    ]
    if not keys:
        return ()
    asks = f"the tokenizer is that of {corpus.path}, not the one that {recipe.name} asks for"
    return (f"{asks}: {', '.join(keys)}",)


def _role(corpus: Corpus, role: str, recipe: Recipe) -> None:
    if role not in corpus.vocabulary.roles:
        raise UserError(
            f"{corpus.path}: its tokenizer has no {role} token, which {recipe.name} needs;"
            f" build the corpus again with --recipe {recipe.name}"
        )

"""A recipe fitted to its stores: their tokenizer, their vocabulary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clozelab.config import recipe as recipes
from clozelab.config.recipe import Recipe
from clozelab.config.toml import written
from clozelab.errors import UserError
from clozelab.text.store import Corpus
from clozelab.text.tokenizers import part_of


def fitted(recipe: Recipe, corpus: Corpus) -> Recipe:
    """The recipe with the store's tokenizer; raises `UserError` if that lacks a mask token."""
    masks = recipe.corruption.mask and "targets" in recipe.masking.provides
    if masks and "mask" not in corpus.vocabulary.roles:
        raise UserError(
            f"{corpus.name}: its tokenizer has no mask token, which {recipe.name} needs;"
            f" build the corpus again with --recipe {recipe.name}"
        )
    words = 3 + len(corpus.spelling.words)
    objectives = tuple(part.with_words(words) for part in recipe.objectives)
    recorded = recipe.reading(corpus.tokenizer, vocabulary=corpus.vocabulary.size)
    return replace(recorded, objectives=objectives)


def changes(before: Recipe, after: Recipe) -> list[str]:
    """The differences of two recipes, a line for each key; one for a part that was removed."""
    rows = recipes.difference(before, after)
    gone = {key.removesuffix("use") for key, _, new in rows if key.endswith(".use") and new is None}
    return [
        f"{key} {_shown(old)} → {_shown(new)}"
        for key, old, new in rows
        if not any(key.startswith(part) and key != f"{part}use" for part in gone)
    ]


def _shown(value: Any) -> str:
    return "–" if value is None else written(value)


def notes(recipe: Recipe, corpus: Corpus) -> tuple[str, ...]:
    """A line if the recipe names another tokenizer than the store has, whatever its size."""
    part: Any = part_of(corpus.tokenizer, asked=recipe.tokenizer) or recipe.tokenizer
    keys = [
        f"{key.removeprefix('tokenizer.')} {written(wanted)} → {written(read)}"
        for key, wanted, read in recipes.difference(recipe, replace(recipe, tokenizer=part))
        if key != "tokenizer.vocabulary"
    ]
    if not keys:
        return ()
    asks = f"the tokenizer is that of {corpus.name}, not the one that {recipe.name} asks for"
    return (f"{asks}: {', '.join(keys)}",)

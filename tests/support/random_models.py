"""Models of every kind with random weights in double precision, and texts to score."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from support.peer_models import shaken
from support.pretrain_runs import STORES, shrunk, store

from clozelab.models.build import build
from clozelab.models.model import Model
from clozelab.text.store import Corpus
from clozelab.text.vocabulary import describe

TEXTS = [
    "A small text about unbelievable things.",
    "The queen of Xanthippe's unforgettable countryside was here.",
    "Another, rather longer text about nothing at all!",
    "cats",
    "The queen.",
]


def corpus(recipe: str) -> Corpus:
    """The store that a recipe is trained on, to which the words of a text are single tokens."""
    return Corpus.open(store(STORES[recipe], variant="embedded"))


@cache
def model(name: str, *overrides: str, double: bool = True) -> Model:
    """A model of a shrunk recipe with random weights."""
    data = corpus(name)
    size = describe(data.tokenizer).size
    recipe = shrunk(name, *overrides).reading(data.tokenizer, vocabulary=size)
    words = 3 + len(data.spelling.words)
    recipe = replace(recipe, objectives=tuple(p.with_words(words) for p in recipe.objectives))
    module = shaken(build(recipe, size, seed=0))
    return Model(f"a small {name}", recipe, data.tokenizer, module if double else module.float())

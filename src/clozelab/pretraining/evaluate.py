"""Measure a model on held-out text: also under another recipe's masks, or on the pairs of another
objective (ALBERT §4.6).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clozelab.blocks.pairs import SegmentPair, SentenceOrderPair
from clozelab.config import recipe as recipes
from clozelab.config import slots
from clozelab.config.recipe import Recipe
from clozelab.errors import UserError
from clozelab.models.build import PretrainingModel
from clozelab.models.load import load, pretrained
from clozelab.objectives import PAIRS
from clozelab.pretraining.held_out import HeldOut
from clozelab.text.store import Corpus
from clozelab.text.store.corpus import open_stores
from clozelab.training.loop import Measured
from clozelab.training.world import join

FORMATS = {"next": SegmentPair, "order": SentenceOrderPair}
TOKENS = 16_384  # of a micro-batch


def evaluate(
    place: str,
    data: str,
    *,
    pairs: str | None = None,
    masks: str | Recipe | None = None,
    blocks: int = 1024,
    device: str | None = None,
) -> Measured:
    """Every objective's sums over held-out blocks.

    `pairs` takes the pairs of next-sentence or sentence-order prediction whatever the model was
    trained on, so that either head can be asked the other's question. `masks` hides what that
    recipe would hide in the same blocks, so that recipes that hide more or less can be compared.
    """
    if blocks < 1:
        raise UserError(f"--blocks {blocks}: at least 1")
    (store,) = open_stores([data])
    corpus = store[0]
    recipe, whole = measurable(place, corpus)
    form: Any = recipe.blocks
    if pairs is not None:
        if not {*PAIRS} & {*whole.heads}:
            raise UserError(f"{place}: --pairs needs a pair objective, which this model has not")
        form = FORMATS[pairs](length=form.length)
    if masks is not None:
        recipe = masked(recipe, recipes.read(masks) if isinstance(masks, str) else masks)
    asked = [slots.use("objectives", part) for part in recipe.objectives]
    with join(device) as world:
        heads = {name: head for name, head in whole.heads.items() if name in asked}
        model = PretrainingModel(whole.encoder, heads).to(world.device).eval()
        held_out = HeldOut(recipe, corpus, blocks=form, count=blocks)
        return held_out.measure(model, world, tokens=TOKENS)


def measurable(place: str, corpus: Corpus) -> tuple[Recipe, PretrainingModel]:
    """A pretrained model with its heads, which reads the corpus's tokens."""
    loaded = load(place)
    if loaded.tokenizer.get_vocab() != corpus.tokenizer.get_vocab():
        raise UserError(
            f"{corpus.path}: its tokenizer is not the model's; build the corpus with"
            f" --tokenizer-from {place}"
        )
    whole = pretrained(loaded)
    if not whole.heads:
        raise UserError(
            f"{place}: is an encoder alone, without a head to measure; pretrain it with one by"
            f" --from {place}"
        )
    return loaded.recipe, whole


def masked(recipe: Recipe, other: Recipe) -> Recipe:
    """The recipe with what another hides; objectives about more than that are left out."""
    lost = recipe.masking.provides - other.masking.provides
    ordered = ["order_of_prediction" in one.masking.provides for one in (recipe, other)]
    if "targets" in lost or ordered[0] != ordered[1]:
        raise UserError(
            f"--masks {other.name}: {recipe.name} and {other.name} do not predict alike; name"
            " another recipe"
        )
    objectives = tuple(part for part in recipe.objectives if not part.needs & lost)
    try:
        return replace(
            recipe, masking=other.masking, corruption=other.corruption, objectives=objectives
        )
    except UserError as error:
        raise UserError(
            f"--masks {other.name}: not for a model of {recipe.name}, since {error}"
        ) from None

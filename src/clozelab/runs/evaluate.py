"""Measure a model on held-out text, also on the pairs of another objective (ALBERT §4.6)."""

from __future__ import annotations

from typing import Any

from clozelab.blocks.segment_pair import SegmentPair
from clozelab.blocks.sentence_order import SentenceOrder
from clozelab.contracts import UserError
from clozelab.runs.fitting import open_stores
from clozelab.runs.heldout import HeldOut
from clozelab.runs.load import load
from clozelab.training.loop import Measured
from clozelab.training.world import join

PAIRS = {"next": SegmentPair, "order": SentenceOrder}
_TOKENS = 16_384


def evaluate(
    place: str,
    data: str,
    *,
    pairs: str | None = None,
    blocks: int = 1024,
    device: str | None = None,
) -> Measured:
    """Every objective's sums over held-out blocks.

    `pairs` takes the pairs of next-sentence or sentence-order prediction whatever the model was
    trained on, so that either head can be asked the other's question.
    """
    if blocks < 1:
        raise UserError(f"--blocks {blocks}: at least 1")
    given = load(place)
    (store,) = open_stores([data])
    corpus = store[0]
    if given.tokenizer.get_vocab() != corpus.tokenizer.get_vocab():
        raise UserError(
            f"{data}: its tokenizer is not the model's; build the corpus with --tokenizer-from"
            f" {place}"
        )
    form: Any = given.recipe.blocks
    if pairs is not None:
        if not {"next_sentence", "sentence_order"} & set(given.model.heads):
            raise UserError(f"{place}: --pairs needs a pair objective, which this model has not")
        form = PAIRS[pairs](length=form.length)
    with join(device) as world:
        model = given.model.to(world.device)
        found = HeldOut(given.recipe, corpus, blocks=form, many=blocks)
        return found.measure(model, world, tokens=_TOKENS)

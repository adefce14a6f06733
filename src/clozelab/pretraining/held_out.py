"""Held-out loss during training: the same blocks and the same masks every time, for every seed."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

from torch import nn

from clozelab.config.recipe import Recipe
from clozelab.contracts import Format
from clozelab.errors import UserError
from clozelab.pretraining.source import BlockSource
from clozelab.text.store import Corpus
from clozelab.training.loop import Measured, Prepared, measure
from clozelab.training.packing import BatchShape, batch_shape
from clozelab.training.world import World

_SEED = 1_000_003  # of every evaluation, so that runs with different seeds can be compared


class HeldOut:
    """Some held-out blocks of a store."""

    def __init__(self, recipe: Recipe, corpus: Corpus, *, blocks: Format, count: int) -> None:
        form: Any = blocks
        rows, documents = count, corpus.documents("held_out")
        # One document has no other to draw a partner from: harder pairs are better than none.
        if "next" in form.provides and len(documents) == 1 and hasattr(form, "negatives"):
            form = replace(form, negatives="same_document")
        if "stream" in form.provides:  # as many rows as there is text for
            text = len(documents.ids)
            fit = max(1, text // (3 * form.length)) * (2 if form.reverse else 1)
            rows = min(form.rows, fit)
            form = replace(form, rows=rows)
        self.length: int = form.length
        self.source = BlockSource(recipe, corpus, blocks=form, split="held_out", seed=_SEED)
        order = self.source.order(0)[: max(1, count // rows) * rows]
        # With a memory, a row's blocks follow one another; otherwise all go at once.
        self.groups = [order[at : at + rows] for at in range(0, len(order), rows)]

    @property
    def size(self) -> int:
        """How many blocks."""
        return sum(map(len, self.groups))

    def first(self, blocks: int) -> HeldOut:
        """So many of them at most, to time how long they take."""
        few = copy(self)
        few.groups = [self.groups[0][:blocks]]
        return few

    def measure(self, model: nn.Module, world: World, *, tokens: int) -> Measured:
        """Every objective's sums."""
        return measure(model, self._feed(world, tokens), world)

    def _feed(self, world: World, tokens: int) -> Any:
        for number, group in enumerate(self.groups):
            mine = group[
                len(group) * world.rank // world.size : len(group) * (world.rank + 1) // world.size
            ]
            # A process without a block has one to make blank batches like.
            examples = self.source.examples(0, mine if len(mine) else group[:1], progress=1.0)
            shape: BatchShape = batch_shape(
                examples,
                tokens=tokens,
                blocks=len(examples),
                max_seqlen=self.length,
                constant=False,
            )
            yield Prepared(
                number=number,
                batches=shape.batches(examples) if len(mine) else [],
                blank=shape.collate(examples, slice(0, 0)),
                counts=examples.counts(),
                tokens=examples.tokens,
                fresh=number == 0,
            )


def held_out(recipe: Recipe, corpus: Corpus, *, length: int, count: int) -> HeldOut | str:
    """The held-out blocks of that length, or a sentence on why there are none."""
    blocks: Any = recipe.blocks
    try:
        if not len(corpus.documents("held_out")):
            raise UserError("it has no held-out documents")
        return HeldOut(recipe, corpus, blocks=replace(blocks, length=length), count=count)
    except UserError as error:
        return f"{corpus.path}: no held-out loss, since {error}"

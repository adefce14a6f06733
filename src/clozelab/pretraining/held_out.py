"""Held-out loss: the same blocks and the same masks every time, for every seed.

Where some blocks are read causally in training, all of these are read in both directions. A model
can also be measured under another recipe's masks, or on another objective's pairs (ALBERT §4.6).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from clozelab.blocks.pairs import SegmentPair, SentenceOrderPair
from clozelab.config import recipe as recipes
from clozelab.config import slots
from clozelab.config.recipe import Recipe
from clozelab.contracts import Batch, Format, Ints
from clozelab.errors import UserError
from clozelab.models.build import PretrainingModel
from clozelab.models.load import load, pretrained
from clozelab.objectives import PAIRS
from clozelab.pretraining.source import BlockSource, grouped, rows_of_a_group
from clozelab.runs.events import drained, mapped
from clozelab.text.store import Corpus
from clozelab.text.store.corpus import open_stores
from clozelab.training.loop import Measured, Prepared, follow_measure
from clozelab.training.memory import FORWARD_TOKENS
from clozelab.training.packing import BatchShape, batch_shape
from clozelab.training.world import World, join

FORMATS = {"next": SegmentPair, "order": SentenceOrderPair}
_SEED = 1_000_003  # of every evaluation, so that runs with different seeds can be compared


class HeldOut:
    """A fixed sample of the held-out blocks of a store."""

    def __init__(self, recipe: Recipe, corpus: Corpus, *, blocks: Format, count: int) -> None:
        form: Any = blocks
        rows, documents = count, corpus.documents("held_out")
        if not len(documents):
            raise UserError(
                f"{corpus.name}: has no held-out text; build it with --held-out above 0"
            )
        self.name = corpus.name
        # With one document, negatives must come from the same: harder pairs are better than none.
        if "next" in form.provides and len(documents) == 1 and hasattr(form, "negatives"):
            form = replace(form, negatives="same_document")
        if "stream" in form.provides:  # as many rows as the text fills
            text = len(documents.ids)
            fit = max(1, text // (3 * form.length)) * (2 if form.reverse else 1)
            rows = min(form.rows, fit)
            form = replace(form, rows=rows)
        self.length: int = form.length
        self.source = BlockSource(recipe, corpus, blocks=form, split="held_out", seed=_SEED)
        # Rows that are contrasted stay together in their group.
        self.together = rows_of_a_group(recipe, recipe.schedule.batch_size)
        order = self.source.order(0)[: max(1, count // rows) * rows]
        # With a memory, a row's blocks follow one another; otherwise all go at once.
        self.groups = [order[at : at + rows] for at in range(0, len(order), rows)]

    @property
    def size(self) -> int:
        """The number of blocks."""
        return sum(map(len, self.groups))

    def part(self, numbers: Ints) -> HeldOut:
        """A copy with only these of its blocks."""
        some = copy(self)
        some.groups = [numbers]
        return some

    def has_targets(self, objective: str) -> bool:
        """Whether any block has a target for an objective."""
        alone = World(0, 1, torch.device("cpu"))
        return any(step.counts[objective] for step in self._feed(alone, FORWARD_TOKENS))

    def measure(self, model: nn.Module, world: World, *, tokens: int) -> Measured:
        """Every objective's sums over the blocks."""
        return drained(self.follow(model, world, tokens=tokens))

    def follow(
        self, model: nn.Module, world: World, *, tokens: int
    ) -> Generator[tuple[int, int], None, Measured]:
        """As `measure`, yielding how many blocks are done and how many there are."""
        work = follow_measure(model, self._feed(world, tokens), world)
        share = self.size / len(self.groups)
        return mapped(work, lambda groups: (round(groups * share), self.size))

    def _feed(self, world: World, tokens: int) -> Iterator[Prepared]:
        for number, group in enumerate(self.groups):
            parts = -(-len(group) // self.together)
            first, last = (parts * rank // world.size for rank in (world.rank, world.rank + 1))
            mine = group[first * self.together : last * self.together]
            # A process without blocks takes one, as a pattern for its blank batches.
            numbers = mine if len(mine) else group[:1]
            batches, counts, read = list[Batch](), Counter[str](), 0
            for causal in (False, True) if self.source.recipe.schedule.causal else (False,):
                examples = grouped(
                    self.source.recipe,
                    self.source.examples(0, numbers, progress=1.0, causal=causal),
                    rows=self.together,
                    views=self.source.views,
                )
                shape: BatchShape = batch_shape(
                    examples,
                    tokens=tokens,
                    blocks=len(examples),
                    max_seqlen=self.length,
                    constant=False,
                )
                batches += shape.batches(examples) if len(mine) else []
                counts.update(examples.counts())
                read += examples.tokens
            yield Prepared(
                number=number,
                batches=batches,
                blank=shape.collate(examples, slice(0, 0)),
                counts=counts,
                tokens=read,
                fresh=number == 0,
            )


def held_out(recipe: Recipe, corpus: Corpus, *, length: int, count: int) -> HeldOut | str:
    """The held-out blocks of a length, or a sentence that says why there are none."""
    blocks: Any = recipe.blocks
    try:
        if not len(corpus.documents("held_out")):
            raise UserError("it has no held-out documents")
        return HeldOut(recipe, corpus, blocks=replace(blocks, length=length), count=count)
    except UserError as error:
        return f"{corpus.name}: no held-out loss, since {error}"


def evaluate(place: str, data: str, **options: Any) -> Measured:
    """Every objective's sums over held-out blocks; the options are those of `follow`."""
    return drained(follow(place, data, **options))


def follow(
    place: str,
    data: str,
    *,
    pairs: str | None = None,
    masks: str | Recipe | None = None,
    blocks: int = 1024,
    device: str | None = None,
) -> Generator[tuple[int, int], None, Measured]:
    """As `evaluate`, yielding how many blocks are done and how many there are.

    `pairs` names next-sentence or sentence-order pairs, whatever the model was trained on, so that
    a head can be tested on the other's pairs. `masks` masks the same blocks as that recipe would,
    so that recipes with different mask rates can be compared.
    """
    if blocks < 1:
        raise UserError(f"--blocks {blocks}: must be at least 1")
    (store,) = open_stores([data])
    corpus = store[0]
    recipe, trained = measurable(place, corpus)
    form: Any = recipe.blocks
    if pairs is not None:
        if not {*PAIRS} & {*trained.heads}:
            raise UserError(f"{place}: has no pair objective; leave --pairs out")
        form = FORMATS[pairs](length=form.length)
    if masks is not None:
        recipe = masked(recipe, recipes.read(masks) if isinstance(masks, str) else masks)
    names = [slots.use("objectives", part) for part in recipe.objectives]
    with join(device) as world:
        heads = {name: head for name, head in trained.heads.items() if name in names}
        model = PretrainingModel(trained.encoder, heads, trained.reads).to(world.device).eval()
        held_out = HeldOut(recipe, corpus, blocks=form, count=blocks)
        sums = yield from held_out.follow(model, world, tokens=FORWARD_TOKENS)
    if not any(values["count"] for values in sums.values()):
        raise UserError(
            f"{corpus.name}: nothing is masked in its held-out blocks, so there is no loss;"
            " give it more text"
        )
    return sums


def measurable(place: str, corpus: Corpus) -> tuple[Recipe, PretrainingModel]:
    """The recipe and the model at a place, checked to have heads and the corpus's tokenizer."""
    loaded = load(place)
    if loaded.tokenizer.get_vocab() != corpus.tokenizer.get_vocab():
        raise UserError(
            f"{corpus.name}: its tokenizer is not the model's; build the corpus with"
            f" --tokenizer-from {place}"
        )
    model = pretrained(loaded)
    if {*model.heads} <= {*model.taught}:
        raise UserError(
            f"{place}: is an encoder without a head to measure; pretrain a head with --from {place}"
        )
    return loaded.recipe, model


def masked(recipe: Recipe, other: Recipe) -> Recipe:
    """The recipe with another's masking, without the objectives that this cannot serve."""
    missing = recipe.masking.provides - other.masking.provides
    ordered = {"order_of_prediction" in part.provides for part in (recipe.masking, other.masking)}
    if "targets" in missing or len(ordered) > 1:
        raise UserError(
            f"--masks {other.name}: {recipe.name} and {other.name} have different"
            " objectives; name another recipe"
        )
    objectives = tuple(part for part in recipe.objectives if not part.needs & missing)
    try:
        return replace(
            recipe, masking=other.masking, corruption=other.corruption, objectives=objectives
        )
    except UserError as error:
        raise UserError(
            f"--masks {other.name}: does not work with {recipe.name}, because {error}"
        ) from None

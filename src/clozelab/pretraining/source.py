"""The blocks of one store, epoch after epoch, with their masked tokens.

Each epoch has its own order of the blocks; pairs and masks are drawn again as the recipe says.
Blocks that belong together, as a text and its positive do, are a row; any other is a row alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np

from clozelab.config import slots
from clozelab.config.recipe import Recipe
from clozelab.contracts import Array, Blocks, Bools, Corrupted, Format, Hidden, Ints, Plan
from clozelab.errors import UserError
from clozelab.keys import key, mix, uniform
from clozelab.masking.token import NoMasking
from clozelab.pretraining.masks import Draws, check_units
from clozelab.pretraining.plans import Drawn, planned, visited
from clozelab.text.store import Corpus
from clozelab.training.packing import PackedExamples


class BlockSource:
    """The blocks of one store at one length, epoch after epoch."""

    def __init__(
        self,
        recipe: Recipe,
        corpus: Corpus,
        *,
        blocks: Format,
        split: str,
        seed: int,
        number: int = 0,
    ) -> None:
        check_units(recipe, corpus)
        self.recipe, self.corpus, self.blocks, self.seed = recipe, corpus, blocks, seed
        self.documents, self.split = corpus.documents(split), split
        self.vocabulary = corpus.vocabulary
        # Stores with blocks of the same numbers draw different masks.
        self.suffix = f"/{number}" if number else ""
        # Blocks of a row: in the plan, and as it is read, where one block may be read twice.
        self.planned_views: int = getattr(blocks, "views", 1)
        self.views = views_of(recipe)
        self._lock = Lock()
        self._plans: dict[int, Plan] = {}
        self._orders: dict[int, Ints] = {}

    @cached_property
    def size(self) -> int:
        """The number of rows of the first epoch; cached, since its plan is not."""
        return len(self.plan(0)) // self.planned_views

    @property
    def in_order(self) -> bool:
        """Whether blocks are read in the order of the text, as a memory needs."""
        return "stream" in self.blocks.provides

    def plan(self, epoch: int) -> Plan:
        """The blocks of an epoch; the two last plans are kept."""
        drawn = Draws(self.recipe.corruption, epoch, seed=self.seed, suffix=self.suffix).pairs
        with self._lock:
            if drawn.copy not in self._plans:
                try:
                    plan = planned(
                        self.corpus, self.documents, self.blocks, split=self.split, drawn=drawn
                    )
                except UserError as error:
                    raise UserError(f"{self.corpus.name}: {error}") from None
                if not len(plan):
                    raise UserError(
                        f"{self.corpus.name}: too little text for one block of"
                        f" {self.blocks.length} tokens; give more text, or shorter blocks"
                        " (--size tiny)"
                    )
                _keep(self._plans, drawn.copy, plan)
            return self._plans[drawn.copy]

    def order(self, epoch: int) -> Ints:
        """The numbers of an epoch's rows in the order in which they are visited, each once."""
        rows = len(self.plan(epoch)) // self.planned_views
        with self._lock:
            if epoch not in self._orders:
                drawn = Drawn(key(self.seed, f"order{self.suffix}", epoch), self.seed, epoch)
                shuffled = not self.in_order
                order = visited(self.corpus, rows, shuffled=shuffled, drawn=drawn)
                _keep(self._orders, epoch, order)
            return self._orders[epoch]

    def take(self, place: tuple[int, int], count: int) -> tuple[Ints, Ints, tuple[int, int]]:
        """The next `count` rows after a place: their epochs, their numbers, and the new place."""
        epochs, numbers = [], []
        epoch, index = place
        while count:
            rows = self.order(epoch)[index : index + count]
            epochs.append(np.full(len(rows), epoch))
            numbers.append(rows)
            count -= len(rows)
            index += len(rows)
            if index == len(self.order(epoch)):
                epoch, index = epoch + 1, 0
        return np.concatenate(epochs), np.concatenate(numbers), (epoch, index)

    def causal(self, epoch: int, numbers: Ints, share: float) -> Bools:
        """[B] whether each row of an epoch is read causally, in a step that reads a `share` so.

        Each is drawn by its own key, so that it does not depend on the other rows of the batch.
        """
        return uniform(mix(key(self.seed, f"direction{self.suffix}", epoch), numbers)) < share

    def lengths(self, epoch: int, numbers: Ints) -> Ints:
        """The number of tokens of each of these rows of an epoch."""
        plan, blocks = self.plan(epoch), self._block_numbers(numbers)
        # Some plans know them without gathering the tokens.
        lengths = plan.lengths(blocks) if hasattr(plan, "lengths") else plan.blocks(blocks).lengths
        return np.asarray(lengths.reshape(-1, self.views).sum(axis=1))

    def examples(
        self, epoch: int, numbers: Ints, *, progress: float, causal: bool = False
    ) -> PackedExamples:
        """These rows of an epoch with their targets; nothing is masked in causal ones."""
        blocks = self._blocks(epoch, numbers)
        masking: Any = NoMasking() if causal else self.recipe.masking
        if hasattr(masking, "stage"):
            masking = masking.stage(progress)
        draws = Draws(self.recipe.corruption, epoch, seed=self.seed, suffix=self.suffix)
        hidden, corrupted = draws.hidden(blocks, masking, vocabulary=self.vocabulary)
        return shared(self.recipe, blocks, hidden, corrupted, causal=causal)

    def _blocks(self, epoch: int, numbers: Ints) -> Blocks:
        """The blocks of these rows, row by row."""
        blocks = self.plan(epoch).blocks(self._block_numbers(numbers))
        if self.views == 1:
            return blocks
        return replace(blocks, views=np.tile(np.arange(self.views), len(numbers)))

    def _block_numbers(self, rows: Ints) -> Ints:
        """The numbers of these rows' blocks: those of the plan's row, or one block twice."""
        place = np.arange(self.views)
        inside = place if self.planned_views > 1 else np.zeros_like(place)
        return (rows[:, None] * self.planned_views + inside).reshape(-1)


def contrasting(recipe: Recipe) -> Any:
    """The contrastive objective, which tells rows from one another, or None."""
    return next((part for part in recipe.objectives if part.contrasts), None)


def views_of(recipe: Recipe) -> int:
    """How many blocks a row has as it is read: those of the format, or one block twice."""
    planned: int = getattr(recipe.blocks, "views", 1)
    return 2 if contrasting(recipe) and planned == 1 else planned


def rows_of_a_group(recipe: Recipe, batch_size: int) -> int:
    """How many rows of a step are scored together; 1: each block by itself."""
    part = contrasting(recipe)
    return 1 if part is None else part.in_batch or batch_size


def grouped(recipe: Recipe, examples: PackedExamples, *, rows: int, views: int) -> PackedExamples:
    """The examples in groups of `rows` rows, of which the last may have fewer."""
    part = contrasting(recipe)
    if part is None:
        return examples
    size = rows * views
    name = slots.use("objectives", part)
    targets = examples.targets[name]
    numbers = np.arange(len(examples)) // size
    columns = {**targets.columns, "groups": numbers}
    return replace(
        examples,
        targets={**examples.targets, name: replace(targets, columns=columns)},
        groups=np.append(np.arange(0, len(examples), size), len(examples)),
    )


def shared(
    recipe: Recipe, blocks: Blocks, hidden: Hidden, corrupted: Corrupted, *, causal: bool = False
) -> PackedExamples:
    """The blocks as an encoder reads them, with every objective's targets.

    Where some blocks are read causally, a causal language model is trained only on those, and
    every other objective only on the rest.
    """
    parts: Sequence[Any] = recipe.objectives
    targets = {}
    for part in parts:
        all_targets = part.targets(blocks, hidden, corrupted)
        trained = not recipe.schedule.causal or causal == (part.language_model == "causal")
        targets[slots.use("objectives", part)] = all_targets if trained else all_targets.emptied()
    if blocks.words is not None:
        words = blocks.words
        sizes = np.diff(words.starts)
        columns: dict[str, Array] = {
            "ids": words.ids,
            "position_ids": np.arange(len(words.ids)) - np.repeat(words.starts[:-1], sizes),
            "segments": np.zeros(len(words.ids), dtype=np.uint8),
            "characters": words.characters,
        }
        return PackedExamples(columns, words.starts, targets)
    columns = {"ids": corrupted.ids, "position_ids": blocks.positions, "segments": blocks.segments}
    if hidden.order is not None:
        kinds = blocks.fixed.astype(np.int64)
        kinds[hidden.positions] = 2
        columns |= {"order": hidden.order, "kinds": kinds}
        return PackedExamples(columns, blocks.starts, targets, blocks.reverse)
    return PackedExamples(columns, blocks.starts, targets, causal=causal)


def _keep(cache: dict[int, Any], number: int, value: Any) -> None:
    """Cache a value and drop all but the one cached last: by age, since copies repeat."""
    for old in list(cache)[:-1]:
        del cache[old]
    cache[number] = value

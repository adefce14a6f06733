"""Which blocks make a step: a pure function of recipe, seed and step.

Several stores are mixed in proportion to their blocks times their weight; each length phase reads
its stores from the beginning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, sqrt
from typing import Any

import numpy as np

from clozelab.config import slots
from clozelab.config.recipe import Recipe
from clozelab.contracts import Batch, Ints
from clozelab.keys import key, mix, weighted
from clozelab.objectives.objective import weight_at
from clozelab.pretraining.source import BlockSource, contrasting, grouped, rows_of_a_group
from clozelab.text.store import Corpus
from clozelab.training.feed import Cursor
from clozelab.training.loop import Prepared
from clozelab.training.packing import BatchShape, PackedExamples, batch_shape, concatenate, pinned

Places = tuple[tuple[int, int], ...]  # by store: the epoch, and how many of its blocks were read
_SAMPLE = 256  # blocks by which the lengths of blocks are estimated; not tuned
# So many tokens are sampled for batches of constant size: seeds should agree on it, since a process
# that trains several runs compiles their model once for each size.
_SAMPLED_TOKENS = 2**19
_SPARE = 5.0  # standard deviations of room above the mean for a group, which is never divided


@dataclass(frozen=True)
class StepBlocks:
    """The rows of a step: store, epoch and number of each."""

    stores: Ints
    epochs: Ints
    numbers: Ints

    def part(self, rank: int, size: int, *, group: int = 1) -> StepBlocks:
        """The rows of one process, an even part in complete groups."""
        count = -(-len(self.numbers) // group)
        mine = slice(count * rank // size * group, count * (rank + 1) // size * group)
        return StepBlocks(self.stores[mine], self.epochs[mine], self.numbers[mine])


class Steps:
    """The steps of a run, prepared for one process out of `size`."""

    def __init__(
        self,
        recipe: Recipe,
        stores: Sequence[tuple[Corpus, float]],
        *,
        seed: int,
        rank: int = 0,
        size: int = 1,
        tokens: int,
        gpu: bool,
    ) -> None:
        self.recipe, self.stores, self.seed = recipe, stores, seed
        self.rank, self.size, self.tokens = rank, size, tokens
        self.gpu = gpu
        # XLNet has as many queries in each row: its micro-batches are not padded to one size.
        self.constant = gpu and "order_of_prediction" not in recipe.masking.provides
        self._phases: dict[int, list[BlockSource]] = {}
        self._shapes: dict[tuple[int, bool, int, int], BatchShape] = {}
        self._blanks: dict[int, Batch] = {}  # by the shape, which stays alive
        self._means: dict[int, float] = {}  # tokens of a block, by phase

    def start(self) -> Cursor:
        """Where a run begins."""
        return Cursor(0, ((0, 0),) * len(self.stores))

    def sources(self, phase: int) -> list[BlockSource]:
        """The stores with blocks of the length of a phase."""
        if phase not in self._phases:
            form: Any = self.recipe.blocks
            if self.recipe.schedule.phases:
                length, _ = self.recipe.schedule.phases[phase]
                form = replace(form, length=length)
            self._phases[phase] = [
                BlockSource(
                    self.recipe, corpus, blocks=form, split="train", seed=self.seed, number=n
                )
                for n, (corpus, _) in enumerate(self.stores)
            ]
        return self._phases[phase]

    def jobs(
        self, first: int, cursor: Cursor, *, ready: Callable[..., Prepared] | None = None
    ) -> Iterator[Callable[[], Prepared]]:
        """Yield, from step `first` on, a job that prepares each step: by another's `ready`."""
        schedule = self.recipe.schedule
        for step in range(first, schedule.total):
            phase = schedule.phase(step).number
            sources = self.sources(phase)
            if cursor.phase != phase:
                cursor = Cursor(phase, ((0, 0),) * len(sources))
            fresh = any(index == 0 for _, index in cursor.places)
            picked, places = self._pick(sources, cursor.places, step)
            cursor = Cursor(phase, places)
            yield partial(ready or self.ready, picked, step=step, fresh=fresh, after=cursor)

    def ready(self, picked: StepBlocks, **settings: Any) -> Prepared:
        """A prepared step, on a GPU in pinned memory, which only this process can have."""
        prepared = self.prepare(picked, **settings)
        if not self.gpu:
            return prepared
        return replace(prepared, batches=[pinned(batch) for batch in prepared.batches])

    def prepare(self, picked: StepBlocks, *, step: int, fresh: bool, after: Cursor) -> Prepared:
        """The part of a step that this process trains on."""
        sources, schedule = self.sources(after.phase), self.recipe.schedule
        progress, share = schedule.progress(step), schedule.causal_share(step)
        rows = len(picked.numbers)
        group = rows_of_a_group(self.recipe, rows)
        mine = picked.part(self.rank, self.size, group=group)
        packs = _gather(sources, mine, progress=progress, causal_share=share)
        if group > 1:
            packs = [_regroup(self.recipe, sources, packs[0], mine, rows=group)]
        blocks = -(-rows // group // self.size) * group * sources[0].views
        batches, counts = list[Batch](), Counter[str]()
        varies = schedule.fill == "tokens" or 0 < share < 1
        # Tokens are shared out by blocks, so only a step of one part is as full as the whole.
        whole = schedule.fill == "tokens" and group == len(packs) == self.size == 1
        filled = schedule.batch_size_at(step) * self.recipe.blocks.length if whole else None
        for examples in packs:
            bound = _block_bound(blocks, share if examples.causal else 1 - share, varies=varies)
            shape = self.shape(after.phase, blocks=bound, causal=examples.causal, filled=filled)
            batches += shape.batches(examples)
            counts.update(examples.counts())
        parts: Sequence[Any] = self.recipe.objectives
        return Prepared(
            number=step,
            batches=batches,
            blank=self._blank(shape, examples),
            counts=counts,
            tokens=sum(examples.tokens for examples in packs),
            factor=schedule.factor(step),
            share_of_mean=schedule.share_of_mean(step),
            last=step + 1 == schedule.total,
            weights={
                slots.use("objectives", part): weight_at(part.weight, part.course, progress)
                for part in parts
            },
            fresh=fresh,
            after=after,
        )

    def shape(self, phase: int, *, blocks: int, causal: bool, filled: int | None) -> BatchShape:
        """The shape of a phase's micro-batches in one direction, by a sample of its blocks.

        A step has so many blocks, or it is filled with so many tokens.
        """
        cache_key = (phase, causal, filled or 0, 0 if filled else blocks)
        if cache_key not in self._shapes:
            sources = self.sources(phase)
            self._shapes[cache_key] = batch_shape(
                self.sample(sources, causal=causal),
                tokens=self.tokens,
                blocks=blocks,
                filled=filled,
                max_seqlen=sources[0].blocks.length,
                constant=self.constant,
                spare=_SPARE if contrasting(self.recipe) else 0.0,
            )
        return self._shapes[cache_key]

    def _blank(self, shape: BatchShape, examples: PackedExamples) -> Batch:
        """A micro-batch of padding only; the same for every step of a batch shape."""
        if id(shape) not in self._blanks:
            self._blanks[id(shape)] = shape.collate(examples, slice(0, 0))
        return self._blanks[id(shape)]

    def sample(self, sources: list[BlockSource], *, causal: bool = False) -> PackedExamples:
        """A sample of the first epoch's blocks, with as many targets as any step will have."""
        course = getattr(self.recipe.masking, "course", ())
        fullest, _ = max(course, key=lambda point: point[1], default=(0.0, 1.0))
        wanted = _SAMPLED_TOKENS // sources[0].blocks.length if self.constant else 0
        count = max(wanted, _SAMPLE)
        sampled = [source.order(0)[:count] for source in sources]
        group = rows_of_a_group(self.recipe, self.recipe.schedule.batch_size)
        if group > 1:  # a few complete groups, with rows repeated where there are too few
            sampled = [np.resize(source.order(0), max(_SAMPLE // group, 1) * group)
                     for source in sources]  # fmt: skip
        examples = concatenate(
            [
                source.examples(0, numbers, progress=fullest, causal=causal)
                for source, numbers in zip(sources, sampled, strict=True)
            ]
        )
        return grouped(self.recipe, examples, rows=group, views=sources[0].views)

    def predicted(self, sources: list[BlockSource]) -> dict[str, float]:
        """The share of a run's tokens that each objective predicts."""
        causal = self.recipe.schedule.mean_causal_share
        both = self.sample(sources).shares()
        if not causal:
            return both
        left = self.sample(sources, causal=True).shares()
        return {name: (1 - causal) * both[name] + causal * left[name] for name in both}

    def tokens_a_step(self, first: float = 0.0) -> float:
        """The mean tokens of a step, over the rest of the run after a share of it."""
        schedule, total = self.recipe.schedule, 0.0
        for share, phase, sequences in schedule.stretches(first):
            fills = schedule.fill == "tokens"
            block_tokens = self.recipe.blocks.length if fills else self._block_tokens(phase)
            total += share * block_tokens * sequences
        return total / (1 - first)

    def _block_tokens(self, phase: int) -> float:
        """The mean tokens of a row of the mixture; cached, since a sample needs a plan."""
        if phase not in self._means:
            sources = self.sources(phase)
            samples = [self.sample([source]) for source in sources]
            means = [sample.tokens / len(sample) * sources[0].views for sample in samples]
            sizes = self._weighted_sizes(sources)
            self._means[phase] = sum(
                mean * (size / sum(sizes)) for mean, size in zip(means, sizes, strict=True)
            )
        return self._means[phase]

    def _pick(
        self, sources: list[BlockSource], places: Places, step: int
    ) -> tuple[StepBlocks, Places]:
        """The blocks of a step, and the places after them; if filled by tokens, as many as fit."""
        count = self.recipe.schedule.batch_size_at(step)
        stores = self._mixed(sources, step, count)
        if self.recipe.schedule.fill != "tokens":
            return _take(sources, places, stores)
        wanted = count * self.recipe.blocks.length
        while True:
            filled = np.cumsum(_lengths(sources, _take(sources, places, stores)[0]))
            if filled[-1] >= wanted:
                break
            count *= 2
            stores = self._mixed(sources, step, count)
        fit = max(1, int(np.searchsorted(filled, wanted, side="right")))
        return _take(sources, places, stores[:fit])

    def _mixed(self, sources: list[BlockSource], step: int, count: int) -> Ints:
        """Which store each of a step's blocks comes from."""
        if len(sources) == 1:
            return np.zeros(count, dtype=np.int64)
        sizes = self._weighted_sizes(sources)
        shares = np.cumsum([max(1, round(1e6 * size / sum(sizes))) for size in sizes])
        return weighted(mix(key(self.seed, "mix", step), np.arange(count)), shares)

    def _weighted_sizes(self, sources: list[BlockSource]) -> list[float]:
        """The rows of each store times its weight, to which its share is proportional."""
        return [source.size * w for source, (_, w) in zip(sources, self.stores, strict=True)]


def _take(sources: list[BlockSource], places: Places, stores: Ints) -> tuple[StepBlocks, Places]:
    """The next block of the store that each slot names, and the places after them."""
    epochs, numbers = np.zeros_like(stores), np.zeros_like(stores)
    after = list(places)
    for number, source in enumerate(sources):
        mine = stores == number
        if mine.any():
            epochs[mine], numbers[mine], after[number] = source.take(
                places[number], int(mine.sum())
            )
    return StepBlocks(stores, epochs, numbers), tuple(after)


def _by_store_and_epoch(picked: StepBlocks) -> Iterator[tuple[int, int, Ints]]:
    """Yield each store and epoch with the slots of its rows."""
    for store in np.unique(picked.stores).tolist():
        for epoch in np.unique(picked.epochs[picked.stores == store]).tolist():
            slots_ = np.flatnonzero((picked.stores == store) & (picked.epochs == epoch))
            yield store, epoch, slots_


def _block_bound(blocks: int, share: float, *, varies: bool) -> int:
    """A bound, rarely exceeded, on the blocks of a direction that each has with chance `share`.

    If steps differ in their blocks, it is rounded up by at most a sixteenth: few bounds serve all.
    """
    expected = blocks * share
    bound = max(1, min(blocks, ceil(expected + 3 * sqrt(expected * (1 - share)))))
    unit = 2 ** max(0, bound.bit_length() - 5) if varies else 1
    return -(-bound // unit) * unit


def _gather(
    sources: list[BlockSource], picked: StepBlocks, *, progress: float, causal_share: float
) -> list[PackedExamples]:
    """The examples of the picked blocks, store by store and epoch by epoch.

    Blocks that are read causally are a pack of their own: attention takes one direction at a time.
    """
    packs: dict[bool, list[PackedExamples]] = {}
    for store, epoch, at in _by_store_and_epoch(picked):
        source, numbers = sources[store], picked.numbers[at]
        directions = source.causal(epoch, numbers, causal_share)
        for causal in (False, True):
            if len(chosen := numbers[directions == causal]):
                examples = source.examples(epoch, chosen, progress=progress, causal=causal)
                packs.setdefault(causal, []).append(examples)
    if not packs:  # more processes than blocks: one without any has no examples
        return [sources[0].examples(0, picked.numbers, progress=progress)]
    return [concatenate(packs[causal]) for causal in sorted(packs)]


def _regroup(
    recipe: Recipe,
    sources: list[BlockSource],
    examples: PackedExamples,
    mine: StepBlocks,
    rows: int,
) -> PackedExamples:
    """The gathered rows in the order in which they were picked, in groups.

    So a group does not depend on what else a process gathers.
    """
    slots_ = [at for _, _, at in _by_store_and_epoch(mine)]
    views = sources[0].views
    order = np.argsort(np.concatenate([*slots_, np.zeros(0, dtype=np.int64)]))
    blocks = (order[:, None] * views + np.arange(views)).reshape(-1)
    return grouped(recipe, examples.select(blocks), rows=rows, views=views)


def _lengths(sources: list[BlockSource], picked: StepBlocks) -> Ints:
    """The number of tokens of each picked row."""
    lengths = np.zeros_like(picked.numbers)
    for store, epoch, at in _by_store_and_epoch(picked):
        lengths[at] = sources[store].lengths(epoch, picked.numbers[at])
    return lengths

"""Which examples make a step of a fine-tuning: a pure function of seed and step.

Every epoch has its own permutation. Groups stay together, and the blocks of a step are collated
sorted by length, or in one shape for a compiled model.
"""

from __future__ import annotations

import numpy as np

from clozelab.contracts import Batch, Ints, Targets
from clozelab.errors import UserError
from clozelab.finetuning.evaluator import batched, collated
from clozelab.keys import key, mix
from clozelab.packed import sums
from clozelab.training.packing import BatchShape, PackedExamples, batch_shape

_SAMPLE = 512  # groups, enough for the mean length to a few per cent


class StepSampler:
    """The training examples of one task, drawn for one process out of `ranks`."""

    def __init__(
        self,
        examples: PackedExamples,
        task: str,
        *,
        batch_size: int,
        seed: int,
        alone: bool,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.examples, self.batch_size, self.seed = examples, batch_size, seed
        self.alone, self.rank, self.ranks = alone, rank, ranks
        # Groups without a label (an answer that was not found) are left out.
        labels = examples.targets[task]
        labelled = sums(labels.columns["labels"] != Targets.IGNORED, labels.starts)
        self.numbers = np.flatnonzero(sums(labelled, examples.units))
        if not len(self.numbers):
            raise UserError(f"{task}: no training example has a label; give some")
        self.epoch = -(-len(self.numbers) // batch_size)  # steps
        self.longest = int(np.diff(examples.starts).max())
        # The most tokens and padding of a step.
        self.largest = batch_size * int(np.diff(examples.units).max()) * self.longest
        self._cached_order: tuple[int, Ints] | None = None

    def take(self, step: int) -> PackedExamples:
        """The examples of a step for this process."""
        epoch, index = divmod(step, self.epoch)
        drawn = self._order(epoch)[index * self.batch_size : (index + 1) * self.batch_size]
        first, stop = (len(drawn) * rank // self.ranks for rank in (self.rank, self.rank + 1))
        return self.examples.select(drawn[first:stop])

    def batches(self, examples: PackedExamples, *, tokens: int) -> list[Batch]:
        """The micro-batches of some examples without dummies, each of at most `tokens` tokens."""
        parts = batched(examples, tokens, by=np.add, alone=self.alone)
        return [collated(examples.select(numbers)) for numbers in parts]

    def shape(self, *, tokens: int) -> BatchShape:
        """A constant shape of micro-batches, from a sample that does not depend on the seed."""
        sample = self.examples.select(self.numbers[:: -(-len(self.numbers) // _SAMPLE)])
        mean = len(sample) / (len(sample.units) - 1)  # blocks of a group
        blocks = -(-int(self.batch_size * mean) // self.ranks)
        return batch_shape(
            sample, tokens=tokens, blocks=blocks, max_seqlen=self.longest, constant=True
        )

    def _order(self, epoch: int) -> Ints:
        cached = self._cached_order  # read once, since several threads may replace it
        if cached is None or cached[0] != epoch:
            drawn = mix(key(self.seed, "order", epoch), self.numbers)
            cached = self._cached_order = (epoch, self.numbers[np.argsort(drawn, kind="stable")])
        return cached[1]

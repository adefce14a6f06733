"""What the encoder sees at the masked positions: [MASK], a random token, or the token itself.

BERT §3.1 decides for each token, SpanBERT §3.1 once for each span.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import numpy as np

from clozelab.contracts import Blocks, Bools, Corrupted, Hidden, Ids, Ints, Keys, Mark
from clozelab.contracts import Vocabulary as Vocab
from clozelab.errors import UserError
from clozelab.keys import randint, uniform, weighted
from clozelab.masking.units import divide, draws
from clozelab.ranges import Part, Share, at_least


@dataclass(frozen=True)
class Corruption(Part):
    """Shares of [MASK], random and same; the unit that shares a decision; how often it is redrawn.

    `replacement` is the distribution of random tokens: "uniform" over ordinary ids, "unigram" by
    their frequency in the corpus (SpanBERT), "any" over the whole vocabulary, special tokens
    included, as in published code. `copies = 0` draws new masks each epoch (dynamic); `copies = D`
    repeats D variants (static); `redraw` says whether the pairs of a format are redrawn with the
    masks, as BERT's duplication did.
    """

    unit: Literal["token", "word", "span"] = "token"
    mask: Share = 0.8  # of the chosen tokens: they become [MASK]
    same: Share = 0.1  # they stay as they are; the rest becomes random
    replacement: Literal["uniform", "unigram", "any"] = "uniform"
    copies: Annotated[int, at_least(0, "0 for fresh masks, or a number of variants")] = 0
    redraw: Literal["masks", "pairs_and_masks"] = "masks"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask + self.same > 1 + 1e-9:
            raise UserError(
                f"mask = {self.mask}, same = {self.same}: shares sum to at most 1 (the rest is"
                " random)"
            )

    def copy(self, epoch: int) -> int:
        """Which variant of the masks an epoch uses."""
        return epoch % self.copies if self.copies else epoch

    def corrupt(self, blocks: Blocks, hidden: Hidden, key: int, *, vocabulary: Vocab) -> Corrupted:
        """Decide at each masked position and replace; `key` must differ from that of masking."""
        at = hidden.positions
        leader = self._leaders(blocks, hidden)
        share = uniform(draws(blocks, key, 0, leader))
        masked, kept = share < self.mask, share < self.mask + self.same
        decisions = np.where(kept, np.uint8(Corrupted.SAME), np.uint8(Corrupted.RANDOM))
        decisions[masked] = Corrupted.MASK
        ids = blocks.ids.copy()
        if masked.any():
            ids[at[masked]] = vocabulary.role("mask")
        random = at[~kept]
        ids[random] = self._replacements(draws(blocks, key, 1, random), vocabulary)
        return Corrupted(ids, decisions, partial(draws, blocks, key, 2))

    def _leaders(self, blocks: Blocks, hidden: Hidden) -> Ints:
        """[K] the position whose draw decides for each masked position."""
        at = hidden.positions
        if self.unit == "token":
            return at
        if self.unit == "span":
            return np.repeat(hidden.spans[:, 0], hidden.spans[:, 1] - hidden.spans[:, 0])
        begins: Bools = (blocks.marks & Mark.WORD) != 0
        units = divide(blocks, begins)
        words = ~blocks.fixed[at]  # a special token, if masked, decides for itself
        leader = at.copy()
        leader[words] = units.first[units.of[at[words]]]
        return leader

    def _replacements(self, keys: Keys, vocabulary: Vocab) -> Ids:
        if self.replacement == "any":
            return randint(keys, vocabulary.size).astype(np.int32)
        ordinary = vocabulary.ordinary
        if self.replacement == "unigram":
            if vocabulary.counts is None:
                raise UserError(
                    'corruption.replacement = "unigram" needs the token counts; give a'
                    " corpus (--corpus DIR)"
                )
            counts = vocabulary.counts[ordinary]
            if counts.any():
                return ordinary[weighted(keys, np.cumsum(counts))]
        return ordinary[randint(keys, len(ordinary))]

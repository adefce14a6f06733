"""N-gram masking: runs of one to three whole words, short ones more often (ALBERT §3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from clozelab.contracts import Blocks, Hidden, Mark, Vocabulary
from clozelab.keys import weighted
from clozelab.masking.units import Cap, MaskRate, Over, budget, divide, draws, take, whole
from clozelab.ranges import Checked, between


@dataclass(frozen=True)
class Ngram(Checked):
    """Hide runs of n whole words, P(n) ∝ 1/n for n up to `longest`.

    `favour = "long"` reverses the weights. A run stops at a special; `compat = "albert"` lets it
    straddle separators, as the published code did.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"targets", "spans"})
    needs: ClassVar[frozenset[str]] = frozenset()

    rate: MaskRate = 0.15  # share of the tokens to hide
    over: Over = "length"
    cap: Cap | None = None  # the most tokens to hide in a block
    longest: Annotated[int, between(1, 20, "n-grams have 1 to 20 words")] = 3
    favour: Literal["short", "long"] = "short"
    compat: Literal["none", "albert"] = "none"

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        """Choose n-grams; see `Masking`."""
        units = divide(blocks, (blocks.marks & Mark.WORD) != 0)
        wanted = budget(blocks, self.rate, over=self.over, cap=self.cap)
        lengths = 1 + weighted(draws(blocks, key, 1)[units.first], self._cumulative())
        order = draws(blocks, key, 0)[units.first]
        run = take(units, wanted, order, lengths=lengths, straddle=self.compat == "albert")
        return Hidden(whole(blocks, units, run, wanted=wanted))

    def _cumulative(self) -> np.typing.NDArray[np.int64]:
        """Running sum of integer weights in the proportions 1/1 : 1/2 : … : 1/longest, exactly."""
        scale = int(np.lcm.reduce(np.arange(1, self.longest + 1)))
        weights = scale // np.arange(1, self.longest + 1)
        return np.cumsum(weights if self.favour == "short" else weights[::-1])

"""Geometric span masking: stretches of whole words of random length (SpanBERT §3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from clozelab.contracts import Blocks, Bools, Hidden, Ints, Keys, Mark, Vocabulary
from clozelab.keys import mix, randint, uniform
from clozelab.masking.units import MaskRate, Units, block_draws, content, divide, spans, whole
from clozelab.ranges import Checked, Range, at_least

_MISSES = 20  # with whole ends, a block whose last tokens no word fits gives up after so many tries


@dataclass(frozen=True)
class SpanMasking(Checked):
    """Hide spans of ℓ words, ℓ geometric with parameter `p` and renormalised to 1 … `longest`.

    The budget is ceil(rate · content) and is met exactly; the last span may be cut inside a word.
    `ends = "whole"` keeps even the last span to whole words, and then may stay under the budget;
    only where it would hide nothing does it take the shortest word, cut to the budget.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"targets", "spans"})
    needs: ClassVar[frozenset[str]] = frozenset()

    rate: MaskRate = 0.15  # share of the tokens to hide
    p: Annotated[
        float, Range(lambda p: 0 < p < 1, "the geometric parameter lies between 0 and 1")
    ] = 0.2
    longest: Annotated[int, at_least(1, "a span has at least one word")] = 10
    ends: Literal["cut", "whole"] = "cut"

    def chances(self) -> np.typing.NDArray[np.float64]:
        """P(ℓ) for ℓ = 1 … longest: the tail's mass is shared out, not put on the longest."""
        weights = self.p * (1 - self.p) ** np.arange(self.longest)
        return np.asarray(weights / weights.sum())

    def lengths(self, keys: Keys) -> Ints:
        """Span lengths in words, one per key."""
        return 1 + np.searchsorted(np.cumsum(self.chances())[:-1], uniform(keys), side="right")

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        """Choose spans; see `Masking`."""
        units = divide(blocks, (blocks.marks & Mark.WORD) != 0)
        free = np.flatnonzero(~blocks.fixed)
        counts = content(blocks)
        first_free = np.cumsum(counts) - counts
        wanted = np.ceil(self.rate * counts - 1e-9).astype(np.int64)
        left = wanted.copy()
        chosen = np.zeros(len(blocks.ids), dtype=bool)
        misses = np.zeros(len(blocks), dtype=np.int64)
        active = np.flatnonzero(left > 0)
        keys = block_draws(blocks, key, 0)
        draw = 0
        while len(active):
            mine = keys[active]
            words = self.lengths(mix(mine, 2 * draw))
            anchor = free[first_free[active] + randint(mix(mine, 2 * draw + 1), counts[active])]
            fresh = ~chosen[anchor]
            rows, begin = active[fresh], units.of[anchor[fresh]]
            got = self._spread(units, chosen, begin, words[fresh], left[rows])
            left[rows] -= got
            misses[rows] = np.where(got > 0, 0, misses[rows] + 1)
            active = active[(left[active] > 0) & (misses[active] < _MISSES)]
            draw += 1
        if self.ends == "whole":
            return Hidden(whole(blocks, units, np.where(chosen[units.first], 0, -1), wanted=wanted))
        return Hidden(spans(blocks, np.where(chosen, 0, -1)))

    def _spread(self, units: Units, chosen: Bools, begin: Ints, words: Ints, left: Ints) -> Ints:
        """Hide up to `words` words from each unit `begin`, at most `left` new tokens; how many."""
        if not len(begin):
            return np.zeros(0, dtype=np.int64)
        last = np.minimum(begin + words, len(units.first)) - 1
        end_of_stretch = np.searchsorted(units.stretch, units.stretch[begin], side="right") - 1
        last = np.minimum(last, end_of_stretch)
        start, stop = units.first[begin], units.first[last] + units.sizes[last]
        at = start[:, None] + np.arange(int((stop - start).max()))
        inside = at < stop[:, None]
        at = np.minimum(at, len(chosen) - 1)
        new = inside & ~chosen[at]
        running = np.cumsum(new, axis=1)
        if self.ends == "whole":  # a token counts as what its word will have cost
            ends = units.first[units.of[at]] + units.sizes[units.of[at]] - 1 - start[:, None]
            ends = np.minimum(ends, at.shape[1] - 1)
            running = np.where(inside, np.take_along_axis(running, ends, axis=1), running)
        new &= running <= left[:, None]
        chosen[at[new]] = True
        return np.asarray(new.sum(axis=1))

"""Strategies that mask whole words: word by word (BERT's whole-word release; Chinese: BERT-wwm),
n-grams of words (ALBERT), spans of geometric length (SpanBERT)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np

from clozelab.contracts import Blocks, Bools, Hidden, Ints, Keys, Mark, Vocabulary
from clozelab.keys import mix, randint, uniform, weighted
from clozelab.masking.units import (
    Cap,
    Over,
    Rated,
    Units,
    block_draws,
    budget,
    content,
    divide,
    draws,
    inverse_lengths,
    spans,
    take,
    whole,
)
from clozelab.ranges import at_least, between, inside

_MISSES = 20  # tries after which a block whose remaining budget no word fits gives up (whole ends)


@dataclass(frozen=True)
class WholeWord(Rated):
    """Mask whole words; a word that would exceed the budget is skipped.

    `words` says which words: by spaces, punctuation and single ideographs, or those of a segmenter,
    for Chinese. `compat = "google"` lets a piece right after a separator join the last word before
    it, as the published code did.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"targets", "spans"})

    over: Over = "length"
    cap: Cap | None = None  # the most tokens to hide in a block
    words: Literal["tokenizer", "segmenter"] = "tokenizer"
    compat: Literal["none", "google"] = "none"

    @property
    def units(self) -> tuple[str, ...]:
        """The units that a corpus must know."""
        return ("segment",) if self.words == "segmenter" else ()

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        """Choose words; see `Masking`."""
        bit = Mark.WORD if self.words == "tokenizer" else Mark.SEGMENT
        begins = (blocks.marks & bit) != 0
        units = divide(blocks, begins, joins_over_specials=self.compat == "google")
        wanted = budget(blocks, self.mask_rate, over=self.over, cap=self.cap)
        run = take(units, wanted, draws(blocks, key, 0, units.first))
        return Hidden(whole(blocks, units, run, wanted=wanted))


@dataclass(frozen=True)
class Ngram(Rated):
    """Mask runs of n whole words, P(n) ∝ 1/n for n up to `longest` (ALBERT §3.1).

    `favour = "long"` reverses the weights. A run stops at a special token; `compat = "albert"` lets
    it straddle separators, as the published code did.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"targets", "spans"})

    over: Over = "length"
    cap: Cap | None = None  # the most tokens to hide in a block
    longest: Annotated[int, between(1, 20, "n-grams have 1 to 20 words")] = 3
    favour: Literal["short", "long"] = "short"
    compat: Literal["none", "albert"] = "none"

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        """Choose n-grams; see `Masking`."""
        units = divide(blocks, (blocks.marks & Mark.WORD) != 0)
        wanted = budget(blocks, self.mask_rate, over=self.over, cap=self.cap)
        table = inverse_lengths(self.longest, reverse=self.favour == "long")
        lengths = 1 + weighted(draws(blocks, key, 1, units.first), table)
        order = draws(blocks, key, 0, units.first)
        run = take(units, wanted, order, lengths=lengths, straddle=self.compat == "albert")
        return Hidden(whole(blocks, units, run, wanted=wanted))


@dataclass(frozen=True)
class SpanMasking(Rated):
    """Mask spans of ℓ words, ℓ geometric with parameter `p`, up to `longest` (SpanBERT §3.1).

    The budget is ceil(rate · content) and is met exactly; the last span may be cut inside a word.
    With `ends = "whole"` also the last span has whole words, and may stay under the budget; only
    if nothing would be masked is it the shortest word, cut to the budget.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"targets", "spans"})

    p: Annotated[float, inside(0, 1, "the geometric parameter lies between 0 and 1")] = 0.2
    longest: Annotated[int, at_least(1, "a span has at least one word")] = 10
    ends: Literal["cut", "whole"] = "cut"

    def chances(self) -> np.typing.NDArray[np.float64]:
        """P(ℓ) for ℓ = 1 … longest: a truncated geometric distribution, normalised."""
        weights = self.p * (1 - self.p) ** np.arange(self.longest)
        return np.asarray(weights / weights.sum())

    @cached_property
    def _cumulative(self) -> np.typing.NDArray[np.float64]:
        """P(at most ℓ) for ℓ = 1 … longest − 1."""
        return np.cumsum(self.chances())[:-1]

    def lengths(self, keys: Keys) -> Ints:
        """Draw span lengths in words, one per key."""
        return 1 + np.searchsorted(self._cumulative, uniform(keys), side="right")

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        """Choose spans; see `Masking`."""
        units = divide(blocks, (blocks.marks & Mark.WORD) != 0)
        free = np.flatnonzero(~blocks.fixed)
        counts = content(blocks)
        first_free = np.cumsum(counts) - counts
        wanted = np.ceil(self.mask_rate * counts - 1e-9).astype(np.int64)
        left = wanted.copy()
        chosen = np.zeros(len(blocks.ids), dtype=bool)
        misses = np.zeros(len(blocks), dtype=np.int64)
        active = np.flatnonzero(left > 0)
        keys = block_draws(blocks, key, 0)
        draw = 0
        while len(active):
            words = self.lengths(mix(keys[active], 2 * draw))
            place = randint(mix(keys[active], 2 * draw + 1), counts[active])
            anchor = free[first_free[active] + place]
            fresh = ~chosen[anchor]
            rows, begin = active[fresh], units.of[anchor[fresh]]
            hidden = self._extend(units, chosen, begin, words[fresh], left[rows])
            left[rows] -= hidden
            misses[rows] = np.where(hidden > 0, 0, misses[rows] + 1)
            active = active[(left[active] > 0) & (misses[active] < _MISSES)]
            draw += 1
        if self.ends == "whole":
            return Hidden(whole(blocks, units, np.where(chosen[units.first], 0, -1), wanted=wanted))
        return Hidden(spans(blocks, np.where(chosen, 0, -1)))

    def _extend(self, units: Units, chosen: Bools, begin: Ints, words: Ints, left: Ints) -> Ints:
        """Mask up to `words` words from each unit `begin`, at most `left` new tokens; how many."""
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
        if self.ends == "whole":  # the cost of a token is that of its word
            ends = units.first[units.of[at]] + units.sizes[units.of[at]] - 1 - start[:, None]
            ends = np.minimum(ends, at.shape[1] - 1)
            running = np.where(inside, np.take_along_axis(running, ends, axis=1), running)
        new &= running <= left[:, None]
        chosen[at[new]] = True
        return np.asarray(new.sum(axis=1))

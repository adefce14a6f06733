"""Whole-word masking: all pieces of a word or none (BERT's 2019 release; Chinese: BERT-wwm)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from clozelab.contracts import Blocks, Hidden, Mark, Vocabulary
from clozelab.masking.units import Cap, MaskRate, Over, budget, divide, draws, take, whole
from clozelab.ranges import Checked


@dataclass(frozen=True)
class WholeWord(Checked):
    """Hide whole words; a word that would overshoot the budget is passed over.

    `words` says whose words: those the text itself shows (spaces, punctuation, single ideographs)
    or those a segmenter found, for Chinese. `compat = "google"` lets a piece right after a
    separator join the last word before it, as the published code did.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"targets", "spans"})
    needs: ClassVar[frozenset[str]] = frozenset()

    rate: MaskRate = 0.15  # share of the tokens to hide
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
        wanted = budget(blocks, self.rate, over=self.over, cap=self.cap)
        run = take(units, wanted, draws(blocks, key, 0)[units.first])
        return Hidden(whole(blocks, units, run, wanted=wanted))

"""Masks for display: each token as plain text, and what the mask did to it.

The command line and the web app show the same tokens, each in its own way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from clozelab.config.recipe import Recipe
from clozelab.contracts import Blocks, Bools, Corrupted, Hidden, Mark
from clozelab.pretraining.masks import Masked, TextBlocks

# Kinds of units: their name, and the option that builds a corpus with them.
UNITS = {
    "phrase": ("phrases", "a --corpus built with --phrases"),
    "entity": ("names", "a --corpus built with --entities"),
}


@dataclass(frozen=True)
class ShownToken:
    """One token of a block under a mask."""

    text: str
    gap: str  # before it: a space, · inside a word, ‿ between the words of a unit
    special: bool  # a special token, which is never masked
    decision: int | None  # Corrupted's MASK, RANDOM or SAME; None where it is not masked
    replacement: str  # the random token that the encoder sees in its place, if any
    rank: int | None  # its place in the order of prediction, from 1, where there is one
    opens: bool  # a span begins with it
    closes: bool  # a span ends with it


def shown_blocks(
    laid: TextBlocks, masked: Masked, recipe: Recipe, tokenizer: Tokenizer
) -> list[list[ShownToken]]:
    """The tokens of each block in one epoch."""
    blocks, hidden, corrupted = laid.blocks, masked.hidden, masked.corrupted
    segmented = getattr(recipe.masking, "words", "tokenizer") == "segmenter"
    words = (blocks.marks & (Mark.SEGMENT if segmented else Mark.WORD)) != 0
    gaps = _gaps(blocks, words, masked.joined)
    opens, closes = set(hidden.spans[:, 0].tolist()), set(hidden.spans[:, 1].tolist())
    indices = {int(at): number for number, at in enumerate(hidden.positions)}
    ranks = _ranks(hidden)

    def token(at: int) -> ShownToken:
        decision = None
        if at in indices:
            ordered = hidden.order is not None
            decision = Corrupted.MASK if ordered else int(corrupted.decisions[indices[at]])
        other = piece(tokenizer, int(corrupted.ids[at])) if decision == Corrupted.RANDOM else ""
        return ShownToken(
            text=piece(tokenizer, int(blocks.ids[at])),
            gap=gaps[at],
            special=bool(blocks.fixed[at]),
            decision=decision,
            replacement=other,
            rank=ranks.get(at),
            opens=at in opens,
            closes=at + 1 in closes,
        )

    starts = blocks.starts.tolist()
    return [[token(at) for at in range(first, stop)] for first, stop in pairwise(starts)]


def known_units(
    laid: TextBlocks, recipe: Recipe, tokenizer: Tokenizer
) -> Iterator[tuple[str, list[str] | None]]:
    """Yield each kind of unit that the recipe masks, with those of the text.

    None if the corpus has no units of a kind, or there is no corpus.
    """
    blocks, units = laid.blocks, laid.units
    words = (blocks.marks & Mark.WORD) != 0
    gaps = _gaps(blocks, words, np.ones_like(words))
    for kind in getattr(recipe.masking, "units", ()):
        if kind in UNITS:
            texts = [
                "".join(
                    gaps[at] * (at > first) + piece(tokenizer, int(blocks.ids[at]))
                    for at in range(first, stop)
                    if not blocks.fixed[at]
                )
                for first, stop in units.get(kind, np.zeros((0, 2), dtype=np.int64)).tolist()
            ]
            yield kind, texts if kind in units else None


def piece(tokenizer: Tokenizer, number: int) -> str:
    """A token as plain text, without the marks of continuation or space."""
    text: Any = tokenizer.id_to_token(number) or "?"
    if tokenizer.decoder is not None and not text.startswith(("[", "<")):
        decoded = tokenizer.decode([number], skip_special_tokens=False)
        text = decoded if decoded.strip() and "�" not in decoded else text
    return str(text).removeprefix("##").removesuffix("</w>").replace("▁", "").strip() or "␣"


def _gaps(blocks: Blocks, words: Bools, joined: Bools) -> list[str]:
    """[N] the text before each token: a space, or a sign where it continues a word or unit."""
    signs = np.where(words, np.where(joined, "‿", " "), "·")
    signs[blocks.fixed] = " "
    signs[1:][blocks.fixed[:-1]] = " "
    return [str(sign) for sign in signs]


def _ranks(hidden: Hidden) -> dict[int, int]:
    """Each position's place in the order of prediction, from 1, where there is one."""
    if hidden.order is None:
        return {}
    order = np.argsort(hidden.order[hidden.positions], kind="stable")
    return {int(hidden.positions[at]): rank + 1 for rank, at in enumerate(order)}

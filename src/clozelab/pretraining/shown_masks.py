"""Masks for display: each token as plain text, and what the mask did to it.

The web app shows the tokens in its own way; the command line and Python write them as lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from clozelab.config.recipe import Recipe
from clozelab.contracts import Blocks, Bools, Corrupted, Hidden, Mark
from clozelab.nearest import counted
from clozelab.pretraining.masks import Masked, TextBlocks

# Kinds of units: their name, and the option that builds a corpus with them.
UNITS = {
    "phrase": ("phrases", "a --corpus built with --phrases"),
    "entity": ("names", "a --corpus built with --entities"),
}
DECISIONS = {Corrupted.MASK: "mask", Corrupted.RANDOM: "random", Corrupted.SAME: "same"}
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")

Styled = tuple[str, str]  # a text, and its style: head, faint, "" or one of DECISIONS


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


def lines(
    laid: TextBlocks, recipe: Recipe, *, tokenizer: Tokenizer, epochs: Iterable[Masked]
) -> Iterator[list[Styled]]:
    """Yield what a recipe masks in a text as lines: the signs, the known units, each epoch."""
    yield _legend(recipe)
    for kind, texts in known_units(laid, recipe, tokenizer):
        name, remedy = UNITS[kind]
        nothing = f"none: needs {remedy}" if texts is None else "none"
        yield [(f"{name} known in this text: {',  '.join(texts or ()) or nothing}", "")]
    free = int((~laid.blocks.fixed).sum())
    for masked in epochs:
        hidden, corruption = masked.hidden, recipe.corruption
        copies = f", copy {corruption.copy(masked.epoch)} of {corruption.copies}"
        head = f"epoch {masked.epoch}{copies if corruption.copies else ''}"
        head += f": {len(hidden.positions):,} of {counted(free, 'token')}"
        yield []
        yield [(f"{head} in {counted(len(hidden.spans), 'span')}", "head")]
        for number, tokens in enumerate(shown_blocks(laid, masked, recipe, tokenizer)):
            level = [(f"{masked.levels[number]}: ", "")] if masked.levels else []
            yield [*level, *_line(tokens)]


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


def _legend(recipe: Recipe) -> list[Styled]:
    """What the signs mean."""
    if recipe.masking.provides >= {"order_of_prediction"}:
        order = "⟦predicted₁⟧ in the order of the small numbers; the input does not change"
        return [(order, "")]
    if not recipe.masking.provides:
        return [("nothing is masked: the objective predicts every token", "")]
    unit = "   ‿ joins the words of a unit" if hasattr(recipe.masking, "levels") else ""
    return [
        *(("⟦masked⟧", "mask"), ("  ", "")),
        *(("⟦word→random⟧", "random"), ("  ", "")),
        *(("⟦=kept⟧", "same"), (f"  ⟦ ⟧ span   · joins the pieces of a word{unit}", "")),
    ]


def _line(tokens: Sequence[ShownToken]) -> Iterator[Styled]:
    """Yield the texts of a block under its mask; a gap inside a span has its left token's style."""
    style = ""
    for number, token in enumerate(tokens):
        if number:
            yield token.gap, style if token.decision is not None and not token.opens else "faint"
        if token.decision is None:
            yield token.text, "faint" if token.special else ""
            continue
        text, style = token.text, DECISIONS[token.decision]
        if token.decision == Corrupted.RANDOM:
            text = f"{text}→{token.replacement}"
        elif token.decision == Corrupted.SAME:
            text = f"={text}"
        text += "" if token.rank is None else str(token.rank).translate(_SUBSCRIPTS)
        yield ("⟦" if token.opens else "") + text + ("⟧" if token.closes else ""), style


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

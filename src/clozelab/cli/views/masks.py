"""Masks as something to look at: what is hidden, replaced or kept, words and spans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text
from tokenizers import Tokenizer

from clozelab.config.recipe import Recipe
from clozelab.contracts import Blocks, Bools, Corrupted, Hidden, Ints, Mark

STYLES = {
    Corrupted.MASK: "white on blue",
    Corrupted.RANDOM: "bold red",
    Corrupted.SAME: "bold green",
}
_KNOWN = {  # what a kind of unit is called, and how a corpus comes to know it
    "phrase": ("phrases", "a --corpus built with --phrases"),
    "entity": ("names", "a --corpus built with --entities"),
}
_SMALL = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


class Masks(Protocol):
    """One epoch's masks, as the wiring hands them over."""

    @property
    def hidden(self) -> Hidden:
        """What is hidden."""
        ...

    @property
    def corrupted(self) -> Corrupted:
        """What is seen instead."""
        ...

    @property
    def levels(self) -> list[str]:
        """The level of each block, where there are levels."""
        ...

    @property
    def joined(self) -> Bools:
        """[N] whether each token goes with its left neighbour, as one unit."""
        ...


def epoch(
    blocks: Blocks, masks: Masks, recipe: Recipe, *, tokenizer: Tokenizer, name: str
) -> RenderableType:
    """One epoch of masks over some blocks."""
    hidden = masks.hidden
    free = int((~blocks.fixed).sum())
    spans = f"{len(hidden.spans)} span{'s' * (len(hidden.spans) != 1)}"
    head = f"{name}: {len(hidden.positions)} of {free} tokens in {spans}"
    segmented = getattr(recipe.masking, "words", "tokenizer") == "segmenter"
    words = (blocks.marks & (Mark.SEGMENT if segmented else Mark.WORD)) != 0
    gaps = _gaps(blocks, words, masks.joined)
    lines = [_block(blocks, row, masks, tokenizer, gaps) for row in range(len(blocks))]
    if masks.levels:
        lines = [Text(f"{level}: ") + line for level, line in zip(masks.levels, lines, strict=True)]
    return Group(Text(head, style="bold"), *lines)


def known(
    blocks: Blocks, units: Mapping[str, Ints], recipe: Recipe, *, tokenizer: Tokenizer
) -> Iterator[Text]:
    """The phrases and names of a text that a recipe would hide whole, a line for each kind."""
    words = (blocks.marks & Mark.WORD) != 0
    gaps = _gaps(blocks, words, np.ones_like(words))
    for kind in getattr(recipe.masking, "units", ()):
        if kind not in _KNOWN:
            continue
        name, remedy = _KNOWN[kind]
        shown = [
            "".join(
                gaps[at] * (at > first) + show_piece(tokenizer, int(blocks.ids[at]))
                for at in range(first, stop)
                if not blocks.fixed[at]
            )
            for first, stop in units.get(kind, np.zeros((0, 2), dtype=np.int64)).tolist()
        ]
        nothing = "none" if kind in units else f"none: it takes {remedy}"
        yield Text(f"{name} known in this text: {',  '.join(shown) or nothing}")


def legend(recipe: Recipe) -> Text:
    """What the signs mean."""
    if recipe.masking.provides >= {"order_of_prediction"}:
        return Text("⟦predicted₁⟧ in the order of the small numbers; the input is left as it is")
    if not recipe.masking.provides:
        return Text("nothing is hidden: the objective predicts every token")
    return Text.assemble(
        ("⟦hidden⟧", STYLES[Corrupted.MASK]),
        "  ",
        ("⟦word→random⟧", STYLES[Corrupted.RANDOM]),
        "  ",
        ("⟦=kept⟧", STYLES[Corrupted.SAME]),
        "  ⟦ ⟧ a span   · between the pieces of a word",
        "   ‿ between the words of a unit" if hasattr(recipe.masking, "levels") else "",
    )


def _gaps(blocks: Blocks, words: Bools, joined: Bools) -> list[str]:
    """[N] what stands before each token: a space, or a sign where it goes with its neighbour."""
    signs = np.where(words, np.where(joined, "‿", " "), "·")
    signs[blocks.fixed] = " "
    signs[1:][blocks.fixed[:-1]] = " "
    return [str(sign) for sign in signs]


def _block(blocks: Blocks, row: int, masks: Masks, tokenizer: Tokenizer, gaps: list[str]) -> Text:
    hidden, corrupted = masks.hidden, masks.corrupted
    first, stop = int(blocks.starts[row]), int(blocks.starts[row + 1])
    begin, end = set(hidden.spans[:, 0].tolist()), set(hidden.spans[:, 1].tolist())
    place = {int(at): number for number, at in enumerate(hidden.positions)}
    ranks = _ranks(hidden)
    line = Text()
    for at in range(first, stop):
        if at > first:
            inside = at in place and at not in begin
            line.append(gaps[at], style=line.spans[-1].style if inside else "dim")
        piece = show_piece(tokenizer, int(blocks.ids[at]))
        if at not in place:
            line.append(piece, style="dim" if blocks.fixed[at] else "")
            continue
        ordered = hidden.order is not None
        decision = Corrupted.MASK if ordered else int(corrupted.decisions[place[at]])
        if decision == Corrupted.RANDOM:
            piece = f"{piece}→{show_piece(tokenizer, int(corrupted.ids[at]))}"
        elif decision == Corrupted.SAME:
            piece = f"={piece}"
        piece += str(ranks[at]).translate(_SMALL) if at in ranks else ""
        piece = ("⟦" if at in begin else "") + piece + ("⟧" if at + 1 in end else "")
        line.append(piece, style=STYLES[decision])
    return line


def _ranks(hidden: Hidden) -> dict[int, int]:
    """The order in which positions are predicted, from 1, where there is one."""
    if hidden.order is None:
        return {}
    order = np.argsort(hidden.order[hidden.positions], kind="stable")
    return {int(hidden.positions[at]): rank + 1 for rank, at in enumerate(order)}


def show_piece(tokenizer: Tokenizer, number: int) -> str:
    """A token as a reader would write it: without signs of continuation or space."""
    piece = tokenizer.id_to_token(number) or "?"
    if tokenizer.decoder is not None and not piece.startswith(("[", "<")):
        decoded = tokenizer.decode([number], skip_special_tokens=False)
        piece = decoded if decoded.strip() and "�" not in decoded else piece
    return piece.removeprefix("##").removesuffix("</w>").replace("▁", "").strip() or "␣"

"""Masks as something to look at: what is hidden, replaced or kept, words and spans."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text
from tokenizers import Tokenizer

from clozelab.contracts import Blocks, Bools, Corrupted, Hidden, Mark
from clozelab.recipe import Recipe

STYLES = {
    Corrupted.MASK: "white on blue",
    Corrupted.RANDOM: "bold red",
    Corrupted.SAME: "bold green",
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
    lines = [_block(blocks, row, masks, tokenizer, words) for row in range(len(blocks))]
    return Group(Text(head, style="bold"), *lines)


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
    )


def _block(blocks: Blocks, row: int, masks: Masks, tokenizer: Tokenizer, words: Bools) -> Text:
    hidden, corrupted = masks.hidden, masks.corrupted
    first, stop = int(blocks.starts[row]), int(blocks.starts[row + 1])
    begin, end = set(hidden.spans[:, 0].tolist()), set(hidden.spans[:, 1].tolist())
    place = {int(at): number for number, at in enumerate(hidden.positions)}
    ranks = _ranks(hidden)
    line = Text()
    for at in range(first, stop):
        if at > first:
            inside = at in place and at not in begin
            gap = " " if words[at] or blocks.fixed[at] else "·"
            line.append(gap, style=line.spans[-1].style if inside else "dim")
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

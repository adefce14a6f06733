"""Recipes: read one, compare two, see what it hides in a text and what its blocks look like."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from clozelab.api.texts import read_text
from clozelab.api.watching import Watch
from clozelab.errors import UserError
from clozelab.options import Place, RecipeLike, Settings, Text, command, located, option

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from clozelab.config.recipe import Recipe
    from clozelab.contracts import Blocks, Plan
    from clozelab.pretraining.masks import Masked, TextBlocks


@dataclass(frozen=True)
class RecipeOptions:
    """Changes to the recipe."""

    size: str | None = option("tiny, mini, small, LAYERSxHIDDEN, or a size of the released models")
    set: Settings = option("change a value of the recipe", (), metavar="KEY=VALUE")

    def read(self, recipe: str | Recipe, watch: Watch | None = None) -> Recipe:
        """The recipe of that name or in that file, changed; what is odd in it is said."""
        from clozelab.config import recipe as recipes

        if not isinstance(recipe, recipes.Recipe):
            recipe = located(recipe, "recipe")
            changed = recipes.read(recipe, size=self.size, overrides=self.set)
        elif self.size is not None:
            raise UserError(
                "size: a recipe object already has a size; give size to clozelab.read instead"
            )
        else:
            changed = recipe.override(self.set)
        if watch is not None:
            watch.warn(*changed.warnings())
        return changed


@command
def read(recipe: RecipeLike, *, changes: RecipeOptions) -> Recipe:
    """Read a recipe, by its name or from a TOML file."""
    return changes.read(recipe)


@command
def diff(a: RecipeLike, b: RecipeLike) -> list[tuple[str, Any, Any]]:
    """List the differences between two recipes.

    Each difference is a key, its value in the first recipe and its value in the second.

    Args:
        a (RECIPE): a name or a TOML file
        b (OTHER-RECIPE): another name or TOML file
    """
    unchanged = RecipeOptions()
    return unchanged.read(a).diff(unchanged.read(b))


@dataclass(frozen=True, repr=False)
class MaskedText:
    """What a recipe hides in a text, epoch by epoch."""

    recipe: Recipe
    tokenizer: Tokenizer
    laid: TextBlocks  # the text as blocks
    epochs: tuple[Masked, ...]

    def __repr__(self) -> str:
        from clozelab.pretraining.shown_masks import lines

        written = lines(self.laid, self.recipe, tokenizer=self.tokenizer, epochs=self.epochs)
        return "\n".join("".join(text for text, _ in line) for line in written)


@command
def mask(
    recipe: RecipeLike,
    text: Text,
    *,
    epoch: int | None = None,
    corpus: Place | None = None,
    seed: int = 0,
    changes: RecipeOptions,
    watch: Watch,
) -> MaskedText:
    """Show which tokens of a text a recipe masks.

    Args:
        text: the text, or - for standard input
        epoch: show this epoch only (several)
        corpus: take the tokenizer and the token counts from this corpus
        seed: seed of the masks (0)
    """
    from clozelab.pretraining import masks
    from clozelab.text.store import Corpus

    changed = changes.read(recipe, watch)
    store = Corpus.open(corpus) if corpus else None
    text = read_text(text, "the text")
    laid = masks.lay(text, changed, store)
    copies = changed.corruption.copies
    epochs = [0, 1, copies] if copies > 1 else [0, 1, 2]
    masked = masks.masked(laid, changed, epochs=epochs if epoch is None else [epoch], seed=seed)
    return MaskedText(changed, masks.tokenizer_of(changed, store, text=text), laid, tuple(masked))


@dataclass(frozen=True, repr=False)
class BlockSample:
    """Some blocks of a recipe's pass over a corpus."""

    recipe: Recipe
    tokenizer: Tokenizer
    plan: Plan  # of the whole pass
    blocks: Blocks

    def texts(self) -> list[str]:
        """Each block as text, with its special tokens."""
        ids, bounds = self.blocks.ids.tolist(), self.blocks.starts.tolist()
        return [
            self.tokenizer.decode(ids[start:end], skip_special_tokens=False)
            for start, end in pairwise(bounds)
        ]

    def __repr__(self) -> str:
        numbered = zip(self.blocks.numbers, self.texts(), strict=True)
        return "\n".join(f"block {number:,}: {text}" for number, text in numbered)


@command
def show_blocks(
    recipe: RecipeLike,
    *,
    corpus: Place,
    count: int = 3,
    number: int = 0,
    part: str = "train",
    epoch: int = 0,
    seed: int = 0,
    changes: RecipeOptions,
    watch: Watch,
) -> BlockSample:
    """Show some blocks that a recipe makes of a corpus, with their pair labels.

    Args:
        corpus: the corpus that the blocks are made from
        count: how many blocks to show (3)
        number: number of the first block to show (0)
        part: train or held_out (train)
        epoch: epoch of the run (0)
        seed: seed of the run (0)
    """
    import numpy as np

    from clozelab.pretraining import masks
    from clozelab.text.store import Corpus

    changed = changes.read(recipe, watch)
    store = Corpus.open(corpus)
    plan = masks.plan(changed, store, split=part, epoch=epoch, seed=seed)
    if not 0 <= number < len(plan):
        raise UserError(f"--number {number}: is out of range; give 0 to {len(plan) - 1:,}")
    chosen = plan.blocks(np.arange(number, min(number + count, len(plan))))
    return BlockSample(changed, store.tokenizer, plan, chosen)

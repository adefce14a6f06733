"""Where the command line writes, and how a command reads the recipe it was given."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from clozelab.recipe import Recipe

out = Console(highlight=False, emoji=False, soft_wrap=False)
err = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


def warn(line: str) -> None:
    """Say something that is not an error."""
    err.print(f"[yellow]{escape(line)}[/]")


def read_recipe(arguments: argparse.Namespace) -> Recipe:
    """The recipe a command names, its warnings said."""
    from clozelab import recipe as recipes

    size = getattr(arguments, "size", None)
    recipe = recipes.read(arguments.recipe, size=size, overrides=arguments.set)
    for line in recipe.warnings():
        warn(line)
    return recipe

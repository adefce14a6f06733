"""Where the command line writes, and how a command reads the recipe it was given."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from clozelab.cli.streams import STDOUT, discard_output

if TYPE_CHECKING:
    from clozelab.config.recipe import Recipe


class _Out(Console):
    def print(self, *things: Any, **options: Any) -> None:
        """As any console's; an error says where it could not be written."""
        try:
            super().print(*things, **options)
        except OSError as error:
            error.filename = error.filename or STDOUT
            raise

    def on_broken_pipe(self) -> None:
        """Let the command go on: nobody reads what it prints, but its work may be wanted."""
        discard_output()


class _Err(Console):
    def on_broken_pipe(self) -> None:
        """Let the command go on: nobody reads its messages, but its work may be wanted."""
        self.quiet = True


out = _Out(highlight=False, emoji=False, soft_wrap=False)
err = _Err(stderr=True, highlight=False, emoji=False, soft_wrap=True)


def warn(line: str) -> None:
    """Say something that is not an error."""
    err.print(f"[yellow]{escape(line)}[/]")


def read_recipe(arguments: argparse.Namespace) -> Recipe:
    """The recipe a command names, its warnings said."""
    from clozelab.config import recipe as recipes

    size = getattr(arguments, "size", None)
    recipe = recipes.read(arguments.recipe, size=size, overrides=arguments.set)
    for line in recipe.warnings():
        warn(line)
    return recipe

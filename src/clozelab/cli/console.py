"""Where the command line writes: results to `out`, what is said of them to `err`."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from clozelab.api.watching import err
from clozelab.cli.streams import STDOUT, discard_output

__all__ = ["err", "out"]


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


out = _Out(highlight=False, emoji=False, soft_wrap=False)

"""The command line: words → a public function, and what it returned printed."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from rich.markup import escape

from clozelab import registry
from clozelab.cli.arguments import parser
from clozelab.cli.commands import COMMANDS
from clozelab.cli.console import err, flush, open_streams
from clozelab.cli.endings import ending
from clozelab.errors import UserError
from clozelab.interrupts import terminable
from clozelab.options import debugging


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; what it could not do is told in one sentence. The exit code:

    0 it is done, 1 a fault of clozelab's, 2 a mistake of the user's or of the system, and after a
    signal 128 and its number, as shells have it: 130 for Ctrl-C, 143 for SIGTERM.
    """
    open_streams()
    try:
        with terminable(), warnings.catch_warnings():
            warnings.showwarning = _warn
            try:
                run(sys.argv[1:] if words is None else words)
            finally:  # also of --help, which leaves by SystemExit
                flush()
    except (Exception, KeyboardInterrupt) as error:
        sentence, code = ending(error)
        with suppress(OSError):  # where it cannot be said, the code says it
            if debugging():
                traceback.print_exception(error)
            err.print(f"[bold red]clozelab:[/] {escape(sentence)}")
        return code
    return 0


def _warn(message: Warning | str, *place: Any, **more: Any) -> None:
    """A warning in a line, without the place in our source."""
    err.print(f"[bold yellow]clozelab:[/] {escape(str(message))}", soft_wrap=True)


def run(words: Sequence[str]) -> None:
    """Run a command; what is wrong is raised."""
    for word in words:
        if "\0" in word:  # which no path and no text has
            raise UserError(f"{word!r}: has a NUL character in it; leave that out")
    values = vars(parser(COMMANDS).parse_args(_imported(words)))
    name = values.pop("command", None)
    if name is None:
        raise UserError("clozelab needs a command; see clozelab --help")
    COMMANDS[name].run(values)


def _imported(words: Sequence[str]) -> list[str]:
    """The words without `--import MODULE`, which any command takes; the modules are imported."""
    rest: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word == "--":
            return [*rest, word, *remaining]
        option, sign, module = word.partition("=")
        if option != "--import":
            rest.append(word)
            continue
        if not sign:
            module = next(remaining, "")
        if not module:
            raise UserError("--import: names no module; write --import my_package.parts")
        registry.load(module)
    return rest

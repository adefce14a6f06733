"""Where the command line writes: results to `out`, what is said of them to `err`.

The streams below them are made to take everything: closed, of another encoding, or broken. A sign
that a terminal cannot show is written with plain characters, by one handler of encoding errors; so
it holds for tables, bars, help and messages alike.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Any

from rich.console import Console

from clozelab.api.watching import err

__all__ = ["err", "flush", "open_streams", "out"]

_STDOUT = "standard output"
_PLAIN = "clozelab.plain"  # the handler's name
_SIGNS = {
    **{"→": "->", "←": "<-", "↔": "<->", "±": "+-", "×": "x", "·": ".", "≤": "<=", "≥": ">="},
    **{"§": "sec. ", "✓": "+", "✗": "x", "⟦": "{", "⟧": "}"},
    **dict.fromkeys("–—−─━╸╺╴╶", "-"),
    **dict.fromkeys("│┃║", "|"),
    **dict.fromkeys("‘’", "'"),
    **dict.fromkeys("“”«»", '"'),
    **dict.fromkeys("▁␣‿", "_"),
    **dict.fromkeys("▂▃▄▅▆▇█", "#"),
    **dict.fromkeys("•●", "*"),
}


class _Out(Console):
    def print(self, *things: Any, **options: Any) -> None:
        """As any console's; an error says where it could not be written."""
        with _named():
            super().print(*things, **options)

    def show(self, *things: Any) -> None:
        """Print what a view made, unwrapped in a pipe; a string as it is, with its tabs."""
        for thing in things:
            if isinstance(thing, str):
                with suppress(BrokenPipeError), _named():  # its reader has seen enough
                    print(thing)
            elif thing is not None:
                self.print(thing, soft_wrap=not self.is_terminal)

    def on_broken_pipe(self) -> None:
        """Let the command go on: nobody reads what it prints, but its work may be wanted."""
        _discard_output()


out = _Out(highlight=False, emoji=False, markup=False, soft_wrap=False)


def open_streams() -> None:
    """Give the process streams that can be read and written without an error of encoding.

    One that was closed becomes the null device, so that no file of ours takes its place.
    """
    codecs.register_error(_PLAIN, _plain)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=_PLAIN)
    # What is said to be ASCII is UTF-8, which has all of it.
    if isinstance(sys.stdin, TextIOWrapper) and codecs.lookup(sys.stdin.encoding).name == "ascii":
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")


def flush() -> None:
    """Write what standard output still has; where it takes nothing more, forget that and say so.

    Nothing is said where the reader of a pipe has seen enough.
    """
    try:
        with _named():
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
    except OSError:
        _discard_output()
        raise


@contextmanager
def _named() -> Iterator[None]:
    """Let an error say where it could not be written."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or _STDOUT
        raise


def _discard_output() -> None:
    """Lead standard output nowhere, so that nothing fails when Python closes it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError, ValueError):  # it has no file behind it
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _plain(error: UnicodeError) -> tuple[str, int]:
    """What is written for characters that a stream cannot encode."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_sign, error.object[error.start : error.end])), error.end


def _sign(character: str) -> str:
    from unicodedata import normalize

    if 0xDC80 <= ord(character) <= 0xDCFF:  # a byte of a name that is no UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    alike = normalize("NFKD", character).encode("ascii", "ignore").decode()  # as e for é
    return _SIGNS.get(character) or alike or "?"

"""The command line: words → a public function, what it returned printed, and how it ended."""

from __future__ import annotations

import errno
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGTERM
from typing import Any

from rich.text import Text

from clozelab import registry
from clozelab.cli.commands import COMMANDS, parser
from clozelab.cli.console import err, flush, open_streams
from clozelab.errors import UserError
from clozelab.interrupts import Stopped, signal_of, terminable
from clozelab.options import DEBUG, debugging

_GONE = "Connection closed by peer"  # what torch.distributed says then
_REMEDIES = {
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR), "check the path"),
    errno.EISDIR: "name a file",
    errno.EEXIST: "name another",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "choose another place, or change its permissions"),
    errno.EROFS: "choose a writable place",
    errno.ENOSPC: "free some space, then run the same command again",
    errno.EDQUOT: "free some space, then run the same command again",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.ELOOP: "check where its links lead",
    errno.EMFILE: "allow more open files (ulimit -n)",
}


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
        sentence, code = _ending(error)
        with suppress(OSError):  # where it cannot be said, the code says it
            if debugging():
                traceback.print_exception(error)
            err.print(_labelled(sentence, "bold red"))
        return code
    return 0


def _warn(message: Warning | str, *place: Any, **more: Any) -> None:
    """A warning in a line, without the place in our source."""
    err.print(_labelled(str(message), "bold yellow"))


def _labelled(sentence: str, style: str) -> Text:
    """A sentence after the name of the command, which is coloured."""
    return Text.assemble(("clozelab:", style), f" {sentence}")


def run(words: Sequence[str]) -> None:
    """Run a command; what is wrong is raised."""
    for word in words:
        if "\0" in word:  # which no path and no text has
            raise UserError(f"{word!r}: contains a NUL character; leave it out")
    words = _imported(words)
    # A command that is named needs no parser for the others.
    names = (" ".join(words[:1]), " ".join(words[:2]))
    named = {name: COMMANDS[name] for name in names if name in COMMANDS}
    values = vars(parser(named or COMMANDS).parse_args(words))
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
            raise UserError("--import: no module is named; write --import my_package.parts")
        registry.load(module)
    return rest


def _ending(error: BaseException) -> tuple[str, int]:
    """What is said of an error, and the code that the process ends with."""
    if isinstance(error, Stopped):
        return str(error), 128 + error.signal
    if isinstance(error, UserError):
        return str(error), 2
    if isinstance(error, KeyboardInterrupt):
        number = signal_of(error)
        return "terminated" if number == SIGTERM else "interrupted", 128 + number
    if isinstance(error, OSError):
        return _system(error), 2
    if isinstance(error, UnicodeEncodeError) and isinstance(error.object, str):
        around = error.object[max(0, error.start - 40) : error.end + 40]
        return f"{' '.join(around.split())}: is not UTF-8; rename it, or convert it", 2
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "out of memory; give the command less data at a time, or use a larger machine", 2
    if isinstance(error, RuntimeError) and _GONE in str(error):
        return "another process of this command failed; see its message", 2
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        if package != "clozelab":
            return f"{package} is not installed; pip install {package}", 2
    line = " ".join(f"{type(error).__name__}: {error}".split())
    return (
        f"{line}; this is a bug in clozelab: set {DEBUG}=1 to see the traceback, and report it",
        1,
    )


def _system(error: OSError) -> str:
    """Place, problem and remedy of what the system refused."""
    names = (error.filename2, error.filename)
    names_said = [os.fsdecode(name) for name in names if isinstance(name, str | bytes | Path)]
    place = f"{names_said[0]}: " if names_said else ""
    problem = error.strerror or str(error) or type(error).__name__
    remedy = _REMEDIES.get(error.errno or 0, "fix that, then run the same command again")
    return f"{place}{problem}; {remedy}"

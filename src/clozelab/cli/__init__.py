"""The command line: words → a call into runs/ and report/; the only folder that prints."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress

from rich.markup import escape

from clozelab import registry
from clozelab.cli import benching, corpora, demo, looking, models, studying, tasks, training
from clozelab.cli.arguments import parser
from clozelab.cli.console import err
from clozelab.cli.endings import debugging, ending
from clozelab.cli.streams import flush, open_streams
from clozelab.errors import UserError
from clozelab.interrupts import terminable


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; what it could not do is told in one sentence. The exit code:

    0 it is done, 1 a fault of clozelab's, 2 a mistake of the user's or of the system, and after a
    signal 128 and its number, as shells have it: 130 for Ctrl-C, 143 for SIGTERM.
    """
    open_streams()
    try:
        with terminable():
            try:
                _run(sys.argv[1:] if words is None else words)
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


def _run(words: Sequence[str]) -> None:
    for word in words:
        if "\0" in word:  # which no path and no text has
            raise UserError(f"{word!r}: has a NUL character in it; leave that out")
    arguments = parser().parse_args(_imported(words))
    if arguments.command is None:
        raise UserError("clozelab needs a command; see clozelab --help")
    for name, value in vars(arguments).items():  # an empty budget is not none, nor a folder here
        if name not in _TEXTS and "" in (value if isinstance(value, list) else [value]):
            raise UserError(f"{_NAMES.get(name, name)}: is empty; give it a value, or leave it out")
    COMMANDS[arguments.command](arguments)


def _imported(words: Sequence[str]) -> list[str]:
    """The words without `--import MODULE`, which any command takes; the modules are imported."""
    rest: list[str] = []
    given = iter(words)
    for word in given:
        if word == "--":
            return [*rest, word, *given]
        option, sign, module = word.partition("=")
        if option != "--import":
            rest.append(word)
            continue
        if not sign:
            module = next(given, "")
        if not module:
            raise UserError("--import: names no module; write --import my_package.parts")
        registry.load(module)
    return rest


_TEXTS = ("text", "question", "passage", "title")  # which may be empty, or say it better
_NAMES = {"start": "from"}

COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "corpus build": corpora.build,
    "corpus show": corpora.show,
    "corpus check": corpora.check,
    "show": looking.show,
    "diff": looking.diff,
    "mask": looking.mask,
    "blocks": looking.blocks,
    "report": looking.report,
    "pretrain": training.pretrain,
    "distil": training.distil,
    "evaluate": tasks.evaluate,
    "tasks": tasks.listing,
    "finetune": tasks.finetune,
    "study": studying.study,
    "predict": tasks.predict,
    "answer": tasks.answer,
    "export": models.export,
    "import": models.bring,
    "fill": models.fill,
    "embed": models.embed,
    "bench": benching.bench,
    "demo": demo.demo,
    "version": looking.version,
}

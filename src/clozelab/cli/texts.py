"""What predict is given: texts of the command, of a file or of standard input, as examples."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clozelab.cli.console import err
from clozelab.cli.streams import STDIN, read_stdin, sound
from clozelab.errors import UserError

if TYPE_CHECKING:
    from clozelab.finetuning.task import TunedTask
    from clozelab.models.load import Loaded


def examples(arguments: argparse.Namespace, given: Loaded) -> list[Any]:
    """The texts of the command, of a table, or one a line of a file or of standard input."""
    from clozelab.finetuning.predict import fine_tuned, tabled

    task, _ = fine_tuned(given)
    file: str | None = arguments.file
    if arguments.text and file is not None:
        raise UserError("--file brings its own texts: leave --text out")
    if not arguments.text and file not in (None, "-") and not str(file).endswith(".txt"):
        if Path(str(file)).is_dir() and not task.kind.reads_folders:
            raise UserError(f"--file {file}: is a folder; name a file")
        examples = tabled(given, str(file), columns=arguments.columns)
        return [task.kind.unlabelled(example) for example in examples]
    if arguments.columns:
        raise UserError("--columns names the columns of a table: leave it out with plain texts")
    if arguments.text:
        return _of_command(task, [sound(text, "--text") for text in arguments.text])
    return _of_lines(task, _read(file), STDIN if file in (None, "-") else str(file))


def check_file(arguments: argparse.Namespace) -> None:
    """Refuse a file that is not there, before a model is opened."""
    from clozelab.finetuning.request import Data

    if arguments.file not in (None, "-"):
        Data("", test=arguments.file).check()


def _read(file: str | None) -> str:
    if file is None and sys.stdin.isatty():
        err.print("[dim]texts, one a line, until Ctrl-D:[/]")
    if file in (None, "-"):
        return read_stdin()
    try:
        return Path(str(file)).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{file}: is not UTF-8 text; convert it to UTF-8") from None


def _of_command(task: TunedTask, texts: Sequence[str]) -> list[Any]:
    """Each --text an example, or all of them one where the kind takes several."""
    several = task.kind.takes(imported=task.imported).most > 1
    rows = [list(texts)] if several else [[text] for text in texts]
    remedies = ("give --text for each", "leave the others out")
    return [_checked(task, row, n, place="--text", remedies=remedies) for n, row in enumerate(rows)]


def _of_lines(task: TunedTask, text: str, place: str) -> list[Any]:
    """A line an example, unless the kind has it otherwise."""
    if not text.strip():
        raise UserError(f"{place}: is empty; give it a text a line")
    remedies = ("put a tab between two", "a tab parts two: take it out")
    return [
        _checked(task, row, n, place=f"{place}:{n + 1}", remedies=remedies)
        for n, row in enumerate(task.kind.rows(text))
    ]


def _checked(
    task: TunedTask, texts: list[str], number: int, *, place: str, remedies: tuple[str, str]
) -> Any:
    """An example of so many texts as its kind takes; remedies are for too few and for too many."""
    from clozelab.finetuning.predict import example

    least, most, words = task.kind.takes(imported=task.imported)
    if not least <= len(texts) <= most:
        has = "1 text" if len(texts) == 1 else f"{len(texts)} texts"
        remedy = remedies[len(texts) > most]
        raise UserError(f"{place}: has {has}, and the model takes {words}; {remedy}")
    return example(task.kind, task.kind.joined(texts), number)

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
from clozelab.finetuning.examples import GOLD

if TYPE_CHECKING:
    from clozelab.finetuning.taskfile import Assignment
    from clozelab.models.load import Loaded

# How many texts make an example of a kind, at least and at most, and what they are.
_ONE, _TWO, _EITHER = (1, 1, "one text"), (2, 2, "two texts"), (1, 2, "one text or two")
_ASKED = {
    "answer": (2, 2, "a question and its passage"),
    "choose": (3, sys.maxsize, "a text and its continuations"),
}


def examples(arguments: argparse.Namespace, given: Loaded) -> list[Any]:
    """The texts of the command, of a table, or one a line of a file or of standard input."""
    from clozelab.finetuning.predict import fine_tuned, tabled

    task, _ = fine_tuned(given)
    file: str | None = arguments.file
    if arguments.text and file is not None:
        raise UserError("--file brings its own texts: leave --text out")
    if not arguments.text and file not in (None, "-") and not str(file).endswith(".txt"):
        if Path(str(file)).is_dir() and task.kind.name not in ("choose", "coreference"):
            raise UserError(f"--file {file}: is a folder; name a file")
        return [_unlabelled(one) for one in tabled(given, str(file), columns=arguments.columns)]
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


def _of_command(task: Assignment, texts: Sequence[str]) -> list[Any]:
    """Each --text an example, or all of them one where the kind takes several."""
    if task.kind.name == "coreference":
        return [_example(task, [text.split() for text in texts], 0)]
    several = _asked(task)[1] > 1
    rows = [list(texts)] if several else [[text] for text in texts]
    remedies = ("give --text for each", "leave the others out")
    return [_checked(task, row, n, place="--text", remedies=remedies) for n, row in enumerate(rows)]


def _of_lines(task: Assignment, text: str, place: str) -> list[Any]:
    """A line an example; of documents a line a sentence, and a blank line between two."""
    if not text.strip():
        raise UserError(f"{place}: is empty; give it a text a line")
    if task.kind.name == "coreference":
        parts = [part.split("\n") for part in text.split("\n\n") if part.strip()]
        documents = [[line.split() for line in part if line.strip()] for part in parts]
        return [_example(task, one, number) for number, one in enumerate(documents)]
    # Not splitlines: U+2028 and its like stand inside a text.
    lines = text.removesuffix("\n").split("\n")
    remedies = ("put a tab between two", "a tab parts two: take it out")
    return [
        _checked(task, line.split("\t"), n, place=f"{place}:{n + 1}", remedies=remedies)
        for n, line in enumerate(lines)
    ]


def _checked(
    task: Assignment, texts: list[str], number: int, *, place: str, remedies: tuple[str, str]
) -> Any:
    """An example of so many texts as its kind takes; remedies are for too few and for too many."""
    if task.kind.name == "tag":
        return _example(task, " ".join(texts), number)
    least, most, what = _asked(task)
    if not least <= len(texts) <= most:
        has = "1 text" if len(texts) == 1 else f"{len(texts)} texts"
        remedy = remedies[len(texts) > most]
        raise UserError(f"{place}: has {has}, and the model takes {what}; {remedy}")
    if task.kind.name == "choose":
        return _example(task, (texts[0], texts[1:]), number)
    return _example(task, texts[0] if len(texts) == 1 else tuple(texts), number)


def _asked(task: Assignment) -> tuple[int, int, str]:
    from clozelab.finetuning.taskhead import IMPORTED

    kind: Any = task.kind
    if kind.name in _ASKED:
        return _ASKED[kind.name]
    if kind.name in ("classify", "regress") and task.name == IMPORTED:
        return _EITHER
    return _TWO if getattr(kind, "pair", False) else _ONE


def _example(task: Assignment, texts: Any, number: int) -> Any:
    from clozelab.finetuning.predict import example

    return example(task.kind, texts, number)


def _unlabelled(example: Any) -> Any:
    """The example without what a file may say of it."""
    return example._replace(**{name: None for name in example._fields if name in GOLD})

"""Texts that a function is given: as they are, from a file, or from standard input for -."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clozelab.errors import UserError

if TYPE_CHECKING:
    from clozelab.finetuning.task import TunedTask
    from clozelab.models.model import Model

STDIN = "standard input"


def read_text(word: str, place: str) -> str:
    """The text that a command was given, which is that of standard input for -."""
    return read_stdin() if word == "-" else sound(word, place)


def read_stdin() -> str:
    """All of standard input."""
    try:
        return sound(sys.stdin.read(), STDIN)
    except UnicodeDecodeError:
        raise UserError(f"{STDIN}: is not UTF-8 text; convert it to UTF-8") from None


def sound(text: str, place: str) -> str:
    """The text, where it is UTF-8: the system lets other bytes pass as characters that are none."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError:
        raise UserError(f"{place}: is not UTF-8 text; convert it to UTF-8") from None


def lines_of(file: str) -> list[str]:
    """The texts of a file or of standard input, one a line."""
    try:
        text = read_stdin() if file == "-" else Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{file}: is not UTF-8 text; convert it to UTF-8") from None
    # Not splitlines: U+2028 and its like stand inside a text.
    return text.removesuffix("\n").split("\n") if text else []


def examples(
    given: Model, text: Sequence[str], *, file: str | None, columns: Sequence[str]
) -> list[Any]:
    """The texts given, those of a table, or one a line of a file or of standard input."""
    from clozelab.finetuning.predict import fine_tuned, tabled

    task, _ = fine_tuned(given)
    if text and file is not None:
        raise UserError("--file brings its own texts: leave --text out")
    if not text and file not in (None, "-") and not str(file).endswith(".txt"):
        if Path(str(file)).is_dir() and not task.kind.reads_folders:
            raise UserError(f"--file {file}: is a folder; name a file")
        return [task.kind.unlabelled(one) for one in tabled(given, str(file), columns=columns)]
    if columns:
        raise UserError("--columns names the columns of a table: leave it out with plain texts")
    if text:
        return _of_command(task, [sound(one, "--text") for one in text])
    return _of_lines(task, _read(file), STDIN if file in (None, "-") else str(file))


def _read(file: str | None) -> str:
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

"""Commands on a trained model: export, import, fill, embed."""

from __future__ import annotations

import argparse
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from clozelab.cli.console import err, out, warn
from clozelab.cli.streams import read_stdin, read_text, sound
from clozelab.errors import UserError

if TYPE_CHECKING:
    from clozelab.models.embed import Layer, Vectors
    from clozelab.models.exchange import Exchanged
    from clozelab.models.load import Loaded


def export(arguments: argparse.Namespace) -> None:
    """Write a model for transformers, or as an ONNX graph."""
    from clozelab.models.exchange import export, export_graph

    place = Path(arguments.out)
    if not arguments.onnx:
        _said(place, export(arguments.model, place, family=arguments.family))
        return
    if arguments.family is not None:
        raise UserError("--family is a class of transformers: leave it out with --onnx")
    _said(place, export_graph(arguments.model, place))


def bring(arguments: argparse.Namespace) -> None:
    """Make a run of a model of transformers."""
    from clozelab.models.exchange import import_model

    _said(Path(arguments.out), import_model(arguments.model, Path(arguments.out)))


def fill(arguments: argparse.Namespace) -> None:
    """Fill the blanks of a text."""
    from clozelab.cli.views.models import filled
    from clozelab.models.fill import fill

    text = read_text(arguments.text, "the text")
    text = text.rstrip("\n") if arguments.text == "-" else text
    given = loaded(arguments.model)
    found = fill(given, text, top=arguments.top, device=arguments.device)
    if found.left_only:
        warn("this model reads from the left: a blank is guessed from what stands before it alone")
    out.print(filled(found.blanks, found.parts), soft_wrap=not out.is_terminal)


def embed(arguments: argparse.Namespace) -> None:
    """Write the vectors of some texts."""
    from clozelab.files import check_output

    place = Path(arguments.out)
    if place.suffix != ".npz":
        raise UserError(f"--out {place}: vectors are written as .npz; name it so")
    check_output(place, overwrite=arguments.overwrite)
    if arguments.pool != "none" and arguments.words is not None:
        raise UserError("--pool makes one vector of a text: leave --words out")
    layer, texts = _layer(arguments.layer), _texts(arguments)

    from clozelab.models.embed import follow, save

    given = loaded(arguments.model)
    embedding = follow(
        given,
        texts,
        layer=layer,
        words=arguments.words or "mean",
        pool=arguments.pool,
        device=arguments.device,
    )
    found = _followed(embedding, len(texts))
    missing = save(place, found, texts)
    if found.cut:
        warn(f"texts longer than the model reads, cut: {found.cut:,}")
    if missing:
        warn(f"{place}: without {' and '.join(missing)}, which one long text makes too large")
    shape = " × ".join(f"{size:,}" for size in found.vectors.shape)
    err.print(escape(f"{place}: {shape} numbers for {len(texts):,} texts"))


def _followed(embedding: Generator[int, None, Vectors], total: int) -> Vectors:
    """Draw how many texts are done until all are."""
    from rich.progress import Progress

    with Progress(console=err, disable=not err.is_terminal) as bars:
        task = bars.add_task("embedding", total=total)
        while True:
            try:
                bars.update(task, completed=next(embedding))
            except StopIteration as done:
                vectors: Vectors = done.value
                return vectors


def _texts(arguments: argparse.Namespace) -> list[str]:
    """The texts of the command, or one a line of a file or of standard input."""
    given: list[str] = arguments.text
    file = "-" if given == ["-"] else arguments.file
    if file is None and not given:
        raise UserError("embed needs texts: give them, or --file FILE with one a line, or -")
    if file is None:
        return [sound(text, "the text") for text in given]
    if given and given != ["-"]:
        raise UserError("--file brings its own texts: leave the others out")
    try:
        text = read_stdin() if file == "-" else Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{file}: is not UTF-8 text; convert it to UTF-8") from None
    # Not splitlines: U+2028 and its like stand inside a text.
    return text.removesuffix("\n").split("\n") if text else []


def _layer(word: str) -> Layer:
    if word == "all":
        return "all"
    if word == "last":
        return -1
    try:
        return int(word)
    except ValueError:
        raise UserError(f"--layer {word}: a number, last or all") from None


def loaded(place: str) -> Loaded:
    """The model at a place, its notes said."""
    from clozelab.models.load import load

    given = load(place)
    for line in given.notes:
        warn(line)
    return given


def _said(place: Path, handed: Exchanged) -> None:
    for line in handed.notes:
        warn(line)
    err.print(escape(f"{place}: {handed.what}"))

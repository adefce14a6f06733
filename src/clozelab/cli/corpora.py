"""Commands on a corpus: build, show, check."""

from __future__ import annotations

import argparse
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from clozelab.cli.console import err, out, warn
from clozelab.contracts import Counts
from clozelab.interrupts import Stopped, signal_of

if TYPE_CHECKING:
    from clozelab.text.store import Corpus
    from clozelab.text.store.options import BuildProgress


def build(arguments: argparse.Namespace) -> None:
    """Build a store from text."""
    from clozelab.cli.views.corpora import show
    from clozelab.config import recipe as recipes
    from clozelab.text.building import choose_tokenizer, cores, make, missing
    from clozelab.text.reading.sources import Reading
    from clozelab.text.store.options import BuildOptions

    options = BuildOptions(
        reading=Reading(
            layout=arguments.layout,
            field=arguments.field,
            encoding=arguments.encoding,
            split=arguments.split,
        ),
        sentences=arguments.sentences,
        segment=not arguments.no_segmentation,
        entities=arguments.entities,
        spans=arguments.spans,
        phrases=arguments.phrases,
        held_out=arguments.held_out,
        unique=arguments.unique,
        words=arguments.words,
        workers=cores() if arguments.workers is None else arguments.workers,
    )
    tokenizer = choose_tokenizer(
        kind=arguments.tokenizer,
        vocabulary=arguments.vocabulary,
        cased=arguments.cased,
        source=arguments.tokenizer_from,
        recipe=recipes.read(arguments.recipe).tokenizer if arguments.recipe else None,
        extend=arguments.extend,
    )
    for line in missing(options):
        warn(line)
    counts = Counts()
    building = make(
        arguments.input, Path(arguments.out), tokenizer=tokenizer, options=options, counts=counts
    )
    try:
        corpus = _follow(building)
    except KeyboardInterrupt as interrupt:
        building.close()
        raise Stopped(
            f"{arguments.out}: interrupted; finished parts are kept, the same command goes on",
            signal=signal_of(interrupt),
        ) from None
    for what, number in counts.numbers.items():
        place = counts.places[what]
        err.print(escape(f"{what}: {number:,}" + (f" (first at {place})" if place else "")))
    out.print(show(corpus))


def _follow(building: Generator[BuildProgress, None, Corpus]) -> Corpus:
    """Draw a build's progress until it is done."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bars

    named = TextColumn("{task.description}")
    left = TimeRemainingColumn()
    size, rate = DownloadColumn(), TransferSpeedColumn()
    with Bars(
        named, BarColumn(), size, rate, left, console=err, disable=not err.is_terminal
    ) as bars:
        tasks: dict[str, TaskID] = {}
        while True:
            try:
                step = next(building)
            except StopIteration as done:
                corpus: Corpus = done.value
                return corpus
            if step.unit == "steps":
                bars.columns = (named, BarColumn(), MofNCompleteColumn(), left)
            if step.stage not in tasks:
                for task in tasks.values():
                    bars.remove_task(task)
                tasks = {step.stage: bars.add_task(step.stage, total=step.total)}
            bars.update(tasks[step.stage], completed=step.done)


def show(arguments: argparse.Namespace) -> None:
    """What is in a store."""
    from clozelab.cli.views.corpora import show
    from clozelab.text.store import Corpus

    out.print(show(Corpus.open(arguments.corpus)))


def check(arguments: argparse.Namespace) -> None:
    """Compare every byte of a store with its manifest."""
    from clozelab.text.store import Corpus

    corpus = Corpus.open(arguments.corpus)
    corpus.check()
    out.print(escape(f"{corpus.path}: all {len(corpus.manifest['files'])} files are whole"))

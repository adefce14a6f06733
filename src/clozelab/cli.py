"""The command line: words → a call into runs/ and report/; the only file that prints."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from clozelab.arguments import parser
from clozelab.contracts import Counts, UserError

if TYPE_CHECKING:
    from clozelab.recipe import Recipe
    from clozelab.text.store import Corpus
    from clozelab.text.store.options import Progress

out = Console(highlight=False, emoji=False, soft_wrap=False)
err = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)

_TEXT = (
    "Pierre bought a second-hand umbrella in New York because it had been raining"
    " unbelievably hard since Wednesday."
)


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; a mistake of the user's ends in one sentence and exit code 2."""
    arguments = parser().parse_args(words)
    try:
        COMMANDS[arguments.command](arguments)
        sys.stdout.flush()
    except UserError as error:
        err.print(f"[bold red]clozelab:[/] {escape(str(error))}")
        return 2
    except KeyboardInterrupt:
        err.print("[bold red]clozelab:[/] interrupted")
        return 2
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        told = f"{place}{error.strerror or error}; mend that and run the same command again"
        err.print(f"[bold red]clozelab:[/] {escape(told)}")
        return 2
    return 0


def corpus_build(arguments: argparse.Namespace) -> None:
    """Build a store from text."""
    from clozelab.report.corpora import show
    from clozelab.runs.corpus import choose_tokenizer, cores, make, missing
    from clozelab.text.reading.sources import Reading
    from clozelab.text.store.options import Options

    options = Options(
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
        recipe=arguments.recipe,
    )
    for line in missing(options):
        err.print(f"[yellow]{escape(line)}[/]")
    counts = Counts()
    building = make(
        arguments.input, Path(arguments.out), tokenizer=tokenizer, options=options, counts=counts
    )
    try:
        corpus = _follow(building)
    except KeyboardInterrupt:
        building.close()
        raise UserError(
            f"{arguments.out}: interrupted; finished parts are kept, the same command goes on"
        ) from None
    for what, number in counts.numbers.items():
        place = counts.places[what]
        err.print(escape(f"{what}: {number:,}" + (f" (first at {place})" if place else "")))
    out.print(show(corpus))


def _follow(building: Generator[Progress, None, Corpus]) -> Corpus:
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


def corpus_show(arguments: argparse.Namespace) -> None:
    """What is in a store."""
    from clozelab.report.corpora import show
    from clozelab.text.store import Corpus

    out.print(show(Corpus.open(arguments.corpus)))


def corpus_check(arguments: argparse.Namespace) -> None:
    """Compare every byte of a store with its manifest."""
    from clozelab.text.store import Corpus

    corpus = Corpus.open(arguments.corpus)
    corpus.check()
    out.print(escape(f"{corpus.path}: all {len(corpus.manifest['files'])} files are whole"))


def _read(arguments: argparse.Namespace) -> Recipe:
    """The recipe a command names, its warnings said."""
    from clozelab import recipe as recipes

    size = getattr(arguments, "size", None)
    recipe = recipes.read(arguments.recipe, size=size, overrides=arguments.set)
    for line in recipe.warnings():
        err.print(f"[yellow]{escape(line)}[/]")
    return recipe


def show(arguments: argparse.Namespace) -> None:
    """A recipe, resolved."""
    from clozelab import recipe as recipes
    from clozelab.report import recipes as views

    if arguments.recipe is None:
        for name in recipes.names():
            out.print(f"[bold]{name:18}[/]{escape(recipes.read(name).title)}", soft_wrap=True)
        return
    recipe = _read(arguments)
    if arguments.toml:
        out.print(escape(recipes.to_toml(recipe)), soft_wrap=True)  # a wrapped line is not TOML
    else:
        out.print(views.show(recipe))


def diff(arguments: argparse.Namespace) -> None:
    """What two recipes do differently."""
    from clozelab import recipe as recipes
    from clozelab.report import recipes as views

    out.print(views.difference(recipes.read(arguments.a), recipes.read(arguments.b)))


def mask(arguments: argparse.Namespace) -> None:
    """What a recipe hides in a text."""
    from clozelab.report import masks as views
    from clozelab.runs import masks
    from clozelab.text.store import Corpus

    recipe = _read(arguments)
    corpus = Corpus.open(arguments.corpus) if arguments.corpus else None
    text = sys.stdin.read() if arguments.text == "-" else arguments.text
    blocks, documents = masks.lay(text, recipe, corpus)
    tokenizer = masks.tokenizer_of(recipe, corpus)
    copies = recipe.corruption.copies
    epochs = [0, 1, copies] if copies > 1 else [0, 1, 2]
    if arguments.epoch is not None:
        epochs = [arguments.epoch]
    out.print(views.legend(recipe), soft_wrap=not out.is_terminal)
    for shown in masks.masked(blocks, recipe, documents, epochs=epochs, seed=arguments.seed):
        name = f"epoch {shown.epoch}"
        if copies:
            name += f", copy {recipe.corruption.copy(shown.epoch)} of {copies}"
        view = views.epoch(blocks, shown, recipe, tokenizer=tokenizer, name=name)
        out.print()
        out.print(view, soft_wrap=not out.is_terminal)


def blocks(arguments: argparse.Namespace) -> None:
    """What a recipe's blocks look like."""
    import numpy as np

    from clozelab.report import blocks as views
    from clozelab.runs import masks
    from clozelab.text.store import Corpus

    recipe = _read(arguments)
    corpus = Corpus.open(arguments.corpus)
    plan = masks.plan(
        recipe, corpus, split=arguments.part, epoch=arguments.epoch, seed=arguments.seed
    )
    if not 0 <= arguments.number < len(plan):
        raise UserError(f"--number {arguments.number}: there are blocks 0 to {len(plan) - 1:,}")
    last = min(arguments.number + arguments.count, len(plan))
    out.print(views.summary(plan, recipe))
    out.print()
    chosen = plan.blocks(np.arange(arguments.number, last))
    out.print(views.listed(chosen, recipe, corpus.tokenizer), soft_wrap=not out.is_terminal)


def demo(arguments: argparse.Namespace) -> None:
    """From the embedded text to masked blocks."""
    from clozelab import data

    place = Path(arguments.out) / "corpus"
    steps = [
        ["show", "roberta", "--size", "tiny"],
        ["diff", "bert", "spanbert"],
        ["mask", "bert", _TEXT, "--corpus", str(place)],
        ["mask", "spanbert", _TEXT, "--corpus", str(place), "--epoch", "0"],
        ["mask", "xlnet", _TEXT, "--corpus", str(place), "--epoch", "0"],
        ["blocks", "bert", "--corpus", str(place), "--size", "tiny", "--count", "2"],
        ["blocks", "albert", "--corpus", str(place), "--size", "tiny", "--count", "2"],
    ]
    if not (place / "manifest.json").exists():
        build = ["corpus", "build", str(data.corpus()), "--out", str(place)]
        steps.insert(0, [*build, "--vocabulary", "8000", "--phrases"])
    else:
        steps.insert(0, ["corpus", "show", str(place)])
    for words in steps:
        spoken = " ".join(f'"{word}"' if " " in word else word for word in words)
        out.rule(f"[bold]clozelab {escape(spoken)}", align="left")
        step = parser().parse_args(words)
        COMMANDS[step.command](step)
        out.print()


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "corpus build": corpus_build,
    "corpus show": corpus_show,
    "corpus check": corpus_check,
    "show": show,
    "diff": diff,
    "mask": mask,
    "blocks": blocks,
    "demo": demo,
}


if __name__ == "__main__":
    sys.exit(main())

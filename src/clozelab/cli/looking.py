"""Commands that show: recipes, their differences, masks, blocks, and pages about runs."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from clozelab.cli.console import err, out, read_recipe
from clozelab.cli.streams import read_text
from clozelab.errors import UserError

if TYPE_CHECKING:
    from clozelab.reporting.document import Page

PAUSE = 5  # seconds between two writings of a page that is followed


def show(arguments: argparse.Namespace) -> None:
    """A recipe, resolved."""
    from clozelab.cli.views import recipes as views
    from clozelab.config import recipe as recipes

    if arguments.recipe is None:
        for name in recipes.names():
            out.print(f"[bold]{name:18}[/]{escape(recipes.read(name).title)}", soft_wrap=True)
        return
    recipe = read_recipe(arguments)
    if arguments.toml:
        out.print(escape(recipes.to_toml(recipe)), soft_wrap=True)  # a wrapped line is not TOML
    else:
        out.print(views.show(recipe, extends=recipes.chain(arguments.recipe)[1:]))


def version(arguments: argparse.Namespace) -> None:
    """What is installed here, as a report of a fault should say."""
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    import clozelab

    try:
        torch = installed("torch")  # without importing it, which takes seconds
    except PackageNotFoundError:
        torch = "not installed"
    out.print(f"clozelab {clozelab.__version__}, Python {platform.python_version()}, torch {torch}")


def diff(arguments: argparse.Namespace) -> None:
    """What two recipes do differently."""
    from clozelab.cli.views import recipes as views
    from clozelab.config import recipe as recipes

    out.print(views.difference(recipes.read(arguments.a), recipes.read(arguments.b)))


def mask(arguments: argparse.Namespace) -> None:
    """What a recipe hides in a text."""
    from clozelab.cli.views import masks as views
    from clozelab.pretraining import masks
    from clozelab.text.store import Corpus

    recipe = read_recipe(arguments)
    corpus = Corpus.open(arguments.corpus) if arguments.corpus else None
    text = read_text(arguments.text, "the text")
    laid = masks.lay(text, recipe, corpus)
    tokenizer = masks.tokenizer_of(recipe, corpus)
    copies = recipe.corruption.copies
    epochs = [0, 1, copies] if copies > 1 else [0, 1, 2]
    if arguments.epoch is not None:
        epochs = [arguments.epoch]
    out.print(views.legend(recipe), soft_wrap=not out.is_terminal)
    for line in views.known(laid.blocks, laid.units, recipe, tokenizer=tokenizer):
        out.print(line, soft_wrap=not out.is_terminal)
    for shown in masks.masked(laid, recipe, epochs=epochs, seed=arguments.seed):
        name = f"epoch {shown.epoch}"
        if copies:
            name += f", copy {recipe.corruption.copy(shown.epoch)} of {copies}"
        view = views.epoch(laid.blocks, shown, recipe, tokenizer=tokenizer, name=name)
        out.print()
        out.print(view, soft_wrap=not out.is_terminal)


def blocks(arguments: argparse.Namespace) -> None:
    """What a recipe's blocks look like."""
    import numpy as np

    from clozelab.cli.views import blocks as views
    from clozelab.pretraining import masks
    from clozelab.text.store import Corpus

    recipe = read_recipe(arguments)
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


def report(arguments: argparse.Namespace) -> None:
    """Write a page about some runs or a study; to follow them, again while they go on."""
    from clozelab.files import check_output, write_text
    from clozelab.reporting.document import check

    place = Path(arguments.out)
    check(place)
    check_output(place, overwrite=arguments.overwrite)
    runs = [Path(one) for one in arguments.runs]
    page, told, going = _page(runs, arguments.title)
    if arguments.follow and going:
        err.print(escape(f"{place}: open it, it keeps up; Ctrl-C ends this, not the runs"))
        try:
            while going:
                write_text(place, page.written(place, refresh=PAUSE))
                time.sleep(PAUSE)
                page, told, going = _page(runs, arguments.title)
        except KeyboardInterrupt:
            pass  # what is told last stands, and no longer loads itself
    write_text(place, page.written(place))
    err.print(escape(f"{place}: {told}"))


def _page(runs: list[Path], title: str | None) -> tuple[Page, str, bool]:
    """The page, what it is about, and whether any of that goes on."""
    try:
        return _gathered(runs, title)
    except UserError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        # Records are ours: where one is not of the shape that we write, it was damaged since.
        raise UserError(
            f"{', '.join(map(str, runs))}: the records there are damaged ({type(error).__name__}:"
            f" {error}); put back a copy, or leave them out"
        ) from error


def _gathered(runs: list[Path], title: str | None) -> tuple[Page, str, bool]:
    from clozelab.reporting import page, study
    from clozelab.reporting.records import gather
    from clozelab.runs.directory import STUDY
    from clozelab.studies import records

    if len(runs) == 1 and (runs[0] / STUDY).is_file():
        record = records.read(runs[0])
        made = study.page(record)
        told = f"a study, {len(record.cells)} of {record.planned} cells"
        return replace(made, title=title or made.title), told, not record.ended
    trained, tuned = gather(runs)
    going = any(not run.done for run in trained)
    told = f"{len(trained)} runs, {len(tuned)} fine-tunings"
    return page.page(trained, tuned, title=title or "Runs"), told, going

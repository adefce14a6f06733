"""What commands print of what a function returned; and the commands that only print."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rich.markup import escape

from clozelab.api.recipes import RecipeOptions
from clozelab.api.watching import Watch, speaks
from clozelab.cli.console import out
from clozelab.options import Place, command

Values = Mapping[str, Any]


@command
def show(
    recipe: Place | None = None, *, toml: bool = False, changes: RecipeOptions, watch: Watch
) -> None:
    """Show a recipe resolved, with its parts and their parameters.

    Args:
        recipe: a name or a TOML file; none lists the names
        toml: print it as a complete recipe file
    """
    from clozelab.cli.views import recipes as views
    from clozelab.config import recipe as recipes

    if recipe is None:
        for name in recipes.names():
            out.print(f"[bold]{name:18}[/]{escape(recipes.read(name).title)}", soft_wrap=True)
        return
    found = changes.read(recipe, watch)
    if toml:
        out.print(escape(recipes.to_toml(found)), soft_wrap=True)  # a wrapped line is not TOML
    else:
        out.print(views.show(found, extends=recipes.chain(recipe)[1:]))


@command
def diff(a: Place, b: Place) -> None:
    """Show what two recipes do differently.

    Args:
        a: a name or a TOML file
        b: another
    """
    from clozelab.cli.views import recipes as views

    read = RecipeOptions().read
    out.print(views.difference(read(a), read(b)))


@command
def corpus_show(corpus: Place) -> None:
    """Show what is in a corpus.

    Args:
        corpus: its folder
    """
    from clozelab.cli.views.corpora import show
    from clozelab.text.store import Corpus

    out.print(show(Corpus.open(corpus)))


@command
def corpus_check(corpus: Place) -> None:
    """Compare every byte of a corpus with its manifest.

    Args:
        corpus: its folder
    """
    from clozelab.text.store import Corpus

    found = Corpus.open(corpus)
    found.check()
    out.print(escape(f"{found.path}: all {len(found.manifest['files'])} files are whole"))


@command
def tasks(name: str | None = None) -> None:
    """List the tasks that go by name, and where their files should lie.

    Args:
        name: one of them, in full
    """
    from clozelab.cli.views.tasks import described, table
    from clozelab.finetuning.files.named import NAMED

    out.print(table(NAMED) if name is None else described(name))


@command
def version() -> None:
    """Tell what is installed here, as a report of a fault should say."""
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    import clozelab

    try:
        torch = installed("torch")  # without importing it, which takes seconds
    except PackageNotFoundError:
        torch = "not installed"
    out.print(f"clozelab {clozelab.__version__}, Python {platform.python_version()}, torch {torch}")


def corpus(result: Any, values: Values) -> None:
    """A corpus on one screen."""
    from clozelab.cli.views.corpora import show

    out.print(show(result))


def masks(result: Any, values: Values) -> None:
    """What is hidden in each epoch, in colour."""
    from clozelab.cli.views import masks as views

    recipe, laid, tokenizer = result.recipe, result.laid, result.tokenizer
    out.print(views.legend(recipe), soft_wrap=not out.is_terminal)
    for line in views.known(laid.blocks, laid.units, recipe, tokenizer=tokenizer):
        out.print(line, soft_wrap=not out.is_terminal)
    for epoch in result.epochs:
        name = f"epoch {epoch.epoch}"
        if recipe.corruption.copies:
            copy = recipe.corruption.copy(epoch.epoch)
            name += f", copy {copy} of {recipe.corruption.copies}"
        out.print()
        out.print(
            views.epoch(laid.blocks, epoch, recipe, tokenizer=tokenizer, name=name),
            soft_wrap=not out.is_terminal,
        )


def blocks(result: Any, values: Values) -> None:
    """Blocks, with their pair labels."""
    from clozelab.cli.views import blocks as views

    out.print(views.summary(result.plan, result.recipe))
    out.print()
    listed = views.listed(result.blocks, result.recipe, result.tokenizer)
    out.print(listed, soft_wrap=not out.is_terminal)


def measured(result: Any, values: Values) -> None:
    """A task's scores, or losses on held-out text."""
    from clozelab.cli.views.losses import table
    from clozelab.cli.views.scores import scores

    out.print(scores(result) if "task" in values else table(result))


def matrix(result: Any, values: Values) -> None:
    """Losses under every strategy, and answers to pairs."""
    from clozelab.cli.views.losses import matrix

    out.print(matrix(result), soft_wrap=not out.is_terminal)


def probes(result: Any, values: Values) -> None:
    """The scores of every task by layer."""
    from clozelab.cli.views.probes import table

    out.print(table(result), soft_wrap=not out.is_terminal)


def tuned(result: Any, values: Values) -> None:
    """The scores of fine-tunings, with the best."""
    from clozelab.cli.views.scores import table

    found = result.result()
    if speaks() and found is not None:
        out.print(table(found))


def predictions(result: Any, values: Values) -> None:
    """Predictions as a table for people, as lines for other programs."""
    from clozelab.cli.views.predictions import shown

    if "out" in values:
        return
    if out.is_terminal and not values.get("json"):
        out.print(shown(result.kind, result.examples, result))
        return
    with suppress(BrokenPipeError):  # its reader has seen enough
        for line in result.lines(as_json=bool(values.get("json"))):
            print(line, file=sys.stdout)


def answer(result: Any, values: Values) -> None:
    """An answer in its passage, and its rivals."""
    from clozelab.cli.views.predictions import answered

    shown = answered(result.span, result.passage, top=result.top)
    out.print(shown, soft_wrap=not out.is_terminal)


def filled(result: Any, values: Values) -> None:
    """The guesses for every blank."""
    from clozelab.cli.views.models import filled

    out.print(filled(result.blanks, result.parts), soft_wrap=not out.is_terminal)


def study(result: Any, values: Values) -> None:
    """The studies there are, or what one compares; what it came to was printed when it was done."""
    from clozelab.cli.views import studies as views
    from clozelab.studies import spec as studies

    if isinstance(result, list):
        out.print(views.table(studies.read(name) for name in result))
    elif isinstance(result, studies.StudySpec):
        out.print(views.described(result))


def study_event(event: Any) -> None:
    """The plan before the first cell, the scores after the last."""
    from clozelab.api.studies import Study
    from clozelab.cli.views import studies as views
    from clozelab.studies import spec as studies
    from clozelab.studies.plan import StudyPlan

    if isinstance(event, StudyPlan):
        out.print(views.plan(event.request.study, event.as_json()))
    elif isinstance(event, Study) and event.result()["cells"]:
        out.print(views.scores(studies.read(event.path / "study.toml"), event.result()))


def bench(result: Any, values: Values) -> None:
    """A row for each contender."""
    from clozelab.cli.views.bench import table

    out.print(table(result))

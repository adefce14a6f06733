"""The commands: for each the function that does it, and the view of what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import clozelab
from clozelab.api import (
    benching,
    corpora,
    matrix,
    models,
    predicting,
    probing,
    recipes,
    scoring,
    studies,
    tasks,
    training,
)
from clozelab.api.recipes import RecipeOptions
from clozelab.api.watching import Watch
from clozelab.cli import demo, shell
from clozelab.cli.console import out
from clozelab.options import Place, command


@dataclass(frozen=True)
class Command:
    """One command. A view is a function of `views`, by name: it is imported when it is needed."""

    call: Callable[..., Any]  # a public function: its options are the command's
    view: str = ""  # what is printed of its result and its options
    event_view: str = ""  # what is printed of an event while the work goes on
    required: tuple[str, ...] = ()  # options that Python may leave out

    def run(self, values: Mapping[str, Any]) -> None:
        """Do it, and print what came out."""
        events = {"on_event": lambda event: self._print(self.event_view, event, values)}
        result = self.call(**values, **events if self.event_view else {})
        if self.view:
            self._print(self.view, result, values)

    def _print(self, view: str, result: Any, values: Mapping[str, Any]) -> None:
        module, _, name = view.partition(".")
        function = getattr(import_module(f"clozelab.cli.views.{module}"), name)
        out.show(*function(result, values))


@command
def show(
    recipe: Place | None = None, *, toml: bool = False, changes: RecipeOptions, watch: Watch
) -> Any:
    """Show a recipe resolved, with its parts and their parameters.

    Args:
        recipe: a name or a TOML file; none lists the names
        toml: print it as a complete recipe file
    """
    return None if recipe is None else changes.read(recipe, watch)


@command
def version() -> None:
    """Tell what is installed here, as a report of a fault should say."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed
    from platform import python_version

    try:
        torch = installed("torch")  # without importing it, which takes seconds
    except PackageNotFoundError:
        torch = "not installed"
    out.show(f"clozelab {clozelab.__version__}, Python {python_version()}, torch {torch}")


COMMANDS: dict[str, Command] = {
    "corpus build": Command(corpora.build_corpus, "corpora.built"),
    "corpus show": Command(corpora.show_corpus, "corpora.summary"),
    "corpus check": Command(corpora.check_corpus, "corpora.checked"),
    "show": Command(show, "recipes.shown"),
    "diff": Command(recipes.diff, "recipes.difference"),
    "mask": Command(recipes.mask, "blocks.masks"),
    "blocks": Command(recipes.show_blocks, "blocks.blocks"),
    "pretrain": Command(training.pretrain),
    "distil": Command(training.distil),
    "evaluate": Command(tasks.evaluate, "tasks.measured"),
    "matrix": Command(matrix.matrix, "matrix.matrix"),
    "score": Command(scoring.score, "scores.scores"),
    "probe": Command(probing.probe, "probes.probes"),
    "tasks": Command(tasks.tasks, "tasks.known"),
    "finetune": Command(tasks.finetune, "tasks.tuned"),
    "predict": Command(predicting.predict, "models.predictions"),
    "answer": Command(predicting.answer, "models.answer"),
    "study": Command(studies.study, "studies.study", "studies.event"),
    "merge": Command(studies.merge_studies, event_view="studies.event"),
    "export": Command(models.export),
    "import": Command(models.import_model),
    "fill": Command(models.fill, "models.filled"),
    "embed": Command(models.embed, required=("out",)),
    "report": Command(studies.report),
    "bench": Command(benching.bench, "bench.measured"),
    "demo": Command(demo.demo),
    "completion": Command(shell.completion),
    "version": Command(version),
}

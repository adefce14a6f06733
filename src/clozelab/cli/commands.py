"""The commands: for each the function that does it, and the view of what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import clozelab
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
    "corpus build": Command(clozelab.build_corpus, "corpora.built"),
    "corpus show": Command(clozelab.show_corpus, "corpora.summary"),
    "corpus check": Command(clozelab.check_corpus, "corpora.checked"),
    "show": Command(show, "recipes.shown"),
    "diff": Command(clozelab.diff, "recipes.difference"),
    "mask": Command(clozelab.mask, "blocks.masks"),
    "blocks": Command(clozelab.show_blocks, "blocks.blocks"),
    "pretrain": Command(clozelab.pretrain),
    "distil": Command(clozelab.distil),
    "evaluate": Command(clozelab.evaluate, "tasks.measured"),
    "matrix": Command(clozelab.matrix, "scores.matrix"),
    "score": Command(clozelab.score, "scores.scores"),
    "probe": Command(clozelab.probe, "scores.probes"),
    "tasks": Command(clozelab.tasks, "tasks.known"),
    "finetune": Command(clozelab.finetune, "tasks.tuned"),
    "predict": Command(clozelab.predict, "models.predictions"),
    "answer": Command(clozelab.answer, "models.answer"),
    "study": Command(clozelab.study, "studies.study", "studies.event"),
    "export": Command(clozelab.export),
    "import": Command(clozelab.import_model),
    "fill": Command(clozelab.fill, "models.filled"),
    "embed": Command(clozelab.embed, required=("out",)),
    "report": Command(clozelab.report),
    "bench": Command(clozelab.bench, "bench.measured"),
    "demo": Command(demo.demo),
    "completion": Command(shell.completion),
    "version": Command(version),
}

"""The commands: for each the function that does it, whose options are the words of the command
line, and the view of what comes back.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import clozelab
from clozelab.api.recipes import RecipeOptions
from clozelab.api.watching import Watch
from clozelab.cli import demo, shell
from clozelab.cli.console import out
from clozelab.errors import UserError
from clozelab.nearest import nearest, remedy
from clozelab.options import (
    REQUIRED,
    Data,
    MixTemperature,
    Option,
    Place,
    command,
    options,
    summary,
)


@dataclass(frozen=True)
class Command:
    """One command. A view is a function of `views`, by name: it is imported when it is needed.

    With --json, what has `as_json` is printed as that instead.
    """

    call: Callable[..., Any]  # a public function: its options are the command's
    view: str = ""  # what is printed of its result and its options
    event_view: str = ""  # what is printed of an event while the work goes on
    one_of: tuple[str, ...] = ()  # options of which Python may leave out all

    def run(self, values: Mapping[str, Any]) -> None:
        """Do it, and print what came out."""
        if self.one_of and not any(name in values for name in self.one_of):
            named = " or ".join(f"--{name}" for name in self.one_of)
            raise UserError(f"{named} is missing; give one, or see --help")
        events = {"on_event": lambda event: self._print(self.event_view, event, values)}
        result = self.call(**values, **events if self.event_view else {})
        if self.view:
            self._print(self.view, result, values)

    def _print(self, view: str, result: Any, values: Mapping[str, Any]) -> None:
        if values.get("json") and hasattr(result, "as_json"):
            out.show(json.dumps(result.as_json(), indent=1, ensure_ascii=False))
            return
        module, _, name = view.partition(".")
        function = getattr(import_module(f"clozelab.cli.views.{module}"), name)
        out.show(*function(result, values))


@command
def show(
    recipe: Place | None = None,
    *,
    toml: bool = False,
    data: Data = (),
    mix_temperature: MixTemperature | None = None,
    changes: RecipeOptions,
    watch: Watch,
) -> Any:
    """Show a recipe with all its settings, its parts and their parameter counts.

    With corpora, also show how often the run would read each.

    Args:
        recipe: a name or a TOML file; without it, list the recipes
        toml: print a complete recipe file
    """
    if recipe is None:
        return None
    read = changes.read(recipe, watch)
    if not data:
        return read, ()
    from clozelab.text.store.corpus import open_stores
    from clozelab.text.store.mixture import shares, tempered

    return read, shares(open_stores(tempered(data, mix_temperature)))


@command
def version() -> None:
    """Print the versions of clozelab, Python and torch, to include in a bug report."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed
    from platform import python_version

    try:
        torch = installed("torch")  # without importing it, which takes seconds
    except PackageNotFoundError:
        torch = "not installed"
    out.show(f"clozelab {clozelab.__version__}, Python {python_version()}, torch {torch}")


COMMANDS: dict[str, Command] = {
    "corpus build": Command(clozelab.build_corpus, "blocks.built"),
    "corpus add": Command(clozelab.add_to_corpus, "blocks.built"),
    "corpus show": Command(clozelab.show_corpus, "blocks.summary"),
    "corpus check": Command(clozelab.check_corpus, "blocks.checked"),
    "corpus plans": Command(clozelab.corpus_plans, "blocks.plans"),
    "vocabulary show": Command(clozelab.show_vocabulary, "vocabularies.summary"),
    "vocabulary add": Command(clozelab.add_to_vocabulary, "vocabularies.changed"),
    "vocabulary trim": Command(clozelab.trim_vocabulary, "vocabularies.changed"),
    "show": Command(show, "recipes.shown"),
    "diff": Command(clozelab.diff, "recipes.difference"),
    "mask": Command(clozelab.mask, "blocks.masks"),
    "blocks": Command(clozelab.show_blocks, "blocks.blocks"),
    "pretrain": Command(clozelab.pretrain),
    "adapt": Command(clozelab.adapt, "adaptation.adapted"),
    "distil": Command(clozelab.distil),
    "evaluate": Command(clozelab.evaluate, "tasks.measured"),
    "matrix": Command(clozelab.matrix, "scores.matrix"),
    "score": Command(clozelab.score, "scores.scores"),
    "probe": Command(clozelab.probe, "scores.probes"),
    "track": Command(clozelab.track),
    "doctor": Command(clozelab.doctor, "diagnosis.diagnosis"),
    "tasks": Command(clozelab.tasks, "tasks.known"),
    "finetune": Command(clozelab.finetune, "tasks.tuned"),
    "predict": Command(clozelab.predict, "models.predictions"),
    "answer": Command(clozelab.answer, "models.answer"),
    "study": Command(clozelab.study, "studies.study", "studies.event"),
    "merge": Command(clozelab.merge_studies, event_view="studies.event"),
    "export": Command(clozelab.export),
    "import": Command(clozelab.import_model),
    "fill": Command(clozelab.fill, "models.filled"),
    "generate": Command(clozelab.generate, "models.generated"),
    "embed": Command(clozelab.embed, "models.embedded", one_of=("out", "near")),
    "report": Command(clozelab.report),
    "serve": Command(clozelab.serve),
    "bench": Command(clozelab.bench, "bench.measured"),
    "demo": Command(demo.demo),
    "completion": Command(shell.completion),
    "version": Command(version),
}


_GROUPS = {
    "corpus": "build, show or check a corpus, add to it, or list its plans",
    "vocabulary": "show a model's vocabulary, add words to it, or trim it to a text",
}


class _Parser(argparse.ArgumentParser):
    """Answers a mistake as all of clozelab does, in one sentence, with the word that was meant."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)
        # No option begins with a digit: -5s is a value, which its option refuses in its own words.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """The arguments; what a command does not know is refused here, where its options are."""
        known, others = super().parse_known_args(args and self._spelled_out(args), namespace)
        if others:
            option = others[0].partition("=")[0]
            meant = nearest(option, self._option_string_actions) if option[0:1] == "-" else None
            hint = f"did you mean {meant}?" if meant else f"leave it out, or see {self.prog} --help"
            what = "is not an option" if option[0:1] == "-" else "is one argument too many"
            raise UserError(f"{option}: {what} of {self.prog}; {hint}")
        return known, others

    def _spelled_out(self, words: Sequence[str]) -> list[str]:
        """The words, with its own word for an option that stands alone: before a path, it does."""
        spelled = list(words)
        own = list(words[: words.index("--")] if "--" in words else words)
        for at, (word, after) in enumerate(zip(own, [*words[1:], "-"], strict=False)):
            action = self._option_string_actions.get(word)
            if action is not None and action.const and action.nargs == argparse.OPTIONAL:
                is_path = not re.fullmatch("[a-z]+", after) or Path(after).exists()
                if is_path and after not in (action.choices or ()):
                    spelled[at] = f"{word}={action.const}"
        return spelled

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        name = action.option_strings[-1] if action.option_strings else self.prog
        raise UserError(f"{name} {value}: is unknown; {remedy(value, action.choices)}")


def parser(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """The parser; it leaves the command's name in `command`, and of the options what was given."""
    words: argparse.ArgumentParser = _Parser(
        prog="clozelab",
        description="Pretrain, fine-tune, distil, score and compare the BERT family of encoders.",
        epilog="Every command takes --import MODULE, a module that registers your own parts.",
    )
    version: dict[str, Any] = {"action": "store_const", "const": "version", "dest": "command"}
    words.add_argument(
        "--version", **version, help="print the versions of clozelab, Python and torch"
    )
    verbs = words.add_subparsers(metavar="COMMAND")
    groups: dict[str, Any] = {"": verbs}
    for name, entry in commands.items():
        group, _, verb = name.rpartition(" ")
        if group not in groups:
            parent = verbs.add_parser(group, help=_GROUPS[group])
            groups[group] = parent.add_subparsers(required=True, metavar="COMMAND")
        text = summary(entry.call)
        short = text.partition("\n")[0]
        own = groups[group].add_parser(verb, help=short, description=text.replace("%", "%%"))
        own.set_defaults(command=name)
        _add(own, entry)
    return words


def _add(verb: argparse.ArgumentParser, entry: Command) -> None:
    """Every option of a command; those of a dataclass under its name."""
    groups: dict[type, Any] = {}
    for option in options(entry.call):
        if not option.typed:
            continue
        group = option.group
        if group is not None and group not in groups:
            title = re.sub("(?<=[a-z])(?=[A-Z])", " ", group.__name__).lower()
            groups[group] = verb.add_argument_group(title, " ".join((group.__doc__ or "").split()))
        names, settings = _argument(option)
        (verb if group is None else groups[group]).add_argument(*names, **settings)


def _argument(option: Option) -> tuple[list[str], dict[str, Any]]:
    """How argparse is told of an option: its value stays the words, which the function takes."""
    needed = option.default is REQUIRED
    meaning = option.help.replace("%", "%%")
    settings: dict[str, Any] = {"default": argparse.SUPPRESS, "help": meaning}
    if option.kind is bool:
        switch = "store_true" if option.default is False else argparse.BooleanOptionalAction
        return [option.flag], {**settings, "action": switch, "dest": option.name}
    if option.metavar or option.kind is int:
        settings["metavar"] = option.metavar or "N"
    if option.choices is not None:
        settings["choices"] = option.choices
    if option.bare:
        settings |= {"nargs": "?", "const": option.bare}
    if option.positional:
        settings["nargs"] = ("+" if needed else "*") if option.several else None if needed else "?"
        return [option.name], settings
    if option.several:  # None and an empty list are not the same: then the list may be empty
        empty = {"nargs": "*", "action": "extend"}
        settings |= empty if option.default is None else {"action": "append"}
    return [option.flag], {**settings, "dest": option.name, "required": needed}

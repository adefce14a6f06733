"""The words of the command line, made from the public functions: their options are its options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from clozelab.errors import UserError
from clozelab.nearest import nearest, remedy
from clozelab.options import REQUIRED, Option, options, summary

if TYPE_CHECKING:
    from clozelab.cli.commands import Command


class _Parser(argparse.ArgumentParser):
    """Answers a mistake as all of clozelab does, in one sentence, with the word that was meant."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """The arguments; what a command does not know is refused here, where its options are."""
        known, others = super().parse_known_args(args, namespace)
        if others:
            option = others[0].partition("=")[0]
            meant = nearest(option, self._option_string_actions) if option[0:1] == "-" else None
            hint = f"did you mean {meant}?" if meant else f"leave it out, or see {self.prog} --help"
            what = "is no option" if option[0:1] == "-" else "is one word too many"
            raise UserError(f"{option}: {what} of {self.prog}; {hint}")
        return known, others

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        name = action.option_strings[-1] if action.option_strings else self.prog
        raise UserError(f"{name} {value}: is unknown; {remedy(value, action.choices)}")


def parser(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """The parser; it leaves the command's name in `command`, and of the options what was given."""
    words: argparse.ArgumentParser = _Parser(
        prog="clozelab",
        description="Pretrain, fine-tune, distil and compare the BERT family of encoders.",
        epilog="Any command takes --import MODULE: a module that registers parts of your own.",
    )
    words.add_argument(
        "--version",
        dest="command",
        action="store_const",
        const="version",
        help="of clozelab, Python and torch",
    )
    verbs = words.add_subparsers(metavar="COMMAND")
    groups: dict[str, Any] = {"": verbs}
    for name, command in commands.items():
        group, _, verb = name.rpartition(" ")
        if group not in groups:
            parent = verbs.add_parser(group, help=f"build, show or check a {group}")
            groups[group] = parent.add_subparsers(required=True, metavar="COMMAND")
        text = summary(command.call)
        short = text.partition("\n")[0]
        own = groups[group].add_parser(verb, help=short, description=text.replace("%", "%%"))
        own.set_defaults(command=name)
        _add(own, command)
    return words


def _add(verb: argparse.ArgumentParser, command: Command) -> None:
    """Every option of a command; those of a dataclass under its name."""
    groups: dict[type, Any] = {}
    for option in options(command.call):
        if not option.typed:
            continue
        group = option.group
        if group is not None and group not in groups:
            title = re.sub("(?<=[a-z])(?=[A-Z])", " ", group.__name__).lower()
            groups[group] = verb.add_argument_group(title, " ".join((group.__doc__ or "").split()))
        names, settings = _argument(option, must=option.name in command.required)
        (verb if group is None else groups[group]).add_argument(*names, **settings)


def _argument(option: Option, *, must: bool) -> tuple[list[str], dict[str, Any]]:
    """How argparse is told of an option: its value stays the words, which the function takes."""
    needed = must or option.default is REQUIRED
    settings: dict[str, Any] = {
        "default": argparse.SUPPRESS,
        "help": option.help.replace("%", "%%"),
    }
    if option.kind is bool:
        switch = "store_true" if option.default is False else argparse.BooleanOptionalAction
        return [option.flag], {**settings, "action": switch, "dest": option.name}
    if option.metavar or option.kind is int:
        settings["metavar"] = option.metavar or "N"
    if option.choices is not None:
        settings["choices"] = option.choices
    if option.positional:
        settings["nargs"] = ("+" if needed else "*") if option.several else None if needed else "?"
        return [option.name], settings
    if option.several:  # None and an empty list are not the same: then the list may be empty
        settings |= {"nargs": "*"} if option.default is None else {"action": "append"}
    return [option.flag], {**settings, "dest": option.name, "required": needed}

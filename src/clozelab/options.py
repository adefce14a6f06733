"""Public functions and their options: what the Python side and the command line have in common.

`command` makes a public function of a plain one. Its options are its parameters; what each means
stands in the docstring, under Args. A parameter whose type is a dataclass stands for the fields of
that dataclass that are made by `option`: callers give the fields, the function gets the object. So
a field added there is an option of every function that takes it, and of every command.

A type may say how a value becomes one of it, as in `Annotated[int, whole]`. That is how words of a
command line become values, and how paths, runs and corpora are taken alike in Python.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, wraps
from os import PathLike, fspath
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from clozelab.errors import UserError
from clozelab.nearest import remedy

REQUIRED = inspect.Parameter.empty
_DIGITS = 18  # of a number that 64 bits hold
_MOST = 4096  # workers, or runs

T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """One option of a public function."""

    name: str  # in Python
    type: Any
    default: Any  # REQUIRED: it must be given
    help: str
    metavar: str | None = None  # what stands for its value on the command line
    positional: bool = False
    group: type | None = None  # the dataclass that it is a field of

    @property
    def flag(self) -> str:
        """The option on the command line; Python's own words have an underscore behind them."""
        return "--" + self.name.rstrip("_").replace("_", "-")

    @property
    def kind(self) -> Any:
        """Its type when there is a value."""
        return _without_none(self.type)

    @property
    def choices(self) -> tuple[str, ...] | None:
        """The words that it may be, where they are few."""
        become = _conversion(self.kind)
        return become.words if isinstance(become, OneOf) else None

    @property
    def several(self) -> bool:
        """Whether it takes a list."""
        kind = get_args(self.kind)[0] if get_origin(self.kind) is Annotated else self.kind
        return get_origin(kind) is Sequence

    @property
    def counts(self) -> bool:
        """Whether it is a whole number."""
        return self.kind is int or get_args(self.kind)[:1] == (int,)

    @property
    def typed(self) -> bool:
        """Whether it can be given in words: a function cannot."""
        return get_origin(self.kind) is not Callable

    def take(self, value: Any) -> Any:
        """The value as the function gets it; refused where it cannot be one."""
        if value is None or value is self.default:
            return value
        return _conversion(self.kind)(value, self.name if self.positional else self.flag)


def option(meaning: str, default: Any = None, *, metavar: str | None = None) -> Any:
    """A field of a dataclass that is an option of the functions which take that dataclass."""
    return field(default=default, metadata={"help": meaning, "metavar": metavar})


def command(function: Callable[..., T]) -> Callable[..., T]:
    """Make a public function: options spread out, checked and converted; mistakes as UserError."""
    groups = {
        name: function.__globals__[str(one.annotation)]
        for name, one in inspect.signature(function).parameters.items()
        if is_dataclass(function.__globals__.get(str(one.annotation)))
    }

    @wraps(function)
    def call(*given: Any, **named: Any) -> T:
        for name in named:
            if name not in signature.parameters:
                fix = remedy(name, signature.parameters)
                raise UserError(f"{function.__name__} has no option {name}; {fix}")
        try:
            values = signature.bind(*given, **named).arguments
        except TypeError as error:
            see = f"see help(clozelab.{function.__name__})"
            raise UserError(f"{function.__name__}: {error}; {see}") from None
        values = {one.name: one.take(values[one.name]) for one in read() if one.name in values}
        for name, group in groups.items():
            own = [one.name for one in fields(group) if one.name in values]
            values[name] = group(**{each: values.pop(each) for each in own})
        return function(**values)

    @cache
    def read() -> list[Option]:
        return _read(function, groups)

    signature = _spread(inspect.signature(function), groups)
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.options = read  # type: ignore[attr-defined]
    call.__doc__ = _documented(inspect.getdoc(function) or "", groups)
    return call


def options(function: Callable[..., Any]) -> list[Option]:
    """The options of a public function, in its order."""
    found: list[Option] = function.options()  # type: ignore[attr-defined]
    return found


def summary(function: Callable[..., Any]) -> str:
    """What a public function does: its docstring without Args."""
    return (inspect.getdoc(function) or "").partition("\n\nArgs:")[0]


def _spread(signature: inspect.Signature, groups: Mapping[str, Any]) -> inspect.Signature:
    """The signature with the fields of a dataclass in its place."""
    found = []
    for name, one in signature.parameters.items():
        if name not in groups:
            found.append(one)
        for each in fields(groups[name]) if name in groups else ():
            if "help" in each.metadata:
                shape = {"default": each.default, "annotation": each.type}
                found.append(inspect.Parameter(each.name, one.KEYWORD_ONLY, **shape))
    return signature.replace(parameters=found)


def _read(function: Callable[..., Any], groups: Mapping[str, Any]) -> list[Option]:
    told = _args(inspect.getdoc(function) or "")
    found = []
    for name, one in inspect.signature(function).parameters.items():
        if name in groups:
            kinds = get_type_hints(groups[name], include_extras=True)
            found += [
                Option(f.name, kinds[f.name], f.default, **f.metadata, group=groups[name])
                for f in fields(groups[name])
                if "help" in f.metadata
            ]
            continue
        kind = one.annotation
        kind = eval(kind, function.__globals__) if isinstance(kind, str) else kind
        metavar, meaning = told.get(name, (None, ""))
        positional = one.kind is one.POSITIONAL_OR_KEYWORD
        found.append(Option(name, kind, one.default, meaning, metavar, positional))
    return found


def _args(text: str) -> dict[str, tuple[str | None, str]]:
    """What a docstring says of each parameter: `name: meaning` or `name (METAVAR): meaning`."""
    section = text.partition("\nArgs:\n")[2].partition("\n\n")[0]
    lines = re.split(r"\n    (?=\S)", "\n" + section)
    found = {}
    for line in lines:
        match = re.fullmatch(r"(\w+)(?: \((.+?)\))?: (.+)", " ".join(line.split()))
        if match:
            found[match[1]] = (match[2], match[3])
    return found


def _documented(text: str, groups: Mapping[str, Any]) -> str:
    """The docstring with a line for each field that a dataclass brings."""
    lines = [
        f"    {each.name}: {each.metadata['help']}"
        for group in groups.values()
        for each in fields(group)
        if "help" in each.metadata
    ]
    if not lines:
        return text
    head = text if "\nArgs:\n" in text else f"{text}\n\nArgs:"
    return "\n".join([head, *lines])


def _without_none(kind: Any) -> Any:
    rest = [one for one in get_args(kind) if one is not NoneType]
    return rest[0] if NoneType in get_args(kind) and len(rest) == 1 else kind


def _conversion(kind: Any) -> Conversion:
    """How a value becomes one of a type."""
    if get_origin(kind) is Annotated:
        become: Conversion = kind.__metadata__[0]
        return become
    if get_origin(kind) is Literal:
        return OneOf(*get_args(kind))
    return _CONVERSIONS.get(kind, lambda value, place: value)


class OneOf:
    """One of some words."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def __call__(self, value: Any, place: str) -> str:
        """The word; others are refused."""
        if value not in self.words:
            raise UserError(f"{place} {value}: is unknown; {remedy(str(value), self.words)}")
        return str(value)


def switch(value: Any, place: str) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise UserError(f"{place} {value}: is neither True nor False")
    return value


def word(value: Any, place: str) -> str:
    """A word or a path, which is not empty."""
    if value == "":
        raise UserError(f"{place.lstrip('-')}: is empty; give it a value, or leave it out")
    return located(value, place)


def located(value: Any, place: str) -> str:
    """The path of a run, a corpus or a model; a string is taken as it is."""
    for name in ("path", "place"):
        value = getattr(value, name, value)
    if not isinstance(value, str | PathLike):
        raise UserError(f"{place}: {value!r} is neither a name, a path, a run nor a corpus")
    return str(fspath(value))


def several(value: Any, place: str) -> list[str]:
    """One or a list of them, as a list."""
    values = value if isinstance(value, list | tuple) else [value]
    return [word(one, place) for one in values]


def settings(value: Any, place: str) -> list[str]:
    """Changes as `key=value`; Python may give a dictionary."""
    if isinstance(value, Mapping):
        from clozelab.config.toml import written

        return [f"{key}={written(one)}" for key, one in value.items()]
    return several(value, place)


def number(value: Any, place: str) -> float:
    """A number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UserError(f"{place}: {value!r} is not a number") from None


def whole(value: Any, place: str) -> int:
    """A whole number from 0 up."""
    digits = str(value).replace("_", "").replace(",", "")
    if isinstance(value, bool) or not (digits.isascii() and digits.isdigit()):
        raise UserError(f"{place}: {value!r} is not a whole number from 0 up")
    if len(digits) > _DIGITS:
        raise UserError(f"{place}: {value!r} is larger than anything here")
    return int(digits)


def few(value: Any, place: str) -> int:
    """A number of things of which each costs a process, a thread or a run."""
    if whole(value, place) > _MOST:
        raise UserError(f"{place}: {value!r} is more than {_MOST:,}")
    return whole(value, place)


def model(value: Any, place: str) -> Any:
    """A model that is open already, or where it is."""
    return value if hasattr(value, "tokenizer") else word(value, place)


def text(value: Any, place: str) -> str:
    """Any text, an empty one, too."""
    if not isinstance(value, str):
        raise UserError(f"{place}: {value!r} is not a text")
    return value


def texts(value: Any, place: str) -> list[str]:
    """One text or a list of them."""
    return [text(one, place) for one in ([value] if isinstance(value, str) else value)]


Conversion = Callable[[Any, str], Any]
_CONVERSIONS: dict[Any, Conversion] = {bool: switch, str: word, float: number, int: whole}

# The types of options: what a function gets, and how a value becomes that.
Place = Annotated[str, word]
Places = Annotated[Sequence[str], several]
Settings = Annotated[Sequence[str], settings]
Few = Annotated[int, few]
Text = Annotated[str, text]
Texts = Annotated[Sequence[str], texts]
ModelLike = Annotated[Any, model]

"""Public functions and their options, shared by the Python side and the command line.

`command` makes a public function of a plain one. Its options are its parameters. A parameter whose
type is a dataclass stands for those fields of the dataclass that are made by `option`: callers give
the fields, the function gets the object. So a field added there is an option of every function that
takes it, and of every command.

The help of an option is in the docstring, under Args, or in its field, or in its type:
`Annotated[int, whole, "how many", "N"]` has the conversion of a value, the help, and the metavar
of the command line. So every function takes paths, runs and corpora in the same way, and options of
several functions are described once.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import wraps
from multiprocessing import current_process
from os import PathLike, fspath
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from clozelab.errors import UserError
from clozelab.nearest import remedy
from clozelab.remote.access import is_url, shown, without_secrets

DEBUG = "CLOZELAB_DEBUG"  # the environment variable that shows tracebacks
REQUIRED = inspect.Parameter.empty
_DIGITS = 18  # any number of so many digits fits into 64 bits
_MOST = 4096  # workers, or runs
_SHOWN = 80  # characters of a value in a message

T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """One option of a public function."""

    name: str  # in Python
    type: Any
    default: Any  # REQUIRED if it must be given
    help: str
    metavar: str | None = None  # the name of its value on the command line
    positional: bool = False
    group: type | None = None  # the dataclass whose field it is

    @property
    def flag(self) -> str:
        """The option on the command line, without the underscore after Python's keywords."""
        return "--" + self.name.rstrip("_").replace("_", "-")

    @property
    def flags(self) -> list[str]:
        """The option, and --no-… for a switch that is not off by default."""
        off = [f"--no-{self.flag[2:]}"] if self.kind is bool and self.default is not False else []
        return [self.flag, *off]

    @property
    def kind(self) -> Any:
        """Its type, without None and without annotations."""
        bare = _without_none(self.type)
        return get_args(bare)[0] if get_origin(bare) is Annotated else bare

    @property
    def choices(self) -> tuple[str, ...] | None:
        """The words that it may be, or None for any."""
        convert = self._conversion()
        return convert.words if isinstance(convert, OneOf) else None

    @property
    def bare(self) -> str | None:
        """The value of the option if it is given without one; None if it needs one."""
        convert = self._conversion()
        return convert.bare if isinstance(convert, OneOf) else None

    @property
    def several(self) -> bool:
        """Whether it takes a list."""
        return get_origin(self.kind) is Sequence

    @property
    def typed(self) -> bool:
        """Whether it can be given on the command line: a function cannot."""
        return get_origin(self.kind) is not Callable

    def take(self, value: Any) -> Any:
        """The value converted for the function, or an error; None is the default."""
        if value is self.default or (value is None and self.default is not REQUIRED):
            return self.default
        place = self.name if self.positional else self.flag
        converted = self._conversion()(value, place)
        if self.default is REQUIRED and converted == []:  # a glob that matched nothing
            raise UserError(f"{place}: is empty; give one or more")
        return converted

    def _conversion(self) -> Conversion:
        """The function that converts a value to its type."""
        for extra in _annotations(self.type):
            if callable(extra):
                conversion: Conversion = extra
                return conversion
        if get_origin(self.kind) is Literal:
            return OneOf(*get_args(self.kind))
        if get_origin(self.kind) is Callable:
            return function
        return _CONVERSIONS.get(self.kind, lambda value, place: value)


def option(meaning: str, default: Any = None, *, metavar: str | None = None) -> Any:
    """A field of a dataclass that is an option of every function that takes the dataclass."""
    return field(default=default, metadata={"help": meaning, "metavar": metavar})


def command(function: Callable[..., T]) -> Callable[..., T]:
    """Make a public function, which checks and converts its options and raises UserErrors."""
    name = function.__name__
    pairs = list(_options_of(function))
    known, parameters = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    signature = inspect.signature(function).replace(parameters=parameters)
    unnamed = [option.name for option in known if option.positional]
    keywords = [option.name for option in known if not option.positional]

    @wraps(function)
    def call(*positional: Any, **named: Any) -> T:
        _refuse_unguarded()
        for unknown in named.keys() - signature.parameters.keys():
            fix = remedy(unknown, signature.parameters)
            raise UserError(f"{name} has no option {unknown}; {fix}")
        if len(positional) > len(unnamed):
            raise UserError(_too_many(name, unnamed, keywords))
        try:
            values = signature.bind(*positional, **named).arguments
        except TypeError as error:
            raise UserError(f"{name}: {error}; see help(clozelab.{name})") from None
        values = {opt.name: opt.take(values[opt.name]) for opt in known if opt.name in values}
        for parameter, group in _groups(function).items():
            given = [field.name for field in fields(group) if field.name in values]
            values[parameter] = group(**{field: values.pop(field) for field in given})
        try:
            return function(**values)
        except UserError as error:
            error.args = (without_secrets(str(error)), *error.args[1:])
            if debugging():
                raise
            raise error.with_traceback(None) from None  # the message is enough

    call.__signature__ = signature  # type: ignore[attr-defined]
    call.options = known  # type: ignore[attr-defined]
    lines = [f"    {opt.name}: {opt.help}" for opt in known]
    call.__doc__ = "\n".join([summary(function), *["\nArgs:"] * bool(lines), *lines])
    return call


def refuse_given(unused: Mapping[str, object], why: str) -> None:
    """Refuse options, by flag, that would be ignored; one that is None was not given."""
    for flag, value in unused.items():
        if value is not None:
            raise UserError(f"{flag}: {why}; leave it out")


def debugging() -> bool:
    """Whether the user asked for tracebacks."""
    return os.environ.get(DEBUG, "0") not in ("", "0")


def _too_many(name: str, unnamed: Sequence[str], keywords: Sequence[str]) -> str:
    """What is said when too many values are given without their names."""
    takes = f"only {' and '.join(unnamed)}" if unnamed else "nothing"
    example = f", as in {keywords[0]}=…" if keywords else ""
    return f"{name}: takes {takes} without a name; name the others{example}"


def options(function: Callable[..., Any]) -> list[Option]:
    """The options of a public function, in its order."""
    known: list[Option] = function.options  # type: ignore[attr-defined]
    return known


def summary(function: Callable[..., Any]) -> str:
    """The docstring of a public function, without Args."""
    return (inspect.getdoc(function) or "").partition("\n\nArgs:")[0]


def _groups(function: Callable[..., Any]) -> dict[str, Any]:
    """The parameters that are dataclasses of options, with their types."""
    parameters = inspect.signature(function).parameters.items()
    types = {name: function.__globals__.get(str(item.annotation)) for name, item in parameters}
    return {name: kind for name, kind in types.items() if is_dataclass(kind)}


def _options_of(function: Callable[..., Any]) -> Iterator[tuple[Option, inspect.Parameter]]:
    """The options of a function, each with its parameter in the public signature."""
    groups, meanings = _groups(function), _documented_args(inspect.getdoc(function) or "")
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in groups:
            kind = parameter.annotation
            kind = eval(kind, function.__globals__) if isinstance(kind, str) else kind
            words = [extra for extra in _annotations(kind) if isinstance(extra, str)]
            shared = (words[1] if words[1:] else None, words[0] if words else "")
            metavar, meaning = meanings.get(name, shared)
            positional = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            yield Option(name, kind, parameter.default, meaning, metavar, positional), parameter
            continue
        kinds = get_type_hints(groups[name], include_extras=True)
        for item in fields(groups[name]):
            if "help" in item.metadata:
                common: dict[str, Any] = {"name": item.name, "default": item.default}
                yield (
                    Option(**common, type=kinds[item.name], **item.metadata, group=groups[name]),
                    parameter.replace(**common, annotation=item.type),
                )


def _documented_args(text: str) -> dict[str, tuple[str | None, str]]:
    """Metavar and help by parameter, from `name: meaning` or `name (METAVAR): meaning`."""
    section = text.partition("\nArgs:\n")[2].partition("\n\n")[0]
    lines = (" ".join(line.split()) for line in re.split(r"\n    (?=\S)", "\n" + section))
    matches = (re.fullmatch(r"(\w+)(?: \((.+?)\))?: (.+)", line) for line in lines)
    return {match[1]: (match[2], match[3]) for match in matches if match}


def _refuse_unguarded() -> None:
    """End a worker process that runs the user's script again, since it is not under a guard."""
    if getattr(current_process(), "_inheriting", False):  # as Python's own check does
        raise SystemExit(
            "clozelab: every process that this script starts runs the whole script again;"
            ' put its calls under if __name__ == "__main__":'
        )


def _without_none(kind: Any) -> Any:
    others = [choice for choice in get_args(kind) if choice is not NoneType]
    return others[0] if NoneType in get_args(kind) and len(others) == 1 else kind


def _annotations(kind: Any) -> tuple[Any, ...]:
    """The extras of an Annotated type."""
    bare = _without_none(kind)
    return tuple(bare.__metadata__) if get_origin(bare) is Annotated else ()


class OneOf:
    """A conversion to one of some words; `bare` is what the option alone, or True, stands for."""

    def __init__(self, *words: str, bare: str | None = None) -> None:
        self.words = words
        self.bare = bare

    def __call__(self, value: Any, place: str) -> str | None:
        """The word; other words are refused."""
        if self.bare and isinstance(value, bool):
            return self.bare if value else None
        word = str(value)  # of a torch.device, too
        if word not in self.words:
            raise UserError(f"{place} {word}: is unknown; {remedy(word, self.words)}")
        return word


def described(value: Any) -> str:
    """A value in a message: as Python writes it, or its type if that is long."""
    shown = repr(value)
    if len(shown) <= _SHOWN and shown.isprintable():
        return shown
    return f"an object of type {type(value).__name__}"


def function(value: Any, place: str) -> Any:
    """Something to call."""
    if not callable(value):
        raise UserError(f"{place}: {described(value)} cannot be called; give a function")
    return value


def switch(value: Any, place: str) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise UserError(f"{place} {value}: must be True or False")
    return value


def word(value: Any, place: str) -> str:
    """A word or a path, which is not empty."""
    if value == "":
        raise UserError(f"{place.lstrip('-')}: is empty; give it a value, or leave it out")
    return located(value, place)


def located(value: Any, place: str) -> str:
    """The path of a run, a corpus or a model; a string is returned unchanged."""
    path = value
    for name in ("place", "path"):
        path = getattr(path, name, path)
    if isinstance(path, str | PathLike):
        return str(fspath(path))
    if hasattr(value, "save_pretrained"):  # of transformers or sentence-transformers
        raise UserError(
            f"{place}: an object of type {type(value).__name__} is not a path; save it with"
            " save_pretrained, and give the folder"
        )
    raise UserError(
        f"{place}: {described(value)} is not a name, a path, a run or a corpus; give one of these"
    )


def folder(value: Any, place: str) -> str:
    """A folder on this machine."""
    name = word(value, place)
    if is_url(name):
        raise UserError(f"{place} {shown(name)}: must be a folder on this machine, not a URL")
    return name


def several(value: Any, place: str) -> list[str]:
    """One word or path, or several, as a list; an iterator will do, such as that of a glob."""
    values = value if isinstance(value, list | tuple | Iterator) else [value]
    return [word(each, place) for each in values]


def words(value: Any, place: str) -> list[str]:
    """Several words, also with commas between them."""
    return [part for each in several(value, place) for part in each.split(",") if part]


def settings(value: Any, place: str) -> list[str]:
    """Changes as `key=value`; Python may give a dictionary."""
    if isinstance(value, Mapping):
        return [_setting(key, [setting], place) for key, setting in value.items()]
    return several(value, place)


def grid(value: Any, place: str) -> list[str]:
    """Settings with several values each, `key=a,b`; Python may give a dictionary of lists."""
    if isinstance(value, Mapping):
        return [_setting(key, _listed(setting), place) for key, setting in value.items()]
    return several(value, place)


def _listed(value: Any) -> list[Any]:
    """Several values, as of a list, a range or an array, or a single one."""
    if isinstance(value, str | Mapping):
        return [value]
    try:
        return [*value]
    except TypeError:  # a number, also as an array without dimensions
        return [value]


def _setting(key: str, values: Sequence[Any], place: str) -> str:
    """A setting as it is written on the command line, with its value or several."""
    from clozelab.config.toml import written

    if any(value is None for value in values):
        raise UserError(f"{place}: {key} is None; give it a value, or leave it out")
    return f"{key}={','.join(map(written, values))}"


def columns(value: Any, place: str) -> list[str]:
    """Columns as `role=column`; Python may give a dictionary."""
    if isinstance(value, Mapping):
        return [f"{role}={column}" for role, column in value.items()]
    return several(value, place)


def budget_word(value: Any, place: str) -> str:
    """A budget, which has a unit and so is no number."""
    if isinstance(value, int | float):
        raise UserError(f"{place}: {value!r} has no unit; give one, as in '20m' or '12steps'")
    return word(value, place)


def number(value: Any, place: str) -> float:
    """A number."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{place}: {value!r} is not a number; give one") from None


def whole(value: Any, place: str) -> int:
    """A whole number from 0 up."""
    digits = str(value).replace("_", "").replace(",", "")
    if isinstance(value, bool) or not (digits.isascii() and digits.isdigit()):
        raise UserError(f"{place}: {value!r} is not a whole number of 0 or more; give one")
    if len(digits) > _DIGITS:
        raise UserError(f"{place}: {value!r} is too large; give fewer digits")
    return int(digits)


def few(value: Any, place: str) -> int:
    """A number of processes, threads or runs, which is limited."""
    if whole(value, place) > _MOST:
        raise UserError(f"{place}: {value!r} is more than {_MOST:,}; give less")
    return whole(value, place)


def model(value: Any, place: str) -> Any:
    """An opened model, or the place of one."""
    return value if hasattr(value, "tokenizer") else word(value, place)


def text(value: Any, place: str) -> str:
    """Any text, also an empty one."""
    if not isinstance(value, str):
        raise UserError(f"{place}: {described(value)} is not a text; give a string")
    return value


def texts(value: Any, place: str) -> list[str]:
    """One text or a list of them; a column of a table will do, but not a table."""
    if isinstance(value, str):
        return [value]
    is_table = isinstance(value, Mapping) or getattr(value, "ndim", 1) != 1
    if is_table or isinstance(value, bytes) or not isinstance(value, Iterable):
        raise UserError(
            f"{place}: {described(value)} is not a text or a list of texts; give one of these"
        )
    return [text(each, place) for each in value]


Conversion = Callable[[Any, str], Any]
_CONVERSIONS: dict[Any, Conversion] = {bool: switch, str: word, float: number, int: whole}

# The types of options: the type of the value, its conversion, and its help and metavar where these
# are the same for all functions.
Place = Annotated[str, word]
LocalFolder = Annotated[str, folder]
Places = Annotated[Sequence[str], several]
Words = Annotated[Sequence[str], words]
Settings = Annotated[Sequence[str], settings]
ColumnNames = Annotated[Sequence[str], columns]
Grid = Annotated[Sequence[str], grid]
Few = Annotated[int, few]
Text = Annotated[str, text]
Texts = Annotated[Sequence[str], texts]
ModelLike = Annotated[Any, model, "a run, a checkpoint, a Hugging Face directory or a hub name"]
ModelPlace = Annotated[str, word, "a run, a checkpoint, a Hugging Face directory or a hub name"]
RecipeLike = Annotated[Any, model, "a name or a TOML file"]  # or one that was read already
MixTemperature = Annotated[
    float,
    number,
    "sample corpora by size to the power of 1 / T; above 1, small corpora are read more often (1)",
    "T",
]
Data = Annotated[
    Sequence[str],
    several,
    "a corpus; several corpora are mixed by size times weight",
    "CORPUS[:WEIGHT]",
]
CopyTo = Annotated[
    str, word, "a URL to which checkpoints and results are also copied during the run", "URL"
]
Overwrite = Annotated[bool, switch, "replace the file if it exists"]

"""Parts from outside: how a package, a module or a script adds parts that recipes then name.

`register` puts a part into its slot's table, beside those of clozelab. A module that registers
parts is imported by Python, by a command's `--import MODULE`, or because an installed package names
it under the entry point group `clozelab.parts`. A record (recipe.toml, task.toml, study.toml)
lists the modules that its parts come from. A record is not trusted: what it lists is imported only
if an installed package names it, and otherwise the user is told what to give.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any, TypeVar, overload

from clozelab.errors import UserError
from clozelab.nearest import remedy

GROUP = "clozelab.parts"  # of entry points
IMPORTS = "CLOZELAB_IMPORTS"  # modules with parts of this process, for its child processes

Part = TypeVar("Part", bound=Any)

# The methods of a part of each slot.
DUTIES: dict[str, tuple[str, ...]] = {
    "tokenizer": ("train",),
    "blocks": ("plan",),
    "masking": ("hide",),
    "corruption": ("corrupt", "copy"),
    "encoder": ("build", "parameters", "resized"),
    "objectives": ("targets", "build", "parameters"),
    "optimiser": ("build",),
    "schedule": ("factor", "phase", "batch_size_at"),
    "task": ("read", "example", "tokenize", "build", "decode", "score", "suited"),
    "measure": ("__call__",),
}
# The base class of a part, by name, since contracts imports numpy.
_BASES = {
    "encoder": "contracts.EncoderPart",
    "objectives": "contracts.ObjectivePart",
    "optimiser": "training.Optimiser",
}
_WITH_NEEDS = ("tokenizer", "blocks", "masking", "encoder", "objectives", "optimiser")

_tables: dict[str, dict[str, Any]] = {}  # of each slot whose package is loaded
_own: dict[str, dict[str, Any]] = {}  # those of clozelab itself
_outside: dict[str, dict[str, tuple[Any, str]]] = {slot: {} for slot in DUTIES}  # part, module
_failures: list[str] = []  # of installed packages


@overload
def register(slot: str, name: str, part: Part) -> Part: ...
@overload
def register(slot: str, name: str) -> Callable[[Part], Part]: ...
def register(slot: str, name: str, part: Any = None) -> Any:
    """Register a part for recipes: `register("masking", "every_nth", EveryNth)`, or as a decorator.

    `slot` is a table of a recipe (tokenizer, blocks, masking, corruption, encoder, objectives,
    optimiser, schedule), or "task" for a kind of task, or "measure" for a measure of a study.
    """
    module = sys._getframe(1).f_globals.get("__name__", "__main__")

    def take(part: Any) -> Any:
        check(slot, name, part)
        _refuse_taken(slot, name, module)
        _outside[slot][name] = part, module
        if slot in _tables:
            _tables[slot][name] = part
        if module != "__main__":
            _pass_to_children(module)
        return part

    return take if part is None else take(part)


def opened(slot: str, table: dict[str, Any]) -> None:
    """Register a package's own table of parts, to which parts from outside are added."""
    _tables[slot], _own[slot] = table, dict(table)
    for name in [*_outside[slot]]:
        part, module = _outside[slot].pop(name)  # a part that is refused is not registered
        _refuse_taken(slot, name, module)
        table[name], _outside[slot][name] = part, (part, module)


def is_own(slot: str, part: Any) -> bool:
    """Whether a part is one of clozelab itself."""
    return part in _own[slot].values()


def find(slot: str, name: str) -> Any | None:
    """The part of that name, from clozelab or else from an installed package."""
    if name not in _tables[slot]:
        load_given()
    return _tables[slot].get(name)


def failures() -> str:
    """The errors of installed packages, for messages on missing parts."""
    return "".join(f" ({failure})" for failure in _failures)


def load(module: str) -> None:
    """Import a module that registers parts, because the user names it (`--import`)."""
    if module.endswith(".py") or "/" in module:
        raise UserError(
            f"--import {module}: is a file; give the module's name, as Python imports it,"
            " for instance my_package.parts"
        )
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does; a console script does not
    try:
        importlib.import_module(module)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"--import {module}: {type(error).__name__}: {error}; fix it, or install its package"
        ) from error
    _pass_to_children(module)


def require(modules: Any, place: str) -> None:
    """Load the modules that a record lists, or refuse and say what to give."""
    if not isinstance(modules, list) or not all(isinstance(module, str) for module in modules):
        raise UserError(f'{place}: imports must be a list of modules, as in ["my_package.parts"]')
    for module in modules:
        if module == "__main__":
            if not script_has_parts():
                raise UserError(
                    f"{place}: its parts were registered by a script or a notebook; register"
                    " them again first, or move them into a module and import that"
                )
        elif module not in sys.modules:
            load_given()
            if module not in sys.modules:
                raise UserError(
                    f"{place}: its parts come from module {module}, which is not loaded; if"
                    f" you trust it, give --import {module}, or import it in Python"
                    f" first{failures()}"
                )


@contextmanager
def starting_processes() -> Iterator[None]:
    """Start processes that have the parts of this one, without running the user's script again.

    Python runs it in each process, with every call that is not under `if __name__ == "__main__":`.
    This is needed only if the script itself registered parts.
    """
    script = sys.modules["__main__"]
    if not script_has_parts():
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def environment() -> dict[str, str]:
    """The environment variables by which another process has the same parts."""
    return {IMPORTS: os.environ[IMPORTS]} if os.environ.get(IMPORTS) else {}


def modules(parts: Iterable[tuple[str, str]]) -> list[str]:
    """The modules of parts given as (slot, name); clozelab's own need none."""
    homes = {_outside[slot][name][1] for slot, name in parts if name in _outside[slot]}
    return sorted(homes)


def check(slot: str, name: str, part: Any) -> None:
    """Refuse an object that does not meet the requirements of its slot."""
    if slot not in DUTIES:
        raise UserError(f"register: slot {slot} is unknown; {remedy(slot, DUTIES)}")
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UserError(f"register: name {name!r}: use small letters, digits and _")
    place = f"{slot} {name}"
    missing = [duty for duty in DUTIES[slot] if not callable(getattr(part, duty, None))]
    missing += sorted(getattr(part, "__abstractmethods__", ()))
    if missing:
        raise UserError(f"{place}: has no {missing[0]}(); a part of {slot} has it")
    if slot == "measure":
        return
    settings = getattr(part, "__dataclass_params__", None)
    if not isinstance(part, type) or settings is None or not settings.frozen:
        raise UserError(
            f"{place}: is not a frozen dataclass; write @dataclass(frozen=True) above it"
        )
    if slot == "task" and getattr(part, "name", None) != name:
        raise UserError(f"{place}: has another name; write name: ClassVar[str] = {name!r}")
    home, _, base = _BASES.get(slot, "").rpartition(".")
    if base and base not in {kind.__name__ for kind in part.__mro__}:
        raise UserError(
            f"{place}: does not inherit from clozelab.{home}.{base}, which declares what"
            f" other parts need to know; write class {part.__name__}({base})"
        )
    if slot in _WITH_NEEDS:
        for fact in ("provides", "needs"):
            if not isinstance(getattr(part, fact, None), frozenset):
                raise UserError(
                    f"{place}: does not say what it {fact}; write {fact}: ClassVar[frozenset[str]]"
                    " = frozenset() in it"
                )


def slot_of(part: Any) -> str | None:
    """The slot that a part is registered in, a class or a function."""
    for slot in DUTIES:
        outside = [other for other, _ in _outside[slot].values()]
        if part in (*outside, *_tables.get(slot, {}).values()):
            return slot
    return None


@cache
def load_given() -> None:
    """Import the modules of the parent process, and those that installed packages name."""
    from importlib.metadata import entry_points  # which takes 30 ms to import

    for module in filter(None, os.environ.get(IMPORTS, "").split(",")):
        try:
            load(module)
        except UserError as error:
            _failures.append(str(error))
    for point in entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:
            _failures.append(f"entry point {point.name}: {type(error).__name__}: {error}")


def script_has_parts() -> bool:
    """Whether the user's script or notebook has registered parts."""
    return any(home == "__main__" for table in _outside.values() for _, home in table.values())


def _refuse_taken(slot: str, name: str, module: str) -> None:
    """Refuse a taken name; a module that is run again may register its own again."""
    if name in _own.get(slot, ()):
        raise UserError(f"{slot} {name}: is a part of clozelab itself; choose another name")
    home = _outside[slot][name][1] if name in _outside[slot] else module
    if home != module:
        raise UserError(f"{slot} {name}: is registered by {home} already; choose another name")


def _pass_to_children(module: str) -> None:
    known = [name for name in os.environ.get(IMPORTS, "").split(",") if name]
    if module not in known:
        os.environ[IMPORTS] = ",".join([*known, module])

"""The house rules that a reader relies on: who imports whom, who prints, what nothing is called."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from runpy import run_path

import pytest
from support.processes import run_process

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "clozelab"
GROUND = {
    "cluster",
    "contracts",
    "course",
    "errors",
    "files",
    "interrupts",
    "kernels",
    "keys",
    "layers",
    "markdown",
    "nearest",
    "packed",
    "ranges",
    "registry",
    "remote",
    "separators",
    "statistics",
}
PARTS = {"text", "blocks", "masking", "encoder", "objectives", "training"}
BELOW = GROUND | PARTS | {"config", "runs", "data"}  # what every verb stands on
# Which rooms each may import. A room may be named down to one of its modules.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "cluster": {"errors", "interrupts", "registry", "__init__"},
    "contracts": {"errors"},
    "packed": {"contracts"},
    "course": {"errors"},
    "layers": {"contracts"},
    "keys": {"contracts"},
    "kernels": set(),
    "interrupts": {"errors"},
    "files": {"errors"},
    "markdown": set(),
    "nearest": set(),
    "ranges": {"errors"},
    "registry": {"errors", "nearest"},
    "remote": {"errors", "files"},
    "separators": {"errors"},
    "statistics": set(),
    "data": {"nearest", "errors"},
    **{part: GROUND for part in PARTS},
    "config": GROUND | PARTS,
    "runs": GROUND | PARTS | {"config", "options", "tracking", "__init__"},
    "options": {"errors", "nearest", "config.toml", "remote.access"},
    "tracking": {"errors", "nearest", "options"},
    # A model with a task is opened by the room that tuned it.
    # The methods of public objects are the public functions: they go through the package's door.
    "models": BELOW | {"finetuning.loading", "options", "__init__"},
    "text.store.corpus": GROUND | {"text", "options", "__init__"},
    "pretraining": BELOW | {"models"},
    "finetuning": BELOW | {"models"},
    "finetuning.kinds": GROUND | {"finetuning"},
    "finetuning.heads": GROUND | {"finetuning"},
    "finetuning.metrics": GROUND | {"finetuning"},
    "finetuning.files": GROUND | {"finetuning"},
    # Scores are computed of the same labelled files and by the same metrics as tuned models': of
    # fine-tuning its reading and its metrics, nothing that trains.
    "scoring": BELOW
    | {"models", "finetuning.files", "finetuning.kinds", "finetuning.metrics"}
    | {"finetuning.examples", "finetuning.request"},
    "studies": BELOW | {"models", "pretraining", "finetuning", "scoring"},
    "benching": BELOW | {"models", "pretraining"},
    "diagnosis": BELOW,
    "reporting": GROUND
    | {"text", "config", "runs.directory", "runs.record", "runs.adaptation", "studies"}
    | {"__init__"},
    # The web app shows what others compute: it opens models, scores, masks, and reads records.
    "serving": BELOW
    | {"models", "pretraining", "scoring", "studies", "reporting", "diagnosis", "options"},
    "api": BELOW
    | {"models", "pretraining", "finetuning", "scoring", "studies", "benching", "reporting"}
    | {"diagnosis", "serving", "options", "tracking"},
    "cli": BELOW
    | {"api", "options", "pretraining", "finetuning", "scoring", "studies", "reporting"}
    | {"diagnosis", "__init__"},
    "__main__": {"cli", "training"},
    "testing": GROUND | PARTS | {"config"},
    "__init__": set(),
}
FILES = sorted(SOURCE.rglob("*.py"))
BANNED = {"utils", "util", "common", "helpers", "helper", "base", "core", "misc"}


def module(file: Path) -> str:
    """A file's module below clozelab: "text.store.corpus"; the package itself is "__init__"."""
    names = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" and len(names) > 1 else names)


MODULES = {module(file): file for file in FILES}


@cache
def tree_of(file: Path) -> ast.Module:
    """What a file says, parsed once."""
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def nodes_of(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All that a file is made of, gone through once."""
    return tuple(ast.walk(tree))


@cache
def imports(tree: ast.AST) -> set[str]:
    """The modules of ours that a file imports, wherever it does; for types alone do not count."""
    types = {
        id(inner)
        for node in nodes_of(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    names = set()
    for node in nodes_of(tree):
        if id(node) in types:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    ours = {name.partition(".")[2] for name in names if name.split(".")[0] == "clozelab"}
    return {_home(name) for name in ours}


def _home(name: str) -> str:
    """The module that a dotted name is, or is in."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or "__init__"


def within(name: str, room: str) -> bool:
    """Whether a module is a room or lies in it."""
    return f"{name}.".startswith(f"{room}.")


def room(name: str) -> str:
    """The innermost room with rules that a module lies in."""
    return max((room_name for room_name in ALLOWED if within(name, room_name)), key=len)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_file_imports_only_what_its_place_allows(file: Path) -> None:
    mine = room(module(file))
    allowed = ALLOWED[mine] | {mine}
    for name in imports(tree_of(file)):
        assert any(within(name, room_name) for room_name in allowed), name


def test_parts_import_no_parts() -> None:
    """Two levels deep: kinds of tasks, masking strategies, formats, encoders and objectives."""
    for folder in ("blocks", "masking", "objectives", "encoder", "finetuning.kinds"):
        parts = set(_parts(folder))
        for name in parts:
            tree = tree_of(MODULES[name])
            assert not (imports(tree) & parts) - {name}, name


@pytest.mark.parametrize("folder", ["encoder", "objectives", "masking", "training"])
def test_no_one_asks_for_the_class_of_a_part(folder: str) -> None:
    """What others need to know of a part is a fact that it states."""
    classes = set(_classes(folder))
    for name, file in MODULES.items():
        tree = tree_of(file)
        if not within(name, folder) and any(within(imported, folder) for imported in imports(tree)):
            assert not _classes_asked_for(tree) & classes, name


@cache
def _classes_asked_for(tree: ast.AST) -> set[str]:
    """The classes that a file compares something's class with."""
    places: list[ast.AST] = []
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            places.append(node.args[1])
        elif isinstance(node, ast.Compare):
            places += [node.left, *node.comparators]
        elif isinstance(node, ast.MatchClass):
            places.append(node.cls)
    names = {ast.unparse(inner) for place in places for inner in ast.walk(place)}
    return {name.rpartition(".")[2] for name in names}


def _parts(folder: str) -> list[str]:
    """The modules whose classes a folder's own table names."""
    return list(_classes(folder).values())


def _classes(folder: str) -> dict[str, str]:
    """The classes that a folder's own table names, and the module of each."""
    tree = tree_of(MODULES[folder])
    tables = [
        node.value
        for node in nodes_of(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict)
    ]
    classes = {ast.unparse(value) for table in tables for value in table.values}
    homes = {
        alias.name: str(node.module).partition(".")[2]
        for node in nodes_of(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return {name: homes[name] for name in classes}


def test_only_the_command_line_prints() -> None:
    for file in FILES:
        if room(module(file)) in ("cli", "__main__", "api"):  # the last on standard error
            continue
        for node in nodes_of(tree_of(file)):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            assert not (called and node.func.id in ("print", "Console")), file


def test_nothing_is_called_utils() -> None:
    names = {part.removesuffix(".py") for file in FILES for part in file.relative_to(SOURCE).parts}
    assert not names & BANNED


# Names of classes that still stand for two things; none is added, and it is to be emptied.
TWICE: set[str] = set()


def _class_names(trees: Iterable[ast.AST]) -> list[str]:
    """The classes that files define, but for those whose name says that they stay in their file."""
    nodes = (node for tree in trees for node in nodes_of(tree))
    classes = (node.name for node in nodes if isinstance(node, ast.ClassDef))
    return [name for name in classes if not name.startswith("_")]


def test_a_class_name_stands_for_one_thing() -> None:
    names = Counter(_class_names(tree_of(file) for file in FILES))
    assert {name for name, count in names.items() if count > 1} <= TWICE


def test_no_bare_except_and_no_swallowed_error() -> None:
    for file in FILES:
        for node in nodes_of(tree_of(file)):
            if isinstance(node, ast.ExceptHandler):
                assert node.type is not None, f"{file}:{node.lineno}"


def test_looking_at_things_needs_no_torch() -> None:
    modules = "clozelab.cli.views.recipes, clozelab.pretraining.masks, clozelab.text.building"
    modules += ", clozelab.diagnosis.examine, clozelab.diagnosis.foreign, clozelab.serving.app"
    modules += ", clozelab.reporting.study, clozelab.studies.verdicts, clozelab.cli.views.studies"
    modules += ", clozelab.serving.overview"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    run_process([sys.executable, "-c", code], check=True, cwd=SOURCE.parent)


# Imports all of clozelab without what Windows lacks; the libraries have builds for it. Pretraining
# comes first: what it loads of fine-tuning is printed.
ELSEWHERE = """
import importlib, os, pkgutil, signal, sys
import filelock, numpy, pyarrow, rich.progress, safetensors.torch, tokenizers
import torch.distributed.checkpoint
for name in ("fcntl", "resource", "termios", "tty", "pwd", "grp"):
    sys.modules[name] = None
for home, names in {os: "fork forkpty getuid getpgid killpg mkfifo mknod sched_getaffinity setsid",
                    signal: "SIGHUP SIGKILL SIGUSR1 alarm pthread_sigmask sigwait"}.items():
    for name in names.split():
        delattr(home, name)
import clozelab, clozelab.pretraining.pretrain, clozelab.pretraining.starting
print(*(name for name in sys.modules if name.startswith("clozelab.finetuning")))
for found in pkgutil.walk_packages(clozelab.__path__, "clozelab."):
    if not found.name.startswith(("clozelab.kernels.", "clozelab.__main__")):  # Triton's, a command
        importlib.import_module(found.name)
"""


@cache
def imported_elsewhere() -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ELSEWHERE]
    return run_process(command, cwd=SOURCE.parent, capture_output=True, text=True)


def test_nothing_needs_posix_to_be_imported() -> None:
    assert imported_elsewhere().returncode == 0, imported_elsewhere().stderr


def test_pretraining_loads_no_fine_tuning() -> None:
    assert imported_elsewhere().stdout == "\n"


def test_what_a_test_interrupts_hears_it() -> None:
    """By tests/support/processes.py: in a background job a process begins deaf to SIGINT."""
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if file.name not in ("processes.py", "test_rules.py") and "signal.SIGINT" in text:
            assert "Popen(" not in text, file


def test_no_test_waits_for_a_process_without_end() -> None:
    """By tests/support/processes.py: one that runs out of time ends with all that it started."""
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        if file.name not in ("processes.py", "test_rules.py"):
            assert "subprocess.run(" not in file.read_text(encoding="utf-8"), file


def test_the_rules_can_fail() -> None:
    asks = "isinstance(x, (A, b.C | D)) or type(x) is E or F in {type(y)}"
    assert {*"ACDEF"} <= _classes_asked_for(ast.parse(asks))
    assert "Transformer" in _classes("encoder")
    deferred = "def f():\n    from clozelab.text.store import Corpus\n    import clozelab.data"
    assert imports(ast.parse(deferred)) == {"text.store", "data"}
    assert imports(ast.parse("from clozelab.config import recipe, slots")) == {
        "config.recipe",
        "config.slots",
    }
    assert (
        imports(ast.parse("if TYPE_CHECKING:\n    from clozelab.text.store import Corpus")) == set()
    )
    assert _class_names([ast.parse("class A:\n  class B: ..."), ast.parse("class _A: ...")]) == [
        *"AB"
    ]
    assert not any(within("blocks.pairs", room_name) for room_name in ALLOWED["masking"])
    assert not any(within("finetuning.predict", room_name) for room_name in ALLOWED["models"])


def test_the_drawing_of_the_rooms_is_up_to_date() -> None:
    """But for the sizes of rooms, which change with every change."""
    tool = run_path(str(ROOT / "tools" / "draw_rooms.py"))
    drawn = tool["draw"](tool["rooms"]())
    drawing = (ROOT / "docs" / "pictures" / "rooms.svg").read_text(encoding="utf-8")
    assert re.sub(r"\d+ files, [\d,]+ lines", "", drawn) == re.sub(
        r"\d+ files, [\d,]+ lines", "", drawing
    ), "run python tools/draw_rooms.py"

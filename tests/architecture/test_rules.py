"""The house rules that a reader relies on: who imports whom, who prints, what nothing is called."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "clozelab"
PARTS = {"text", "blocks", "masking", "encoder", "objectives", "training", "tasks", "interop"}
GROUND = {
    *("contracts", "keys", "packed", "layers", "kernels", "interrupts", "files", "nearest"),
    "markdown",
}
ALLOWED = {
    "contracts": set(),
    "packed": {"contracts"},
    "layers": {"contracts"},
    "keys": {"contracts"},
    "kernels": set(),
    "interrupts": {"contracts"},
    "files": {"contracts"},
    "nearest": set(),
    "markdown": set(),
    "data": {"nearest"},
    **{part: GROUND for part in PARTS},
    "interop": GROUND | {"encoder"},
    "recipe": GROUND | PARTS,
    "records": GROUND,
    "statistics": set(),
    "runs": GROUND | PARTS | {"recipe", "records", "statistics", "data"},
    "report": GROUND | {"recipe", "records", "statistics", "text", "tasks"},
    "arguments": {"contracts", "nearest"},
    "cli": GROUND | PARTS | {"recipe", "records", "runs", "report", "data", "arguments"},
    "__main__": {"cli", "training"},
    "__init__": PARTS | {"recipe", "runs", "contracts"},
}
FILES = sorted(SOURCE.rglob("*.py"))
BANNED = {"utils", "util", "common", "helpers", "helper", "base", "core", "misc"}


def unit(file: Path) -> str:
    first = file.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imports(tree: ast.AST) -> set[str]:
    """The top-level units of ours that a file imports, wherever it does."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "clozelab":
                names = [f"clozelab.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("clozelab.")}
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_file_imports_only_what_its_place_allows(file: Path) -> None:
    mine = unit(file)
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assert imports(tree) - {mine} <= ALLOWED[mine]


def test_only_the_command_line_prints() -> None:
    for file in FILES:
        if unit(file) in ("cli", "__main__"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            assert not (called and node.func.id in ("print", "Console")), file


def test_nothing_is_called_utils() -> None:
    names = {part.removesuffix(".py") for file in FILES for part in file.relative_to(SOURCE).parts}
    assert not names & BANNED


def test_no_bare_except_and_no_swallowed_error() -> None:
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ExceptHandler):
                assert node.type is not None, f"{file}:{node.lineno}"


def test_looking_at_things_needs_no_torch() -> None:
    modules = "clozelab.cli, clozelab.report.recipes, clozelab.runs.masks, clozelab.runs.corpus"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=SOURCE.parent)


# Imports all of clozelab without what Windows lacks; the libraries have builds for it.
ELSEWHERE = """
import importlib, os, pkgutil, signal, sys
import filelock, numpy, pyarrow, rich.progress, safetensors.torch, tokenizers, torch
for name in ("fcntl", "resource", "termios", "tty", "pwd", "grp"):
    sys.modules[name] = None
for home, names in {os: "fork forkpty getuid getpgid killpg mkfifo mknod sched_getaffinity setsid",
                    signal: "SIGHUP SIGKILL SIGUSR1 alarm pthread_sigmask sigwait"}.items():
    for name in names.split():
        delattr(home, name)
import clozelab
for found in pkgutil.walk_packages(clozelab.__path__, "clozelab."):
    if not found.name.startswith(("clozelab.kernels.", "clozelab.__main__")):  # Triton's, a command
        importlib.import_module(found.name)
"""


def test_nothing_needs_posix_to_be_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], cwd=SOURCE.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_what_a_test_interrupts_hears_it() -> None:
    """By tests/interrupting.py: in a background job a process begins deaf to SIGINT."""
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if file.name not in ("interrupting.py", "test_rules.py") and "signal.SIGINT" in text:
            assert "Popen(" not in text, file


def test_the_rules_can_fail() -> None:
    assert imports(ast.parse("def f():\n    from clozelab.text.store import Corpus")) == {"text"}
    assert imports(ast.parse("from clozelab import recipe, data")) == {"recipe", "data"}
    assert not ALLOWED["masking"] >= {"blocks"}

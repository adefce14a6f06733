"""Scripts that no test runs still import only what there is."""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted([*ROOT.glob("tools/**/*.py"), *ROOT.glob("benchmarks/**/*.py")])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_script_imports_is_there(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("clozelab"):
            continue
        module = import_module(str(node.module))
        for name in (alias.name for alias in node.names):
            inside = hasattr(module, "__path__") and find_spec(f"{node.module}.{name}")
            assert hasattr(module, name) or inside, f"{node.module} has no {name}"

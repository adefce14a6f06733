"""The notebooks of examples/ run, at the size of the examples in the docs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from test_docs import ROOT, desk, shortened_python

BOOKS = sorted((ROOT / "examples").glob("*.ipynb"))

__all__ = ["desk"]


@pytest.mark.parametrize("book", BOOKS, ids=lambda book: book.stem)
def test_a_notebook_runs(book: Path, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk)
    module = ModuleType("notebook")
    monkeypatch.setitem(sys.modules, "notebook", module)
    for cell in json.loads(book.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            source = shortened_python("".join(cell["source"]))
            exec(compile(source, str(book), "exec"), module.__dict__)


def test_a_notebook_is_kept_without_what_it_printed() -> None:
    assert len(BOOKS) == 3
    for book in BOOKS:
        for cell in json.loads(book.read_text(encoding="utf-8"))["cells"]:
            assert not cell.get("outputs"), book

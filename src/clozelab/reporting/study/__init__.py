"""A study's page: the question, our table beside the paper's, and what became of its claims."""

from __future__ import annotations

from pathlib import Path

from clozelab.files import write_text
from clozelab.reporting.study.cells import gathered
from clozelab.reporting.study.sections import page

__all__ = ["gathered", "page", "page_of"]


def page_of(folder: Path) -> None:
    """Write page.html and page.md into a study's folder, which may be under way."""
    made = page(gathered(folder))
    for name in ("page.html", "page.md"):
        write_text(folder / name, made.written(folder / name))

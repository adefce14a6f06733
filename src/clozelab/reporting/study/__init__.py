"""The page of a study: its question, our table beside the paper's, and the verdicts."""

from __future__ import annotations

from pathlib import Path

from clozelab.files import write_text
from clozelab.reporting.study.sections import page
from clozelab.studies import records

__all__ = ["page", "write_page"]


def write_page(folder: Path) -> None:
    """Write page.html and page.md into the folder of a study, done or under way."""
    content = page(records.read(folder))
    for name in ("page.html", "page.md"):
        write_text(folder / name, content.written(folder / name))

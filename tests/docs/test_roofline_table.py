"""The table of docs/speed.md of where a step's time goes is that of the records."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return run_path(str(ROOT / "tools" / "roofline_tables.py"))


def test_the_table_is_up_to_date(tool: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    assert tool["page"](page) == page, "run python tools/roofline_tables.py"


def test_a_page_without_its_marks_is_refused(tool: dict[str, Any]) -> None:
    with pytest.raises(SystemExit, match="no one place for <!-- roofline -->"):
        tool["page"]("a page")
    marks = "<!-- roofline -->\n<!-- end of roofline -->\n"
    with pytest.raises(SystemExit, match="no one place"):
        tool["page"](marks + marks)


def test_a_row_has_its_kernels_alone_and_their_share_of_the_peak(tool: dict[str, Any]) -> None:
    groups = {
        "copies": {"ms": 1.0, "ideal": 0.0, "gap": 1.0},
        "matrix products": {"ms": 3.0, "ideal": 2.0, "gap": 1.0},
        "feed": {"ms": 9.0, "ideal": 0.0, "gap": 9.0},
    }
    row = {"groups": groups, "work": {"flops": 2e9}, "peak_flops": 1e12}
    lines = [*tool["table"]({"tiny": row})]
    assert lines[0] == "| ms a step, ideal | tiny |"
    assert {*lines[2:]} == {
        "| copies | 1.0 |",
        "| matrix products | 3.0, 2.0 |",
        "| waiting |  |",
        "| feed | 9.0 |",
        "| all kernels | 4.0 |",
        "| their share of peak | 50 % |",
    }

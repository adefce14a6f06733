"""The experiment log of swift: its tables are those of the records."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from support.study_folders import study

from clozelab.studies import spec

ROOT = Path(__file__).parents[3]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return runpy.run_path(str(ROOT / "tools" / "swift_log.py"))


def test_the_log_is_up_to_date(log: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "swift.md").read_text(encoding="utf-8")
    assert log["page"](page, ROOT / "results") == page, "run python tools/swift_log.py"


def test_what_others_found_is_of_variants_that_there_are(log: dict[str, Any]) -> None:
    variants = {variant.name for name in log["STUDIES"] for variant in spec.read(name).variants}
    assert {*log["ELSEWHERE"]} <= variants


def test_a_row_has_the_advantage_over_the_base_and_whether_it_counts(
    log: dict[str, Any], tmp_path: Path
) -> None:
    study(tmp_path / "unfinished" / "made")
    log["STUDIES"]["made"] = ("static", ("held_out.masked_lm",))
    log["NAMES"]["held_out.masked_lm"] = "loss"
    lines = log["table"]("made", tmp_path).splitlines()
    assert "unfinished" in lines[0]
    rows = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ") for line in lines[4:]}
    assert rows["static"][3] == "2.95"
    assert rows["dynamic"][3].startswith("+0.0") and rows["dynamic"][-1] == "no"
    assert rows["single"][3].startswith("−") and rows["single"][-1] == "no"  # worse, for certain
    log["STUDIES"]["made"] = ("single", ("held_out.masked_lm",))
    variant_rows = [
        line for line in log["table"]("made", tmp_path).splitlines() if "dynamic" in line
    ]
    assert variant_rows[0].endswith("| yes |")

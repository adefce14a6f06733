"""The table of all claims: the p-value of a row is that of the test that decided it."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from clozelab.statistics import LEVEL, Estimate
from clozelab.studies.spec import Claim
from clozelab.studies.verdicts import Finding, Judgement, Verdict

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return run_path(str(ROOT / "tools" / "judge_results.py"))


@pytest.mark.parametrize(
    ("verdict", "kind", "p"),
    [
        ("equal", "better", "0.038"),
        ("confirmed", "better", "0.076"),
        ("confirmed", "equal", "0.038"),
        ("refuted", "equal", "0.076"),
    ],
)
def test_p_is_of_the_test_that_decided(
    tool: dict[str, Any], verdict: Verdict, kind: str, p: str
) -> None:
    claim = Claim("a", ("held_out.masked_lm",), "It costs nothing.", than="b", delta=0.05)
    claim = Claim(**{**vars(claim), "kind": kind})
    finding = Finding("held-out loss", "nats", True, Estimate(-0.03, 0.01, 20.0, 24))
    judgement = Judgement(claim, (finding,), (finding,), verdict, p=0.076, p_equal=0.038)
    *_, row = tool["claims_table"]([("made", judgement)])
    assert row.endswith(f"| {p} |")


def test_no_recorded_verdict_has_a_p_value_that_contradicts_it() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    decided = [row for row in rows if len(row) == 5 and row[2][0] in "✓✗="]
    assert len(decided) > 50
    assert [row for row in decided if float(row[4].strip(" <|")) > 1 - LEVEL] == []

"""What tools/judge_results.py makes of the records: the table of all claims, and the noise."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from clozelab.statistics import LEVEL, Estimate
from clozelab.studies.records import read
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


def test_noise_is_listed_by_size_if_there_is_one(
    tool: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tool["write_noise"].__globals__, "NOISE", tmp_path / "noise.toml")
    usual = read(ROOT / "results" / "albert-depth-slower")
    others = [replace(usual, plan={**usual.plan, "size": size}) for size in ("small", "2x64", None)]
    tool["write_noise"]([usual, *others])
    tables = tomllib.loads((tmp_path / "noise.toml").read_text(encoding="utf-8"))
    assert [*tables["noise_at"]] == ["6x512", "2x64"]
    (loss,) = {
        each["held_out.masked_lm"] for each in (tables["noise"], *tables["noise_at"].values())
    }
    assert 0 < loss < 0.1

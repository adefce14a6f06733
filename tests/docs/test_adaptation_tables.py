"""The tables of adapted encoders and of sentence vectors are those of the records."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return run_path(str(ROOT / "tools" / "adaptation_tables.py"))


@pytest.mark.parametrize("path", ["docs/adapt.md", "docs/sentence-vectors.md"])
def test_a_table_is_up_to_date(tool: dict[str, Any], path: str) -> None:
    page = (ROOT / path).read_text(encoding="utf-8")
    assert tool["page"](path, page) == page, "run python tools/adaptation_tables.py"


def test_a_direction_begins_with_the_model_before(tool: dict[str, Any]) -> None:
    losses = {"held_out": [[0, 3.0], [9, 2.0]], "general": [[0, 1.0], [9, 1.5]]}
    probed = [{"name": "probe of sst2, accuracy", "before": 70.0, "after": 72.0}]
    tuned = [{"name": "mr, accuracy", "before": 79.0, "after": 80.0}]
    row = {"from": "wiki", "to": "books", "kind": "plain", "losses": losses, "best_step": 9}
    rows = [{**row, "others": probed + tuned}, {**row, "kind": "replay", "others": probed}]
    assert [*tool["adaptation"]({"asked": {"replay": 0.1}, "rows": rows})] == [
        "| from, to | | new text | general text | SST-2, probe | MR |",
        "|---|---|--:|--:|--:|--:|",
        "| Wikipedia, novels | before | 3.00 | 1.00 | 70.0 | 79.0 |",
        "|  | adapted | 2.00 | 1.50 | 72.0 | 80.0 |",
        "|  | with 10 % replay | 2.00 | 1.50 | 72.0 |  |",
    ]


def test_gains_are_over_the_mean_of_the_tokens(tool: dict[str, Any]) -> None:
    kinds = {"cls": 40.0, "mean": 50.0, "simcse": 60.0, "pairs": 65.0}
    seeds = [
        {
            "sets": {kind: dict.fromkeys(tool["SETS"], at + by) for kind, at in kinds.items()},
            "means": {kind: {"all": at + by * (kind == "pairs")} for kind, at in kinds.items()},
        }
        for by in (0.0, 2.0)
    ]
    lines = [*tool["vectors"]({"seeds": seeds})]
    assert lines[3].endswith("| 51.0 | 50.0 |  |")
    assert lines[5].endswith("| 66.0 | 66.0 | +16.0 ± 1.4 |")

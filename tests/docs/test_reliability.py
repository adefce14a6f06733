"""docs/reliability.md names tests that exist, and the campaign that was recorded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("file", "test"), NAMED, ids=[test for _, test in NAMED])
def test_a_test_that_holds_a_promise_exists(file: str, test: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^def {test}\(", text, re.MULTILINE), f"{file} has no {test}"


def test_every_promise_names_a_test() -> None:
    rows = re.findall(r"^\| \*\*.*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) > 10
    assert all("`tests/" in row for row in rows)


def test_the_counts_are_those_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from campaign import record

    campaign = json.loads(record.FILE.read_text(encoding="utf-8"))
    text = PAGE.read_text(encoding="utf-8")
    assert record.page(campaign, text) == text

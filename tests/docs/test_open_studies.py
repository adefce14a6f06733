"""Every study has a record, or a line that says what it could decide here and why it waits."""

from __future__ import annotations

import tomllib
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from clozelab.studies import spec
from clozelab.studies.power import claim_powers

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return run_path(str(ROOT / "tools" / "open_studies.py"))


def test_the_table_is_up_to_date(tool: dict[str, Any]) -> None:
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    assert tool["page"](page) == page, "run python tools/open_studies.py"


def test_every_study_has_a_record_or_a_line(tool: dict[str, Any]) -> None:
    files = [*RESULTS.glob("*/study.toml"), *RESULTS.glob("unfinished/*/study.toml")]
    recorded = {tomllib.loads(file.read_text(encoding="utf-8"))["name"] for file in files}
    listed = [entry.name for entry in tool["entries"]()]
    assert {*spec.names()} - recorded == {*listed}
    assert len({*listed}) == len(listed)


def test_what_is_called_queued_is_in_the_queue_or_to_be_measured(tool: dict[str, Any]) -> None:
    queue = tomllib.loads((RESULTS / "queue.toml").read_text(encoding="utf-8"))["studies"]
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    listed = page.partition("## To measure")[2].partition("## Studies without a record")[0]
    studies = {study.get("study", study["name"]) for study in queue}
    for entry in tool["entries"]():
        if entry.verdict.startswith("queued"):
            assert entry.name in studies or entry.name in listed, entry.name
        else:
            assert entry.name not in studies, entry.name


def test_twice_the_tokens_take_twice_the_minutes_and_shared_pretraining_counts_once(
    tool: dict[str, Any],
) -> None:
    entry = tool["Entry"]("cls", "", seeds=2, size="mini", million_tokens=80.0)
    double = tool["Entry"]("cls", "", seeds=2, size="mini", million_tokens=160.0)
    study = entry.study()
    assert double.minutes(study) == pytest.approx(2 * entry.minutes(study))
    shared = tool["Entry"]("tuning-restarts", "", seeds=1, size="mini", seconds=600.0)
    tunings = 3 * 3 * 5 * tool["TUNING_SECONDS"]  # protocols, tasks, tunings
    assert shared.minutes(shared.study()) == pytest.approx((600 + tunings) / 60)


def test_tasks_without_training_data_are_left_out(tool: dict[str, Any]) -> None:
    entry = tool["Entry"]("masked-or-replaced", "", seeds=8, size="6x512")
    assert tool["measures"](entry.study()) == ["mnli", "frozen probes"]


def test_claims_of_unknown_power_do_not_count(tool: dict[str, Any]) -> None:
    powers = claim_powers(tool["Entry"]("adam", "", seeds=8, size="mini").study())
    known = [one.at_effect for one in powers if one.at_effect is not None]
    assert 0 < len(known) < len(powers)
    assert tool["with_power"](powers).startswith(f"{sum(p >= 0.5 for p in known)} of {len(powers)}")
    unknown = [one for one in powers if one.at_effect is None]
    assert tool["with_power"](unknown) == f"0 of {len(unknown)}"

"""The pictures of claims: their A/A pairs, on the measures of claims, and what their axes say."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from support.study_folders import SCORES, TEXT, study

from clozelab.runs.directory import STUDY
from clozelab.studies.records import read
from clozelab.studies.verdicts import advantage, judge

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
TWICE = '[[variants]]\nname = "twice"\nsays = "A/A"\nagain = "static"\n'


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    return run_path(str(ROOT / "tools" / "chance.py"))


def test_a_pair_is_compared_as_two_sides_of_a_claim_are(
    tool: dict[str, Any], tmp_path: Path
) -> None:
    scores = {**SCORES, "twice": SCORES["dynamic"]}
    text = TEXT.replace("[[claims]]", f"{TWICE}[[claims]]", 1)
    records = [
        read(study(tmp_path / "pair", scores=scores, text=text)),
        read(study(tmp_path / "no")),
    ]
    pairs = tool["differences"](records, {"sst2.accuracy", "held_out.masked_lm", "pairs.blimp"})
    assert [(pair.study, pair.says.rpartition(", ")[2], pair.unit) for pair in pairs] == [
        ("pair", "sst2 accuracy", "points"),
        ("pair", "held-out masked-LM loss", "nats"),
    ]
    for pair, measure in zip(pairs, ("sst2.accuracy", "held_out.masked_lm"), strict=True):
        assert pair.estimate == advantage(records[0], "twice", "static", measure)
        assert pair.estimate.value > 0 and not pair.estimate.paired


@pytest.mark.parametrize("name", ["claims.svg", "holds.svg"])
def test_each_picture_has_the_pairs_of_its_measures(tool: dict[str, Any], name: str) -> None:
    records = [read(file.parent) for file in sorted(RESULTS.glob(f"*/{STUDY}"))]
    if name == "claims.svg":
        on = {one for record in records for judged in judge(record) for one in judged.claim.on}
    else:
        rows = tomllib.loads((RESULTS / "holds.toml").read_text(encoding="utf-8"))["rows"]
        on = {measure for row in rows for measure in row["claim"][2:]}
        named = {row["study"] for row in rows}
        records = [record for record in records if record.folder.name in named]
    pairs = tool["differences"](records, on)
    assert {pair.unit for pair in pairs} == {"points", "nats"}
    drawing = (RESULTS / name).read_text(encoding="utf-8")
    assert "<!-- chance alone: the same recipe, other seeds (A/A) -->" in drawing
    for pair in pairs:  # the text of a label is a comment before its shapes
        label = pair.says if name == "holds.svg" else f"{pair.study}: {pair.says}"
        assert drawing.count(f"<!-- {label} -->") == 1
    assert drawing.count("the same recipe again (A/A)") == len(pairs)


@pytest.mark.parametrize("unit", ["points", "nats"])
def test_an_axis_says_from_where_on_it_is_logarithmic(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    for name in ("matplotlib", "matplotlib.axes", "plotting"):  # which a test machine may lack
        monkeypatch.setitem(sys.modules, name, MagicMock())
    tool, axis = run_path(str(ROOT / "tools" / "claims_picture.py")), MagicMock()
    estimate = SimpleNamespace(low=-1.0, value=0.5, high=2.0)
    tool["draw"](axis, unit, [tool["Row"]("a claim", estimate, "confirmed")])
    linear = axis.set_xscale.call_args.kwargs["linthresh"]
    (label,) = axis.set_xlabel.call_args.args
    assert label == f"advantage, {unit} (logarithmic beyond ±{linear})"

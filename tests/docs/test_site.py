"""Pages that are made of recipes and records are up to date, and the site has all pages."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from support.processes import run_process

from clozelab.config import recipe as recipes

ROOT = Path(__file__).parents[2]
NAV = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]


def tool(name: str) -> dict[str, Any]:
    return run_path(str(ROOT / "tools" / f"{name}.py"))


def test_the_papers_pages_are_up_to_date() -> None:
    pages: dict[str, str] = tool("paper_pages")["pages"]()
    folder = ROOT / "docs" / "papers"
    committed = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()}
    stale = sorted(name for name in {*pages, *committed} if pages.get(name) != committed.get(name))
    assert stale == [], "run python tools/paper_pages.py"
    assert all(len(text) < 16_000 for text in pages.values())


def test_every_record_of_a_paper_s_study_is_on_a_page() -> None:
    papers = tool("paper_pages")
    shown = {study for name in recipes.names() for study in papers["studies"](name)}
    of_no_paper = {"calibration-tuned", "calibration-untuned"}
    assert {*papers["recorded"]()} - shown == of_no_paper


def test_what_it_costs_is_up_to_date_and_goes_by_the_price() -> None:
    costs = tool("costs_page")
    page = (ROOT / "docs" / "costs.md").read_text(encoding="utf-8")
    assert page == costs["page"](), "run python tools/costs_page.py"
    # 357 seconds at four dollars an hour, and at eight.
    assert "| 6.0 | 0.40 | `swift" in page and "| 6.0 | 0.79 | `swift" in costs["page"](8.0)


def test_shared_pretraining_costs_once() -> None:
    cell = {"variant": "a", "seconds": 60.0, "tuning_seconds": 5.0}
    cells = [cell, {**cell, "pretrained_by": "a"}, {**cell, "variant": "b", "pretrained_by": "a"}]
    assert [tool("costs_page")["_seconds"](one) for one in cells] == [65.0, 65.0, 5.0]


def test_the_list_for_language_models_is_up_to_date() -> None:
    committed = (ROOT / "llms.txt").read_text(encoding="utf-8")
    assert committed == tool("llms_txt")["text"](), "run python tools/llms_txt.py"


def test_every_recipe_and_guide_is_in_the_navigation() -> None:
    named = set(re.findall(r"(\S+\.md)$", NAV, re.MULTILINE))
    for name in recipes.names():
        assert f"docs/papers/{name}.md" in named, name
    for page in (ROOT / "docs").rglob("*.md"):
        place = str(page.relative_to(ROOT))
        assert place in named or "decisions" in place, f"{place}: name it in mkdocs.yml"
    for notebook in (ROOT / "examples").glob("*.ipynb"):
        assert f"examples/{notebook.stem}.md" in named, notebook


def test_every_idea_is_of_a_recipe() -> None:
    assert set(tool("paper_pages")["ENTRIES"]) <= set(recipes.names())


@pytest.mark.slow
@pytest.mark.skipif(find_spec("material") is None, reason="needs the extra docs")
def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    tool("site_source")["main"]()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = run_process(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "docs" / "papers" / "bert.html").exists()

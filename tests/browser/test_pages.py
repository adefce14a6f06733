"""The pages in a real browser: they sort, follow light and dark, print, and ask for nothing."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser.chromium import PROGRAM, Chromium
from support.study_folders import SCORES, study

from clozelab.reporting.page import page as page_of_runs
from clozelab.reporting.records import gather
from clozelab.reporting.study import page
from clozelab.studies.records import read as read_study

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no chromium on this machine")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    opened = Chromium(tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A study's page, that of one under way, and one about runs."""
    folder = tmp_path_factory.mktemp("pages")
    part = {**SCORES, "dynamic": [SCORES["dynamic"][0], None, None], "single": [None] * 3}
    whole = study(folder / "whole")
    begun = study(folder / "begun", scores=part, failed={("single", 0): "gave up"})
    pages = {
        "study": page(read_study(whole)),
        "begun": page(read_study(begun)),
        "runs": page_of_runs(*gather([whole / "cells/static"]), title="Runs"),
    }
    for name, each_page in pages.items():
        (folder / f"{name}.html").write_text(each_page.html(), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in pages}


@pytest.fixture
def page_shown(browser: Chromium, places: dict[str, Path]) -> Chromium:
    """The study's page as it is first seen."""
    browser.size(1000, 800)
    browser.emulate()
    browser.open(places["study"])
    return browser


def column(browser: Chromium, table: int, at: int) -> Any:
    cells = f"[...document.querySelectorAll('table')[{table}].tBodies[0].rows]"
    return browser.ask(f"{cells}.map((row) => row.cells[{at}].textContent)")


def head(table: int, at: int) -> str:
    return f"document.querySelectorAll('table')[{table}].tHead.rows[0].cells[{at}]"


@pytest.mark.parametrize("name", ["study", "begun", "runs"])
def test_a_page_logs_nothing_and_asks_for_nothing(
    name: str, browser: Chromium, places: dict[str, Path]
) -> None:
    browser.open(places[name])
    assert browser.ask("document.querySelectorAll('h2').length") > 2
    assert browser.logged() == []
    assert browser.requests() == [places[name].as_uri()]


def test_the_listener_hears_what_goes_wrong(browser: Chromium, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text("<img src='http://localhost:9/x.png'><script>nothing.there</script>")
    browser.open(page)
    assert any(event["method"] == "Runtime.exceptionThrown" for event in browser.logged())
    assert "http://localhost:9/x.png" in browser.requests()


def test_a_click_sorts_by_number_and_another_turns_it_round(page_shown: Chromium) -> None:
    assert column(page_shown, 0, 0) == ["static", "dynamic", "single"]
    page_shown.click(head(0, 2))
    assert column(page_shown, 0, 0) == ["single", "static", "dynamic"]
    assert page_shown.ask(f"{head(0, 2)}.getAttribute('aria-sort')") == "ascending"
    page_shown.click(head(0, 2))
    assert column(page_shown, 0, 0) == ["dynamic", "static", "single"]
    assert page_shown.ask(f"{head(0, 2)}.getAttribute('aria-sort')") == "descending"


def test_gaps_stay_at_the_end(page_shown: Chromium) -> None:
    page_shown.click(head(0, 3))
    assert column(page_shown, 0, 3) == ["92.5", "92.9", "–"]
    page_shown.click(head(0, 3))
    assert column(page_shown, 0, 3) == ["92.9", "92.5", "–"]


def test_words_are_sorted_as_words_and_the_keyboard_will_do(page_shown: Chromium) -> None:
    page_shown.ask(f"{head(0, 0)}.focus()")
    page_shown.press("Enter")
    assert column(page_shown, 0, 0) == ["dynamic", "single", "static"]
    assert column(page_shown, 1, 0) == ["static", "dynamic", "single"]  # another table stays


@pytest.mark.parametrize(("scheme", "media", "dark"), [
    ("light", "", False), ("dark", "", True), ("dark", "print", False),
])  # fmt: skip
def test_light_and_dark_follow_the_reader_and_paper_is_white(
    scheme: str, media: str, dark: bool, page_shown: Chromium
) -> None:
    page_shown.emulate(scheme=scheme, media=media)
    style = "getComputedStyle(document.body)"
    paper, ink = (page_shown.ask(f"{style}.{name}") for name in ("backgroundColor", "color"))
    light = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (paper, ink)]
    assert (light[0] < 120 and light[1] > 600) if dark else (light[0] == 765 and light[1] < 120)


@pytest.mark.parametrize("name", ["study", "begun", "runs"])
@pytest.mark.parametrize("width", [360, 1000])
def test_only_tables_and_figures_scroll_sideways(
    name: str, width: int, browser: Chromium, places: dict[str, Path]
) -> None:
    browser.emulate()
    browser.size(width, 800)
    browser.open(places[name])
    widths = browser.ask("[document.documentElement.scrollWidth, window.innerWidth]")
    assert widths[0] <= widths[1]


def test_a_figure_draws_within_itself_and_its_lines_show(page_shown: Chromium) -> None:
    outside = page_shown.ask("""
        [...document.querySelectorAll('figure > svg, .plot > svg')].map((svg) => {
          const all = svg.getBoundingClientRect();
          const clipped = 'clipPath, clipPath *, g[clip-path], g[clip-path] *';
          return [...svg.querySelectorAll(`:not(title, ${clipped})`)].filter((one) => {
            const box = one.getBoundingClientRect();
            return box.left < all.left - 2 || box.right > all.right + 2
              || box.top < all.top - 2 || box.bottom > all.bottom + 2;
          }).length;
        })
    """)
    assert len(outside) == 5 and not any(outside)
    strokes = page_shown.ask("""
        [...document.querySelectorAll('path.line')].map((one) => getComputedStyle(one).stroke)
    """)
    assert len({*strokes}) == 3 and "none" not in strokes


def test_the_page_prints_on_a_few_leaves(page_shown: Chromium) -> None:
    page_shown.emulate(scheme="dark")
    printed = page_shown.printed()
    streams = [printed, *_unpacked(printed)]
    leaves = max(len(re.findall(rb"/Type\s*/Page\b", stream)) for stream in streams)
    assert printed.startswith(b"%PDF") and 2 <= leaves <= 6


def test_a_page_that_is_followed_loads_itself(browser: Chromium, tmp_path: Path) -> None:
    empty_page, place = page(read_study(study(tmp_path / "s", scores={}))), tmp_path / "p.html"
    place.write_text(empty_page.html(refresh=1), encoding="utf-8")
    browser.open(place)
    place.write_text(empty_page.html().replace("<h1>", "<h1>Now: "), encoding="utf-8")
    browser.wait("document.querySelector('h1')?.textContent.startsWith('Now: ')")
    assert browser.ask("document.querySelector('meta[http-equiv]') === null")


def _unpacked(pdf: bytes) -> Iterator[bytes]:
    for packed in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL):
        try:
            yield zlib.decompress(packed)
        except zlib.error:
            continue

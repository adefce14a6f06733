"""The pictures of README and docs in a real browser: one file, for light and for dark readers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser.chromium import PROGRAM, Chromium

from clozelab.reporting.figures import Line, as_file, curves
from clozelab.reporting.palette import DARK, LIGHT, themed

ROOT = Path(__file__).parents[2]
PICTURES = sorted({
    (place.parent / name).resolve()
    for place in (ROOT / "README.md", *ROOT.glob("docs/*.md"))
    for name in re.findall(r"!\[[^]]*\]\(([^)]+\.svg)\)", place.read_text(encoding="utf-8"))
})  # fmt: skip
BUTTONS = {"#ff5f57", "#febc2e", "#28c840"}  # of the window that a terminal is drawn in

needs_browser = pytest.mark.skipif(PROGRAM is None, reason="there is no chromium on this machine")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    opened = Chromium(tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()


def test_the_pictures_are_known() -> None:
    names = {place.name for place in PICTURES}
    assert {"masks.svg", "speed.svg", "holds.svg"} <= names and len(names) > 6


@pytest.mark.parametrize("place", PICTURES, ids=lambda place: place.name)
def test_colours_are_those_of_pages(place: Path) -> None:
    text = re.sub(r"<style>@media.*?</style>", "", place.read_text(encoding="utf-8"), flags=re.S)
    text = re.sub(r"@media.*?\}\s*\}", "", text, flags=re.S)
    colours = {*re.findall(r"(?:fill|stroke)(?:: |=\")(#\w{3,6})", text)} - BUTTONS
    strangers = colours - {*LIGHT.values()}
    assert len(colours) > 2 and len(strangers) <= (
        place.name == "masks.svg"
    )  # what is dim is mixed


@needs_browser
@pytest.mark.parametrize("place", PICTURES, ids=lambda place: place.name)
def test_a_picture_follows_the_reader(place: Path, browser: Chromium) -> None:
    shades = {}
    for scheme in ("light", "dark"):
        browser.emulate(scheme=scheme)
        browser.open(place)
        fills = browser.ask("""
            [...document.querySelectorAll('*')].map((one) => getComputedStyle(one).fill)
        """)
        shades[scheme] = {*fills}
    rgb = {
        name: tuple(f"rgb{tuple(int(colours[name][at : at + 2], 16) for at in (1, 3, 5))}"
                    for colours in (LIGHT, DARK))
        for name in ("ink", "paper", "panel")
    }  # fmt: skip
    light, dark = rgb["ink"]
    assert light in shades["light"] and dark in shades["dark"] and light not in shades["dark"]
    paper = "panel" if place.name == "masks.svg" else "paper"
    light, dark = rgb[paper]
    assert light in shades["light"] and dark in shades["dark"] and light not in shades["dark"]
    assert browser.requests() == [place.as_uri()] and browser.logged() == []


def test_only_what_is_drawn_has_a_rule() -> None:
    drawn = themed(f'<svg><path fill="{LIGHT["ink"]}" style="stroke: {LIGHT["s0"]}"/></svg>')
    assert DARK["ink"] in drawn and DARK["s0"] in drawn and DARK["s1"] not in drawn
    assert drawn.count(LIGHT["ink"]) == 3 and drawn.startswith("<svg><style>")


@needs_browser
def test_a_figure_as_a_file_has_both_colours(browser: Chromium, tmp_path: Path) -> None:
    place = tmp_path / "figure.svg"
    line = Line("a", [(1.0, 2.0), (2.0, 1.0)], 0)
    place.write_text(as_file(curves([line], across="layer", up="score")), encoding="utf-8")
    fills = []
    for scheme in ("light", "dark"):
        browser.emulate(scheme=scheme)
        browser.open(place)
        fills.append(browser.ask("getComputedStyle(document.querySelector('rect')).fill"))
    assert fills == ["rgb(255, 255, 255)", "rgb(23, 25, 28)"]

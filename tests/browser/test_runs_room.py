"""The overview of runs in a real browser: it keeps up with the folders, sorts, shows figures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from browser.chromium import PROGRAM, Chromium
from browser.test_figures import EVIL, make_run
from support.study_folders import SCORES, study

from clozelab import reporting, serving
from clozelab.reporting import palette
from clozelab.runs.directory import Run
from clozelab.serving.overview import overview

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no chromium on this machine")

STATIC = [Path(room.__path__[0]) / "static" for room in (serving, reporting)]
PAGE = f"""<!doctype html><html lang="en"><head><title>Runs</title><link rel="icon" href="data:,">
<meta name="viewport" content="width=device-width"><style>{palette.css()}
.wide {{ overflow-x: auto; }}</style></head><body><main id="room"></main><script type="module">
import {{ mountRuns }} from "/static/runs.js";
const fetchJson = (path) => fetch(path).then((answer) => answer.json());
window.leave = mountRuns(document.getElementById("room"), fetchJson);</script></body></html>"""
TYPES = {".js": "text/javascript", ".css": "text/css"}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    opened = Chromium(tmp_path_factory.mktemp("chromium"))
    opened.do("Accessibility.enable")
    yield opened
    opened.close()


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Two runs, one of them under way, and a study that is half done."""
    runs = [
        make_run(tmp_path, "low", recipe="roberta", loss=2.0, data="books:1"),
        make_run(tmp_path, "high", recipe="bert", loss=3.0, data="books:1"),
    ]
    (runs[1] / "result.json").unlink()
    lines = (runs[1] / "metrics.jsonl").read_text().splitlines(keepends=True)
    (runs[1] / "metrics.jsonl").write_text("".join(lines[:55]))
    part = {**SCORES, "single": [None] * 3}
    return [*runs, study(tmp_path / "study", scores=part, failed={("single", 0): EVIL})]


@pytest.fixture
def address(folders: list[Path]) -> Iterator[str]:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body, kind = PAGE.encode(), "text/html"
            if self.path == "/api/runs":
                body, kind = json.dumps(overview(folders)).encode(), "application/json"
            elif self.path.startswith("/static/"):
                name = Path(self.path).name
                file = next(place / name for place in STATIC if (place / name).is_file())
                body, kind = file.read_bytes(), TYPES[file.suffix]
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *values: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def page_shown(browser: Chromium, address: str) -> Iterator[Chromium]:
    browser.size(1200, 900)
    browser.emulate()
    browser.visit(address)
    browser.wait("document.querySelectorAll('.plot > svg path.line').length > 5")
    yield browser
    assert browser.logged() == []
    assert all(url.startswith((address, "data:")) for url in browser.requests())


RUNS = "document.querySelector('table[aria-label=runs]')"


def rows(browser: Chromium) -> list[list[str]]:
    cells = "[...row.cells].map((cell) => cell.innerText.trim())"
    row_texts = browser.ask(f"[...{RUNS}.tBodies[0].rows].map((row) => {cells})")
    return [[str(cell) for cell in row] for row in row_texts]


def test_runs_are_shown_as_they_are(page_shown: Chromium) -> None:
    low, high = rows(page_shown)
    assert low[:4] == ["low", "finished", "roberta", "100 of 100"]
    assert high[:4] == ["high", "running", "bert", "50 of 100"]
    heads = page_shown.ask(f"[...{RUNS}.tHead.rows[0].cells].map((one) => one.innerText)")
    assert high[heads.index("left")] == "3 min" and low[heads.index("left")] == "–"
    assert low[heads.index("masked lm loss")] == "2.050"
    assert page_shown.ask("document.querySelector('.lead').innerText").startswith(
        "1 running, 1 stopped"
    )


def test_numbers_are_short_and_stay_on_one_line(page_shown: Chromium) -> None:
    page_shown.size(700, 900)
    assert [row[4] for row in rows(page_shown)] == ["1.0 M", "500.0 k"]
    lines = (
        f"[...{RUNS}.tBodies[0].querySelectorAll('td.n')].every((cell) => {{ const all ="
        " document.createRange(); all.selectNodeContents(cell);"
        " return new Set([...all.getClientRects()].map((one) => one.top)).size < 2; })"
    )
    assert page_shown.ask(lines)


def test_it_says_that_it_waits(browser: Chromium, address: str) -> None:
    browser.visit(address)
    browser.ask(
        "import('/static/runs.js').then(({ mountRuns }) => { const room ="
        " document.createElement('div'); room.id = 'waiting'; document.body.append(room);"
        " mountRuns(room, () => new Promise(() => {})); })"
    )
    browser.wait("document.querySelector('#waiting .lead')?.innerText === 'Reading the runs…'")


@pytest.mark.slow
def test_it_keeps_up_and_keeps_the_zoom(page_shown: Chromium, folders: list[Path]) -> None:
    page_shown.click(f"{RUNS}.tHead.rows[0].cells[3]")  # by step
    assert [row[0] for row in rows(page_shown)] == ["high", "low"]
    figure = "[...document.querySelectorAll('figure')].at(-1)"
    page_shown.drag(f"{figure}.querySelector('.plot > svg')", 0.5, 0.8)
    assert page_shown.ask(f"{figure}.querySelector('.tools button').hidden") is False
    step = {"loss": 2.5}
    Run(folders[1]).append({"kind": "step", "step": 51, "masked_lm": step, "tokens": 10_000,
                            "seconds": 3.0, "tokens_a_second": 1.0})  # fmt: skip
    page_shown.wait(f"{RUNS}.innerText.includes('51 of 100')")
    assert [row[0] for row in rows(page_shown)] == ["high", "low"]
    assert page_shown.ask(f"{figure}.querySelector('.tools button').hidden") is False
    shutil.rmtree(folders[0])
    page_shown.wait(f"{RUNS}.innerText.includes('the folder is gone')")
    assert page_shown.ask("document.querySelectorAll('.plot > svg').length") > 3


def test_a_run_can_be_hidden_in_all_figures(page_shown: Chromium) -> None:
    lines = "[...document.querySelectorAll('.legend button')].map((one) => one.innerText)"
    before = page_shown.ask(lines).count("high")
    assert before >= 4
    page_shown.click("document.querySelector('input[data-run=high]')")
    assert page_shown.ask(lines).count("high") == 0
    assert page_shown.ask("document.activeElement.dataset.run") == "high"
    page_shown.click("document.querySelector('input[data-run=high]')")
    assert page_shown.ask(lines).count("high") == before


def test_a_study_fills_cell_by_cell(page_shown: Chromium) -> None:
    cells = "[...document.querySelector('.cells').tBodies[0].rows].map((row) => row.innerText)"
    states = [row.split() for row in page_shown.ask(cells)]
    assert states[0][:4] == ["static", "done", "done", "done"]
    assert states[2][:4] == ["single", "failed", "waiting", "waiting"]
    heading = page_shown.ask("document.querySelector('.study h3').innerText")
    assert heading.startswith("study: ")
    assert "6 of 9 cells are done, 1 failed" in page_shown.ask(
        "document.querySelector('.far').innerText"
    )
    assert page_shown.ask("document.querySelector('.cells td[title]').title") == EVIL
    assert page_shown.ask("document.querySelector('main img')") is None


def test_everything_has_a_name_and_a_telephone_will_do(page_shown: Chromium) -> None:
    named = page_shown.named()
    controls = ("button", "combobox", "slider", "checkbox", "progressbar", "application")
    assert all(name for role, name in named if role in controls)
    assert ("checkbox", "show high in the figures") in named
    assert ("columnheader", "state") in named
    page_shown.size(360, 740)
    page_shown.wait("document.querySelector('.plot > svg').clientWidth < 360")
    assert page_shown.ask("document.documentElement.scrollWidth <= window.innerWidth")


def test_who_leaves_the_room_asks_no_more(page_shown: Chromium) -> None:
    page_shown.ask("window.asked = 0; window.plain = window.fetch")
    page_shown.ask(
        "window.fetch = (...words) => { window.asked += 1; return window.plain(...words); }"
    )
    page_shown.ask("document.dispatchEvent(new Event('visibilitychange'))")
    page_shown.wait("window.asked === 1")
    page_shown.ask("window.leave()")
    page_shown.ask("document.dispatchEvent(new Event('visibilitychange'))")
    assert page_shown.ask("window.asked") == 1

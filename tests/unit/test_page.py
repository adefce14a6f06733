"""The page about runs: whole, self-contained, and true to the records."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from clozelab import recipe as recipes
from clozelab.cli import main
from clozelab.contracts import UserError
from clozelab.records import PLAN, Run
from clozelab.report.figures import Line, Row, curves, dots
from clozelab.report.gathering import gather
from clozelab.report.page import html, markdown

EMPTY = {"meta", "br", "hr", "img", "input", "link"}


class Reader(HTMLParser):
    """Refuses what is not closed, and keeps the cells of tables and what is linked to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.links += [str(v) for name, v in attributes if name in ("src", "href")]
        if tag in ("td", "th"):
            self.cells.append("")
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert not reader.open
    return reader


def pretraining(folder: Path, name: str, *, recipe: str = "bert", thinned: bool = False) -> Path:
    made = recipes.read(recipe, size="tiny", overrides=["schedule.steps=40", "schedule.warmup=2"])
    facts = {"seed": 3, "data": ["corpus:1"], "torch": "2"}
    run = Run.create(folder / name, recipe_toml=recipes.to_toml(made), machine=facts)
    for step in range(1, 41, 4 if thinned else 1):
        loss = {"loss": 9 - step / 10}
        run.append({"kind": "step", "step": step, "masked_lm": loss, "tokens": 100, "seconds": 0.5})
    run.append({"kind": "held_out", "step": 40, "masked_lm": {"loss": 5.125}})
    run.write_result({"steps": 40, "tokens": 4000, "seconds": 20.0})
    return folder / name


def tuning(folder: Path, name: str, *, fresh: bool) -> Path:
    place = folder / name
    scores = {"0": {"accuracy": 80.0}, "1": {"accuracy": 90.0}}
    spread = {"best": 90.0, "median": 85.0, "mean": 85.0, "runs": 2, "low": 21.5, "high": 148.5}
    cell = {"name": "", "settings": {}, "selected": spread, "seeds": scores}
    result = {"task": "sst2", "best": "seed-1", "selected": 90.0}
    result["cells"] = [{**cell, "scores": {"accuracy": spread}}]
    for seed in (0, 1):
        made = recipes.read("bert", size="tiny")
        text = recipes.to_toml(made)
        run = Run.create(place / f"seed-{seed}", recipe_toml=text, machine={"seed": seed})
        run.write_result({"seconds": 60.0})
    Run(place).write_result(result)
    plan = {"model": "runs/a", "fresh": fresh, "tuning": {"rate": 2e-5}}
    (place / PLAN).write_text(json.dumps(plan))
    return place


def test_the_page_is_whole_and_links_to_nothing(tmp_path: Path) -> None:
    places = [
        pretraining(tmp_path, "a"),
        pretraining(tmp_path, "b", recipe="roberta"),
        tuning(tmp_path, "t", fresh=False),
        tuning(tmp_path, "u", fresh=True),
    ]
    found = read(html(*gather(places), title="Two & more"))
    assert not found.links
    assert {"85.0 ± 63.5", "5.125", "random weights", "masked_lm, held out"} <= {*found.cells}
    assert "roberta" in found.cells and "corruption.copies" in found.cells


def test_markdown_says_the_same(tmp_path: Path) -> None:
    gathered = gather([pretraining(tmp_path, "a"), tuning(tmp_path, "t", fresh=True)])
    page, text = read(html(*gathered, title="x")), markdown(*gathered, title="x")
    assert all(cell.replace("|", "\\|") in text for cell in page.cells)


def test_names_are_never_markup(tmp_path: Path) -> None:
    page = html(*gather([pretraining(tmp_path, "<script>x")]), title="<b>&")
    assert "<script>x" not in page and "&lt;script&gt;x" in page
    assert "<title>&lt;b&gt;&amp;</title>" in page


def test_a_folder_stands_for_the_runs_in_it(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pretraining(tmp_path, name)
    tuning(tmp_path, "t", fresh=False)
    runs, tunings = gather([tmp_path])
    assert [run.name for run in runs] == ["a", "b"] and [one.name for one in tunings] == ["t"]
    assert tunings[0].seconds == 120


def test_a_thinned_log_is_drawn_over_all_the_tokens(tmp_path: Path) -> None:
    whole, _ = gather([pretraining(tmp_path, "a")])
    thin, _ = gather([pretraining(tmp_path, "b", thinned=True)])
    assert whole[0].train["masked_lm"][-1][0] == thin[0].train["masked_lm"][-1][0] == 4000


def test_a_run_that_is_not_done_is_said_to_be(tmp_path: Path) -> None:
    place = pretraining(tmp_path, "a")
    (place / "result.json").unlink()
    lines = (place / "metrics.jsonl").read_text().splitlines(keepends=True)
    (place / "metrics.jsonl").write_text("".join(lines[:20]))
    assert "a (not done)" in read(html(*gather([place]), title="x")).cells


def test_fine_tunings_under_way_are_left_out(tmp_path: Path) -> None:
    run, place = pretraining(tmp_path, "a"), tuning(tmp_path, "t", fresh=False)
    (place / "result.json").unlink()
    assert gather([run, place])[1] == []
    with pytest.raises(UserError, match="nothing is done yet"):
        gather([place])


def test_lines_stay_inside_their_figure() -> None:
    drawn = curves([Line("a", [(1, 50.0), (50, 4.0), (100, 2.0)], 0)], across="x", up="y")
    points = drawn.split('points="')[1].split('"')[0].split()
    assert all(0 <= float(p.split(",")[0]) <= 640 and 0 <= float(p.split(",")[1]) <= 300
               for p in points)  # fmt: skip
    flat = curves([Line("a", [(1, 3.0), (2, 3.0)], 0)], across="x", up="y")
    assert "nan" not in flat and curves([], across="x", up="y") == ""


def test_dots_of_one_value_are_drawn() -> None:
    drawn = dots([Row("a", [32.9, 32.9], 32.9, 32.9, 0)], across="x")
    assert drawn.count("<circle") == 2 and "nan" not in drawn


@pytest.mark.parametrize(("words", "told"), [
    (["nothing", "--out", "p.html"], "no run is here"),
    (["a", "--out", "p.pdf"], "a page is .html or .md"),
])  # fmt: skip
def test_mistakes_are_told_in_a_sentence(
    words: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    pretraining(tmp_path, "a")
    assert main(["report", *words]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.glob("p.*"))


def test_the_command_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pretraining(tmp_path, "a")
    assert main(["report", "a", "--out", "p.html", "--title", "Mine"]) == 0
    assert "<h1>Mine</h1>" in (tmp_path / "p.html").read_text()

"""The page about runs: whole, self-contained, and true to the records."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from markdown_it import MarkdownIt

from clozelab.cli import COMMANDS, main, parser
from clozelab.config import recipe as recipes
from clozelab.config.overrides import keys_set
from clozelab.errors import UserError
from clozelab.finetuning import protocols
from clozelab.options import options
from clozelab.pretraining import starting
from clozelab.reporting import commands
from clozelab.reporting.document import Page, PageTable, Section
from clozelab.reporting.figures import DotRow, Line, curves, dots
from clozelab.reporting.page import page
from clozelab.reporting.records import FinetuneRecord, gather
from clozelab.reporting.static import text_of
from clozelab.runs.directory import PLAN, Run
from clozelab.runs.record import RunRecord

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


def html(runs: list[RunRecord], tunings: list[FinetuneRecord], *, title: str) -> str:
    return page(runs, tunings, title=title).html()


def markdown(runs: list[RunRecord], tunings: list[FinetuneRecord], *, title: str) -> str:
    return page(runs, tunings, title=title).markdown()


def words_of(line: str) -> SimpleNamespace:
    """The options of a command, as its function gets them."""
    name, *typed = shlex.split(line)
    assert name == "clozelab"
    arguments = vars(parser(COMMANDS).parse_args(typed))
    known = options(COMMANDS[arguments.pop("command")].call)
    return SimpleNamespace(
        **{option.name: option.take(arguments.get(option.name, option.default)) for option in known}
    )


def pretraining(folder: Path, name: str, *, recipe: str = "bert", thinned: bool = False) -> Path:
    whole_recipe = recipes.read(
        recipe, size="tiny", overrides=["schedule.steps=40", "schedule.warmup=2"]
    )
    facts = {"seed": 3, "data": ["corpus:1"], "torch": "2"}
    run = Run.create(folder / name, recipe_toml=recipes.to_toml(whole_recipe), machine=facts)
    for step in range(1, 41, 4 if thinned else 1):
        loss = {"loss": 9 - step / 10}
        run.append({"kind": "step", "step": step, "masked_lm": loss, "tokens": 100, "seconds": 0.5})
    run.append({"kind": "held_out", "step": 40, "masked_lm": {"loss": 5.125}})
    run.write_result({"steps": 40, "tokens": 4000, "seconds": 20.0})
    return folder / name


SPREAD = {"best": 90.0, "median": 85.0, "mean": 85.0, "runs": 2, "low": 21.5, "high": 148.5}


def tuning(
    folder: Path,
    name: str,
    *,
    grid: Sequence[dict[str, Any]] = ({},),
    metric: str = "accuracy",
    data: dict[str, Any] | None = None,
    order: dict[str, Any] | None = None,
    first: int = 0,
) -> Path:
    """Two seeds of each cell, the later cells slower by a minute each."""
    place = folder / name
    cells = []
    for number, settings in enumerate(grid):
        cell = protocols.named(settings)
        for seed in (first, first + 1):
            text = recipes.to_toml(recipes.read("bert", size="tiny"))
            run = Run.create(place / cell / f"seed-{seed}", recipe_toml=text, machine={})
            run.write_result({"seconds": 60.0 * (number + 1)})
        scores = {str(first): {metric: 80.0}, str(first + 1): {metric: 90.0}}
        cell_record = {"name": cell, "settings": settings, "selected": SPREAD, "seeds": scores}
        cells.append({**cell_record, "scores": {metric: SPREAD}, "diverged": 0})
    best = f"{cells[0]['name']}/seed-{first}".lstrip("/")
    files = {"task": "sst2", **dict.fromkeys(("root", "train", "dev", "test"))}
    files |= {"columns": [], "labels": [], **(data or {})}
    plan = {"model": "runs/a", "protocol": "ours", "settings": [], "fresh": False, "teacher": None}
    plan |= {"seed": 0, "data": files, "tuning": {"learning_rate": 2e-5}, **(order or {})}
    Run(place).write_result({"task": files["task"], "best": best, "selected": 90, "cells": cells})
    (place / PLAN).write_text(json.dumps(plan))
    return place


def test_the_page_is_whole_and_links_to_nothing(tmp_path: Path) -> None:
    places = [
        pretraining(tmp_path, "a"),
        pretraining(tmp_path, "b", recipe="roberta"),
        tuning(tmp_path, "t"),
        tuning(tmp_path, "u", order={"fresh": True}),
    ]
    parsed = read(html(*gather(places), title="Two & more"))
    assert not parsed.links
    assert {"85.0 ± 63.5", "5.125", "random weights", "masked lm, held out"} <= {*parsed.cells}
    assert "roberta" in parsed.cells and "corruption.copies" in parsed.cells


def test_a_run_that_was_only_measured_has_a_page(tmp_path: Path) -> None:
    """An adaptation is measured before its first step."""
    folder = pretraining(tmp_path / "runs", "a")
    losses = {"masked_lm": {"loss": 5.0, "accuracy": 0.1}}
    (folder / "result.json").unlink(missing_ok=True)
    (folder / "metrics.jsonl").unlink()
    Run(folder).append({"kind": "held_out", "step": 0, **losses})
    assert "loss on held-out text" in html(*gather([folder]), title="Runs")


def test_what_limited_a_run_is_a_cell_and_runs_of_old_have_a_gap(tmp_path: Path) -> None:
    places = [pretraining(tmp_path, name) for name in ("a", "b")]
    result = Run(places[0]).result() or {}
    Run(places[0]).write_result({**result, "limited_by": "memory"})
    runs, _ = gather(places)
    assert [run.limited_by for run in runs] == ["memory", None]
    lines = markdown(runs, [], title="x").splitlines()
    header, _, first, second = [line for line in lines if line.startswith("|")][:4]
    at = header.split(" | ").index("limited by")
    assert [line.split(" | ")[at] for line in (first, second)] == ["memory", "–"]


def test_a_run_whose_held_out_loss_is_not_finite_has_a_gap(tmp_path: Path) -> None:
    place = pretraining(tmp_path, "a")
    Run(place).append({"kind": "held_out", "step": 44, "masked_lm": {"loss": float("nan")}})
    text = markdown(*gather([place, pretraining(tmp_path, "b")]), title="x")
    first, second = [line for line in text.splitlines() if line.startswith(("| a |", "| b |"))][:2]
    assert first.endswith("| – |") and second.endswith("| 5.125 |")


def test_markdown_says_the_same(tmp_path: Path) -> None:
    gathered = gather([pretraining(tmp_path, "a"), tuning(tmp_path, "t", order={"fresh": True})])
    page, text = read(html(*gathered, title="x")), markdown(*gathered, title="x")
    assert all(cell.replace("|", "\\|") in text for cell in page.cells)


def test_names_are_never_markup(tmp_path: Path) -> None:
    page = html(*gather([pretraining(tmp_path, "<script>x")]), title="<b>&")
    assert "<script>x" not in page and "&lt;script&gt;x" in page
    assert "<title>&lt;b&gt;&amp;</title>" in page


def test_a_folder_stands_for_the_runs_in_it(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pretraining(tmp_path, name)
    tuning(tmp_path, "t")
    runs, tunings = gather([tmp_path])
    assert [run.name for run in runs] == ["a", "b"] and [
        tuning_record.name for tuning_record in tunings
    ] == ["t"]
    assert tunings[0].seconds == {"": {0: 60, 1: 60}}


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
    run, place = pretraining(tmp_path, "a"), tuning(tmp_path, "t")
    (place / "result.json").unlink()
    assert gather([run, place])[1] == []
    with pytest.raises(UserError, match="no run is done yet"):
        gather([place])


def test_cells_of_a_grid_have_their_own_rate_and_time(tmp_path: Path) -> None:
    grid = [{"learning_rate": 1e-4}, {"learning_rate": 3e-4, "batch_size": 16}]
    place = tuning(tmp_path, "t", grid=grid)
    (place / protocols.named(grid[1]) / "seed-1/result.json").write_text('{"diverged": "step 3"}')
    cells = read(html(*gather([place]), title="x")).cells
    ends = {
        cells[at]: cells[at + 4 : at + 7]
        for at, cell in enumerate(cells)
        if "learning_rate-" in cell
    }
    assert ends["a learning_rate-0.0001"] == ["2", "0.0001", "2.0"]
    assert ends["a learning_rate-0.0003-batch_size-16"] == ["2", "0.0003", "2.0"]


def test_what_diverged_is_counted(tmp_path: Path) -> None:
    place = tuning(tmp_path, "t")
    result = Run(place).result()
    assert result is not None
    result["cells"][0]["diverged"] = 1
    Run(place).write_result(result)
    assert "2 (1 diverged)" in read(html(*gather([place]), title="x")).cells


def test_a_command_makes_the_same_order_again(tmp_path: Path) -> None:
    grid: list[dict[str, Any]] = [
        {"learning_rate": rate, "betas": betas, "shape": shape}
        for rate in (1e-4, 3e-4) for betas in ([0.9, 0.98], [0.9, 0.999])
        for shape in ("linear", "cosine")
    ]  # fmt: skip
    data = {"task": "classify", "train": "my texts/$a'b.tsv", "dev": "dev.tsv",
            "columns": ["text=body", "label=the label"]}  # fmt: skip
    order = {"model": "a b/m", "protocol": "bert", "teacher": "runs/t", "fresh": True,
             "settings": ["epochs=2", "head_dropout=0.2"]}  # fmt: skip
    place = tuning(tmp_path, "t", grid=grid, data=data, order=order, first=5)
    (line,) = commands.finetune(gather([place])[1][0])
    parsed = words_of(line)
    assert (parsed.model, parsed.task, parsed.train, parsed.dev) == (
        "a b/m", "classify", data["train"], "dev.tsv")  # fmt: skip
    assert (parsed.columns, parsed.set) == (data["columns"], order["settings"])
    assert (parsed.protocol, parsed.teacher, parsed.fresh) == ("bert", "runs/t", True)
    assert (parsed.seed, parsed.seeds, parsed.task_data) == (5, 2, None)
    grid_cells = [
        {**cell, "betas": list(cell["betas"])} for cell in protocols.cells({}, parsed.grid)
    ]
    assert sorted(map(protocols.named, grid_cells)) == sorted(map(protocols.named, grid))


def test_a_command_says_no_more_than_was_said(tmp_path: Path) -> None:
    place = tuning(tmp_path, "t", data={"root": "tasks"})
    (line,) = commands.finetune(gather([place])[1][0])
    assert line == (
        "clozelab finetune runs/a sst2 --task-data tasks --protocol ours --seed 0 --seeds 2"
        " --out again/t"
    )


def test_grids_of_several_kinds_are_several_commands(tmp_path: Path) -> None:
    place = tuning(tmp_path, "t", grid=[{}, {"learning_rate": 1e-4}, {"learning_rate": 2e-4}])
    lines = [*commands.finetune(gather([place])[1][0])]
    assert [words_of(line).grid for line in lines] == [None, ["learning_rate=0.0001,0.0002"]]


def test_a_pretraining_is_made_again_from_where_it_lies(tmp_path: Path) -> None:
    place = pretraining(tmp_path, "my run")
    parsed = words_of(commands.pretrain(gather([place])[0][0]))
    assert (parsed.recipe, parsed.data) == (str(place / "recipe.toml"), ["corpus:1"])
    assert (parsed.seed, parsed.budget) == (3, None)  # the recipe has its steps, and any refits


def test_a_student_is_made_again_by_its_teacher_and_with_its_own_layers(tmp_path: Path) -> None:
    place = pretraining(tmp_path, "s", recipe="distilbert")
    (run,), _ = gather([place])
    run.machine["teacher"] = "runs/my teacher"
    line = commands.pretrain(run)
    parsed, encoder = words_of(line), run.recipe.encoder
    assert line.startswith("clozelab distil ") and parsed.teacher == "runs/my teacher"
    assert (parsed.recipe, parsed.data) == (str(place / "recipe.toml"), ["corpus:1"])
    other = {"layers": 4, "hidden_size": 48, "heads": 3, "activation": "relu", "norm": "pre"}
    teacher = replace(run.recipe, encoder=replace(encoder, **other))
    again = recipes.read(parsed.recipe, overrides=parsed.set)
    own = keys_set(parsed.set, "encoder", encoder)
    assert starting._as_wide_as(again, teacher, own).encoder == encoder


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    places = [tuning(tmp_path / up, "t", order={"fresh": True}) for up in ("one", "two")]
    places += [pretraining(tmp_path / "one", "a"), pretraining(tmp_path / "one", "b")]
    runs, trials = gather([*places, places[-1]])
    assert [tuning_record.name for tuning_record in (*trials, *runs)] == [
        "one/t",
        "two/t",
        "a",
        "b",
    ]
    cells = read(html(runs, trials, title="x")).cells
    assert {"random weights (one/t)", "random weights (two/t)"} <= {*cells}


def test_files_of_ones_own_have_tables_of_their_own(tmp_path: Path) -> None:
    files = ("r/reviews.tsv", "a/train.tsv", "b/train.tsv")
    for number, file in enumerate(files):
        data = {"task": "classify", "train": file, "dev": "dev.tsv"}
        tuning(tmp_path, f"t{number}", data=data)
    tuning(tmp_path, "t3")
    page = html(*gather([tmp_path]), title="x")
    assert re.findall("<h3>(.*?)</h3>", page) == [
        "classify: reviews.tsv",
        "classify: a/train.tsv, dev.tsv",
        "classify: b/train.tsv, dev.tsv",
        "sst2",
    ]
    assert read(page).cells.count("a") == 4  # a row in each


def test_a_metric_that_some_lack_is_a_dash(tmp_path: Path) -> None:
    tuning(tmp_path, "t")
    tuning(tmp_path, "u", metric="f1", order={"model": "runs/b"})
    page = html(*gather([tmp_path]), title="x")
    cells = read(page).cells
    assert cells[cells.index("a") + 1 :][:2] == ["85.0 ± 63.5", "–"]
    assert cells[cells.index("b") + 1 :][:2] == ["–", "85.0 ± 63.5"]
    assert page.count('<circle class="dot') == 2


def test_a_curve_is_called_what_it_is(tmp_path: Path) -> None:
    held, other = pretraining(tmp_path, "a"), pretraining(tmp_path, "b")
    file = other / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if "held_out" not in line))
    alone, both = (html(*gather(places), title="x") for places in ([other], [held, other]))
    assert "<h3>masked lm: loss in training, in nats</h3>" in alone and "held-out" not in alone
    assert "<h3>masked lm: loss on held-out text, in nats</h3>" in both
    assert '<p class="note">faint: in training</p>' in both
    assert "b (in training)</span>" in both and "a</span>" in both


def test_lines_stay_inside_their_figure() -> None:
    drawn = curves([Line("a", [(1, 50.0), (50, 4.0), (100, 2.0)], 0)], across="x", up="y")
    points = drawn.split('points="')[1].split('"')[0].split()
    assert all(0 <= float(p.split(",")[0]) <= 640 and 0 <= float(p.split(",")[1]) <= 300
               for p in points)  # fmt: skip
    flat = curves([Line("a", [(1, 3.0), (2, 3.0)], 0)], across="x", up="y")
    assert "nan" not in flat and curves([], across="x", up="y") == ""
    before = curves([Line("a", [(0.0, 3.0)], 0)], across="x", up="y")  # the first step
    assert "<polyline" in before and "nan" not in before


@pytest.mark.parametrize("layers", [1, 2, 4, 12, 24])
def test_an_axis_of_layers_has_no_fractions(layers: int) -> None:
    points = [(float(layer), 50.0 + layer) for layer in range(layers + 1)]
    drawn = curves([Line("a", points, 0)], across="layer", up="score", whole=True)
    across = re.findall(r'text-anchor="middle" x="[\d.]+" y="[\d.]+">([\d.]+)</text>', drawn)
    assert across[:2] and all("." not in tick for tick in across) and across[0] == "0"
    half = curves([Line("a", [(0.0, 1.0), (0.5, 2.0)], 0)], across="x", up="y", whole=True)
    assert ">0.1<" in half


def test_dots_of_one_value_are_drawn() -> None:
    drawn = dots([DotRow("a", [32.9, 32.9], 32.9, 32.9, 0)], across="x")
    assert drawn.count("<circle") == 2 and "nan" not in drawn


def test_a_long_caption_stays_inside_its_figure() -> None:
    rows = [DotRow("the mean of one accuracy and another", [1.0], 0.5, 1.5, 0)]
    clauses = ["advantage of shared-128 over shared-full, in points", "the margin is −0.50",
               "within ± 0.30 they count as equal"]  # fmt: skip
    drawn = dots(rows, across="; ".join(clauses))
    captions = re.findall(
        r'text-anchor="middle" x="([\d.]+)" y="([\d.]+)">([^<]{12,})</text>', drawn
    )
    assert "; ".join(text for _, _, text in captions) == "; ".join(clauses) and len(captions) > 1
    height = float(re.findall(r'viewBox="0 0 640 ([\d.]+)"', drawn)[0])
    for x, y, text in captions:
        assert float(x) - 3.3 * len(text) >= 0 and float(x) + 3.3 * len(text) <= 640
        assert float(y) < height
    assert len({y for _, y, _ in captions}) == len(captions)


def test_many_lines_differ_in_colour_or_dashes() -> None:
    drawn = curves([Line(f"r{n}", [(1, 2.0), (2, n)], n) for n in range(32)], across="", up="")
    looks = re.findall('polyline class="line ([^"]*)"', drawn)
    assert len({*looks}) == 32 and looks[3:5] == ["c3", "c4 d1"] and looks[8] == "c0 d2"
    assert re.findall('<line class="line ([^"]*)"', drawn) == looks  # the legend's
    style = text_of("figures.css")
    assert all(f".{word} {{" in style for look in looks for word in look.split())


def test_a_long_name_is_cut_and_kept_for_who_asks() -> None:
    long = f"{'m' * 40}<rate-{'0' * 40}"
    drawn = dots(
        [DotRow(long, [1.0], None, None, 0), DotRow("short", [2.0], None, None, 1)], across="x"
    )
    names = re.findall('class="name".*?>(?:<title>(.*?)</title>)?([^<]*)</text>', drawn)
    assert names[0][0] == long.replace("<", "&lt;") and "…" in names[0][1]
    assert len(names[0][1]) < 50 and names[1] == ("", "short")


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["nothing", "--out", "p.html"], "has no run"),
    (["a", "--out", "p.pdf"], "use a name ending in .html or .md"),
])  # fmt: skip
def test_mistakes_are_told_in_a_sentence(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    pretraining(tmp_path, "a")
    assert main(["report", *arguments]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.glob("p.*"))


def test_the_command_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pretraining(tmp_path, "a")
    assert main(["report", "a", "--out", "p.html", "--title", "Mine"]) == 0
    assert "<h1>Mine</h1>" in (tmp_path / "p.html").read_text()


def test_a_page_is_written_again_and_anything_else_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pretraining(tmp_path, "a")
    for name in ("p.html", "p.md"):
        command = ["report", "a", "--out", name]
        assert main(command) == main([*command, "--title", "Again"]) == 0
        assert "Again" in (tmp_path / name).read_text()
        (tmp_path / name).write_text("precious")
        assert main(command) == 2
        assert f"{name}: already exists" in capsys.readouterr().err
        assert (tmp_path / name).read_text() == "precious"
        assert main([*command, "--overwrite"]) == 0
        assert (tmp_path / name).read_text() != "precious"


@pytest.mark.parametrize(
    "name",
    [
        "<img src=x onerror=alert(1)> [a](http://b)\n# c | d",
        "**bold** _thin_ `code` ~~gone~~ a_b \\ & <!-- x -->",
    ],
)
def test_names_are_shown_as_they_are_in_markdown(name: str) -> None:
    table = PageTable([name], [[name]], note=name)
    parts = [name, table, ("note", name), ("heading", name), ("code", f"```\n{name}")]
    text = Page(name, name, [Section(name, parts)], lead=name).markdown()
    mark, _, rest = text.partition("\n")
    assert mark.startswith("<!-- generator: clozelab ")
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(rest)
    (code,) = (token.content for token in tokens if token.type == "fence")
    assert code == f"```\n{name}\n"
    lines = [token.children or [] for token in tokens if token.type == "inline"]
    kinds = {child.type for line in lines for child in line}
    assert kinds <= {"text", "text_special", "strong_open", "strong_close"}
    texts = ["".join(child.content for child in line) for line in lines]
    assert texts == [" ".join(name.split())] * 10
    assert not [token for token in tokens if token.type.startswith("html")]
    assert sum(child.type == "strong_open" for line in lines for child in line) == 1  # the lead


@pytest.mark.parametrize(
    ("folder", "name"),
    [("a", "recipe.toml"), ("a", "machine.toml"), ("a", "metrics.jsonl"), ("a", "result.json"),
     ("t", "plan.json"), ("t", "result.json"), ("t", "seed-0/result.json")],
)  # fmt: skip
@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[1, 2]", b"{}", b'{"kind": "step", "cells": [{}]}\n', None]
)
def test_damaged_records_are_told_in_a_sentence(
    folder: str,
    name: str,
    content: bytes | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"a": pretraining(tmp_path, "a"), "t": tuning(tmp_path, "t")}
    file = places[folder] / name
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if content is None else content)
    code = main(["report", str(places[folder]), "--out", str(tmp_path / "p.html")])
    output = capsys.readouterr().err
    assert code in (0, 2) and "bug in clozelab" not in output
    if code:
        assert output.startswith("clozelab: ") and len(output.strip().splitlines()) == 1
        assert str(places[folder]) in output and not (tmp_path / "p.html").exists()
